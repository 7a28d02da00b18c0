"""How commands reach the controller of a fabric that is up in the background: one request and one
answer per connection, a line of JSON each, on a socket that only root can open.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.closing import Stacked
from testbed.core.errors import FabricError, SpecError, TestbedError, WorkerDied
from testbed.datapath.programs import Attached, Compiled, attach
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.fabric.runs import Run

__all__ = ["Control", "request"]

NAME = "control.sock"  # in the run's directory
PATIENCE = 5.0  # seconds for a command to send its request
ANSWER_TIMEOUT = 60.0  # seconds for the controller, which may be serving another command


class Control(Stacked):
    """The controller's end, with the programs that commands have attached.

    :param fabric: A fabric that is up, with workers.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._attached: dict[int, Attached] = {}

    def _enter(self, stack: ExitStack) -> None:
        self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(self._fabric.directory / NAME))
        self._listener.listen()

    def serve(self) -> None:
        """Answer requests until a worker dies or a signal comes.

        :raises WorkerDied: One has died.
        """
        workers = Workers.of(self._fabric)
        while True:
            workers.check(timeout=None, beside=self._listener)
            client, _ = self._listener.accept()
            with client, suppress(OSError, ValueError):  # a command that has given up
                client.settimeout(PATIENCE)
                with client.makefile("rw") as lines:
                    self._serve_one(lines)

    def _serve_one(self, lines: Any) -> None:
        asked = json.loads(lines.readline())
        death: WorkerDied | None = None
        verb: Callable[..., dict[str, Any]]
        try:
            verb = self._attach if asked.pop("verb") == "attach" else self._detach
            answer = verb(**asked)
        except TestbedError as error:
            death = error if isinstance(error, WorkerDied) else None
            answer = {"error": str(error), "usage": isinstance(error, SpecError)}
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
        if death:
            raise death

    def _attach(self, host: str, program: dict[str, str], **options: Any) -> dict[str, Any]:
        paths = {"source": Path(program["source"]), "path": Path(program["path"])}
        compiled = Compiled(**{**program, **paths})  # type: ignore[arg-type]  # as it was sent
        made = attach(self._fabric, host, compiled, **options)
        self._attached[made.number] = made
        return self._about(made)

    def _detach(self, host: str, number: int | None) -> dict[str, Any]:
        self._fabric.plan.host(host)
        here = {n: made for n, made in self._attached.items() if made.host == host}
        if number is not None and number not in here:
            known = f"must be {', '.join(map(str, here))}" if here else "none is attached"
            raise SpecError(f"--number {number}: {host} has no such program: {known}")
        chosen = [number] if number is not None else list(here)
        gone = [self._about(self._attached[each]) for each in chosen]
        for each in chosen:
            self._attached.pop(each).close()
        return {"detached": gone}

    @staticmethod
    def _about(made: Attached) -> dict[str, Any]:
        return {
            "number": made.number,
            "host": made.host,
            "file": str(made.program.source),
            "function": made.program.function,
            "hook": made.program.hook,
            "maps": {name: found.number for name, found in made.maps.items()},
        }


def request(run: Run, verb: str, **arguments: Any) -> dict[str, Any]:
    """Ask a run's controller.

    :raises SpecError: The arguments are wrong.
    :raises FabricError: The controller is dead, takes no requests, or could not do it.
    """
    path = run.file.path.with_suffix("") / NAME
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(ANSWER_TIMEOUT)
            sock.connect(str(path))
            with sock.makefile("rw") as lines:
                lines.write(json.dumps({"verb": verb, **arguments}) + "\n")
                lines.flush()
                answer: dict[str, Any] = json.loads(lines.readline() or "{}")
    except OSError as error:
        raise FabricError(
            f"run {run.run_id!r}: its controller does not answer ({error}): programs are attached"
            " to a fabric that `testbed up` holds"
        ) from error
    if not answer:
        raise FabricError(f"run {run.run_id!r}: its controller has ended; see `testbed status`")
    if "error" in answer:
        raise (SpecError if answer["usage"] else FabricError)(answer["error"])
    return answer
