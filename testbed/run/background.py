"""A fabric that outlives the command that built it, held by a controller in the background."""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from testbed.core.errors import FabricError, TestbedError, limit_reached
from testbed.datapath import set_datapath
from testbed.fabric.state import StateFile
from testbed.host.rights import require_root
from testbed.plan import FabricPlan

__all__ = ["hold", "start"]


def hold(
    plan: FabricPlan,
    run_id: str | None,
    announce: Callable[[dict[str, Any]], None],
    prompt: bool = False,
) -> None:
    """Build a fabric and hold it until a signal ends this process or a worker dies.

    The datapath is set to the plan's switch kind: ``xdp`` for ``xdp``, ``sockets`` for ``bridge``.

    :param announce: Called with the run's id and process id when everything is up.
    :param prompt: Give Mininet's prompt, and end when the user leaves it.
    """
    from testbed.fabric import Fabric
    from testbed.run.control import Control
    from testbed.worker import Workers

    with Fabric(plan, run_id, kept=True) as fabric, Workers(fabric):
        set_datapath(fabric, "xdp" if plan.switch_kind == "xdp" else "sockets")
        if prompt:
            from testbed.run.prompt import Prompt

            announce({"run_id": fabric.run_id, "controller": os.getpid()})
            Prompt(fabric)
            return
        with Control(fabric) as control:
            announce({"run_id": fabric.run_id, "controller": os.getpid()})
            control.serve()


def start(plan: FabricPlan, run_id: str | None) -> dict[str, Any]:
    """:func:`hold` in a daemon process. If an error ends it later, ``testbed status`` shows the
    error.

    :return: What the daemon announces.
    :raises SpecError: The run id is not a short name.
    :raises FabricError: This is not root, or it could not build the fabric.
    """
    if run_id is not None:
        StateFile(run_id)
    require_root()
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        _daemon(plan, run_id, writer)
    os.close(writer)
    with open(reader, encoding="utf-8") as answer:
        text = answer.read()
    if not text:
        raise FabricError("the controller in the background died while it built the fabric")
    message: dict[str, Any] = json.loads(text)
    if "error" in message:
        raise FabricError(message["error"])
    return message


def _daemon(plan: FabricPlan, run_id: str | None, writer: int) -> None:
    """Never return: the caller of :func:`start` continues only in the parent."""
    status = 1
    announced: str | None = None
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

        def announce(message: dict[str, Any]) -> None:
            nonlocal announced
            announced = message["run_id"]
            os.write(writer, json.dumps(message).encode())
            os.close(writer)

        hold(plan, run_id, announce)
    except SystemExit:
        status = 0  # asked to end
    except BaseException as error:
        text = (
            str(error)
            if isinstance(error, TestbedError)
            else limit_reached(error) or traceback.format_exc()
        )
        with contextlib.suppress(OSError):  # there is no other place to report it
            if announced is None:
                os.write(writer, json.dumps({"error": text}).encode())
            else:
                StateFile(announced).failure.write_text(text, encoding="utf-8")
    finally:
        os._exit(status)
