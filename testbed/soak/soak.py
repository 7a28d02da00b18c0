"""A soak: one scenario after the other, until the time is up, a scenario fails, or the soak is
interrupted.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from testbed.core.errors import TestbedError
from testbed.fabric.clean import clean
from testbed.fabric.state import ROOT, new_run_id
from testbed.host.processes import processes_of
from testbed.kernel.compile import compile_all
from testbed.native import compile_native, names
from testbed.soak.draw import draw
from testbed.soak.failures import Finding, keep
from testbed.soak.harness import Harness
from testbed.soak.holdings import Holdings, trim
from testbed.soak.report import Report
from testbed.soak.scenario import Scenario, replay_command

__all__ = ["Soak", "leftovers"]

GRACE = 10.0  # seconds for processes to exit after their controller


def leftovers(run_id: str) -> list[str]:
    """What remains of a run: processes, files, control groups; after a grace period, because killed
    processes take a moment to exit.
    """
    deadline = time.monotonic() + GRACE
    while True:
        found = [f"process {entry.name} ({entry.pid})" for entry in processes_of(run_id)]
        found += [str(path) for path in ROOT.glob(f"*{run_id}*")]
        found += [str(path) for path in Path("/sys/fs/cgroup").rglob(f"*{run_id}*")]
        if not found or time.monotonic() > deadline:
            return found


class Soak:
    """The scenarios of a seed, in order.

    :param seed: Scenario K of a seed is always the same.
    :param deadline: Time of the monotonic clock from which on no scenario is started.
    :param only: Play only these scenarios; `ways`: only those with one of these at work, if any
        are named.
    :param folder: Where the remains of a failed scenario are kept.
    """

    def __init__(
        self,
        seed: int,
        deadline: float,
        only: Sequence[int],
        folder: Path,
        ways: Collection[str] = (),
    ) -> None:
        self.seed, self.only, self.folder, self.ways = seed, only, folder, ways
        self._deadline = deadline
        self._harness: Harness | None = None
        self._baseline: Holdings | None = None

    def run(self, progress: Callable[[Scenario], None] = lambda scenario: None) -> Iterator[Report]:
        """Play the scenarios; yields the report of each one that passes.

        :param progress: Called with each scenario before it is played.
        :raises TestbedError: One has failed; the text says which and how to play it again.
        """
        # Otherwise all ranks would do this at once, while their time to connect runs.
        compile_all()
        for name in names():
            compile_native(name)
        try:
            for number in self._numbers():
                scenario = draw(self.seed, number)
                if self.ways and not scenario.ways.intersection(self.ways):
                    continue
                progress(scenario)
                try:
                    yield self._play(scenario)
                except Exception as error:
                    self._keep(scenario, error)
                    words = str(error) or type(error).__name__
                    raise TestbedError(
                        f"{scenario}\n{words}\nkept: {self._kept(scenario)}\nagain:"
                        f" {replay_command(self.seed, number)}"
                    ) from error
            self._change()
        finally:
            self._leave()

    def _numbers(self) -> Iterator[int]:
        if self.only:
            yield from self.only
            return
        number = 0
        while time.monotonic() < self._deadline:
            yield number
            number += 1

    def _play(self, scenario: Scenario) -> Report:
        if scenario.killed_after is not None:
            return self._play_killed(scenario, scenario.killed_after)
        backends = {scenario.backend}
        if self._harness and self._harness.shape == scenario.shape:
            backends |= self._harness.backends
        if self._harness and (
            self._harness.spent
            or self._harness.shape != scenario.shape
            or self._harness.backends != backends
        ):
            self._change()
        if self._harness is None:
            self._harness = Harness(scenario.shape, backends=backends).__enter__()
        return self._harness.play(scenario)

    def _play_killed(self, scenario: Scenario, after: float) -> Report:
        """Kill a controller in the middle of a scenario; the scenarios after it show whether the
        machine is unchanged.
        """
        started, run_id = time.monotonic(), new_run_id()
        command = [
            sys.executable,
            "-m",
            "testbed.soak",
            str(scenario.seed),
            str(scenario.number),
            run_id,
        ]
        with subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            try:
                _, said = process.communicate(timeout=after)
                raise Finding(
                    "the controller that was to be killed ended by itself, with status"
                    f" {process.returncode}: {said}"
                )
            except subprocess.TimeoutExpired:
                pass
            finally:
                process.kill()
        refused = [left.error for left in clean(run_id=run_id) if left.error]
        if refused or (found := leftovers(run_id)):
            raise Finding(
                "left after the controller was killed and `testbed clean`:"
                f" {', '.join(refused or found)}"
            )
        return Report(scenario, time.monotonic() - started)

    def _change(self) -> None:
        """Take down a fabric on which all scenarios have passed, and check that the controller
        holds no more resources than after the first fabric.
        """
        if self._harness is None:
            return
        shape = self._harness.shape
        self._leave()
        trim()
        now = Holdings.of(os.getpid())
        self._baseline = self._baseline or now
        now.growth(f"after a fabric of {shape} the controller", self._baseline)

    def _leave(self) -> None:
        """Take the fabric down, and check that nothing of it is left."""
        if self._harness is None:
            return
        harness, self._harness = self._harness, None
        harness.__exit__(None, None, None)
        if found := leftovers(harness.fabric.run_id):
            raise Finding(f"left behind by a fabric of {harness.shape}: {', '.join(found)}")

    def _keep(self, scenario: Scenario, error: Exception) -> None:
        run = self._harness.fabric.directory if self._harness else Path("/nonexistent")
        keep(scenario, error, self._kept(scenario), run)

    def _kept(self, scenario: Scenario) -> Path:
        return self.folder / f"soak-{self.seed}-{scenario.number}"
