"""Running the trials of a sweep by Dask: in processes of this machine, or on a scheduler's workers.

A trial's files travel to the sweep's folder as the result of its task, so workers and the sweep
need no common disk. A task whose worker dies is run again by another.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import dask
from distributed import Client, Future, LocalCluster, as_completed, get_worker

from testbed.core.closing import Stacked
from testbed.core.errors import SpecError, StorageError
from testbed.sweep.grid import Trial
from testbed.sweep.ledger import Done, Ledger
from testbed.sweep.player import Player, Work, attempt

__all__ = ["RESOURCE", "Cluster"]

RESOURCE: Final = "testbed"
"""What a worker has one of that may build networks: an emulated trial has its kernel to itself."""

_ATTEMPTS: Final = 3  # workers that may die of one trial
_PATIENCE: Final = 10  # seconds for a scheduler to answer


class Cluster(Stacked):
    """Workers, each of which runs a trial at a time. A context manager.

    :param workers: Processes of this machine that are started; 0: those of `scheduler` are used.
    :param scheduler: The address of a scheduler, such as ``tcp://10.0.0.1:8786``.
    :raises SpecError: On entry: no scheduler with workers answers there.
    """

    def __init__(self, workers: int = 0, scheduler: str | None = None) -> None:
        self._workers, self._scheduler = workers, scheduler

    def _enter(self, stack: ExitStack) -> None:
        stack.enter_context(
            dask.config.set({"distributed.scheduler.allowed-failures": _ATTEMPTS - 1})
        )
        if self._scheduler is None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-sweep-"))
            address: Any = stack.enter_context(
                LocalCluster(
                    n_workers=self._workers,
                    threads_per_worker=1,
                    host="127.0.0.1",  # nobody else may give it work
                    dashboard_address="127.0.0.1:0",  # any free port: its default may be taken
                    local_directory=scratch,
                )
            )
        else:
            address = self._scheduler
        try:
            self._client = stack.enter_context(Client(address, timeout=_PATIENCE))
            self._client.wait_for_workers(1, timeout=_PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            raise SpecError(
                f"--scheduler {self._scheduler}: must be the address of a Dask scheduler, such as"
                f" tcp://127.0.0.1:8786: {str(error) or 'no answer'}"
            ) from None

    @property
    def at_once(self) -> int:
        """See `testbed.sweep.player.Place`."""
        return max(1, sum(map(int, self._client.nthreads().values())))

    @property
    def _kernels(self) -> int:
        """How many emulated trials the workers may run at a time."""
        found = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return int(sum(each["resources"].get(RESOURCE, 0) for each in found))

    def run(
        self, player: Player, ledger: Ledger, pending: Sequence[Trial]
    ) -> Iterator[tuple[Trial, Done]]:
        """See `testbed.sweep.player.Place`.

        :raises SpecError: There are emulated trials, and no worker may run them.
        :raises StorageError: A disk is full, here or a worker's.
        """
        waiting: dict[bool, deque[Trial]] = {True: deque(), False: deque()}
        for trial in pending:
            waiting[player.simulated(trial.cell)].append(trial)
        if waiting[False] and not self._kernels:
            raise SpecError(
                f"--scheduler {self._scheduler}: no worker has the resource {RESOURCE}, which"
                f" emulated trials need: start one as root with --resources {RESOURCE}=1"
            )
        running: dict[Future, Trial] = {}
        ended = as_completed()

        def fill() -> None:
            """Give out as many trials as run at once: one that waits at a worker would count as a
            cause of that worker's death.
            """
            for simulated, slots in ((True, self.at_once), (False, self._kernels)):
                given = sum(player.simulated(each.cell) == simulated for each in running.values())
                for _ in range(min(slots - given, len(waiting[simulated]))):
                    trial = waiting[simulated].popleft()
                    future = self._client.submit(
                        perform,
                        player.work(trial),
                        key=f"trial-{uuid4().hex}",
                        pure=False,
                        resources={} if simulated else {RESOURCE: 1},
                    )
                    running[future] = trial
                    ended.add(future)

        fill()
        for future in ended:
            trial = running.pop(future)
            fill()
            folder = ledger.begin(trial)
            try:
                done, files = future.result()
            except StorageError:
                raise
            except Exception as error:  # the trial's own errors are in `done`
                yield trial, Done(0.0, f"its worker died: {error}")
                continue
            try:
                for name, data in files.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(data)
            except OSError as error:
                raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error
            yield trial, done


def perform(work: Work) -> tuple[Done, dict[str, bytes]]:
    """Run a trial on a worker; return how it ended, and its files by path within its folder."""
    # In the worker's own folder, which Dask removes even if the worker is killed.
    here = get_worker().local_directory
    with tempfile.TemporaryDirectory(prefix="testbed-trial-", dir=here) as place:
        folder = Path(place)
        done = attempt(work, folder)
        files = {
            str(each.relative_to(folder)): each.read_bytes()
            for each in sorted(folder.rglob("*"))
            if each.is_file()
        }
        return done, files
