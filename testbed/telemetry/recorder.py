"""`Recorder`: the controller's end of telemetry."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Protocol

from testbed.core.closing import Stacked
from testbed.core.errors import KernelError
from testbed.host.processes import RUN_VARIABLE
from testbed.telemetry.options import TelemetryOptions
from testbed.telemetry.profile import Profile
from testbed.telemetry.recording import Windows
from testbed.telemetry.sampler import Mode
from testbed.telemetry.stacks import Stack

__all__ = ["Nodes", "Recorder"]

_TIMEOUT: Final = 120.0  # seconds for compiling, or for names of a long epoch's samples


class HasPid(Protocol):
    """A process."""

    @property
    def pid(self) -> int:
        """Its id."""


class Nodes(Protocol):
    """What has nodes: a fabric of this process, or a run of another."""

    @property
    def run_id(self) -> str:
        """The id of the run."""

    @property
    def nodes(self) -> Mapping[str, HasPid]:
        """Processes that hold the nodes' namespaces, by name."""

    def track(self, name: str, pid: int) -> None:
        """List a process, so that it is killed with the run."""


class Recorder(Stacked):
    """Samples a fabric's nodes, from a process of its own; a context manager.

    :param fabric: It has to stay up.
    :raises KernelError: BCC cannot compile here, or the kernel refuses the program; the text has
        the reason in one line.
    """

    def __init__(self, fabric: Nodes, options: TelemetryOptions) -> None:
        self._fabric, self._options = fabric, options
        #: Stacks of the last `take`, the most frequent first.
        self.stacks: list[Stack] = []

    def _enter(self, stack: ExitStack) -> None:
        nodes = {
            name: os.stat(f"/proc/{node.pid}/ns/net").st_ino
            for name, node in self._fabric.nodes.items()
        }
        command = ["--rate", str(self._options.rate), "--nodes", json.dumps(nodes)]
        self._errors = stack.enter_context(
            os.fdopen(os.memfd_create("telemetry"), "w+", encoding="utf-8")
        )
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "testbed.telemetry", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                process_group=0,  # a Ctrl-C at the terminal is for the controller
                env={**os.environ, RUN_VARIABLE: self._fabric.run_id},
                encoding="utf-8",
                errors="replace",
            )
        )
        stack.callback(self._process.kill)
        self._fabric.track("telemetry", self._process.pid)
        self._answer()

    @contextmanager
    def on(self, mode: Mode) -> Iterator[None]:
        """Sample or count inside the context; outside it, telemetry costs nothing.

        :raises KernelError: The kernel refuses the program, or the process has ended.
        """
        self._order(order="start", mode=mode)
        try:
            yield
        finally:
            self._order(order="stop")

    def take(self, windows: Windows | None = None) -> Profile:
        """What was measured since `on` was entered, or since the last call.

        :param windows: When the nodes were in collectives; None: always.
        :raises KernelError: The process has ended.
        """
        answer = self._order(order="take", windows=windows)
        self.stacks = [Stack(*each) for each in answer["stacks"]]
        return Profile.of(answer["profile"])

    def _order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._died() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise KernelError(f"telemetry: {answer['error']}{self._said()}")
        return answer

    def _said(self) -> str:
        """The first line that the compiler printed, the cause of all others."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        cause = next((line for line in lines if "error:" in line), lines[0] if lines else "")
        return f": {cause}" if cause else ""

    def _died(self) -> KernelError:
        self._process.kill()
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return KernelError(
            f"telemetry: its process ended with status {status}: {said[-1] if said else 'no word'}"
        )
