"""Functions that tests call in workers."""

import os
import signal
import stat
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from testbed.core.errors import CollectiveError
from testbed.core.logs import logger_of
from testbed.worker import WorkerContext
from tests.support.kept import kept
from tests.support.waiting import wait_until


def describe(context: WorkerContext, extra: int = 0) -> tuple[Any, ...]:
    return context.name, context.kind, context.plan, len(context.fabric_plan.hosts), extra


def remember(context: WorkerContext, value: int) -> int:
    kept(context)["sum"] = kept(context).get("sum", 0) + value
    return int(kept(context)["sum"])


def loaded(context: WorkerContext) -> bool:
    return "sched" in sys.modules


def count(context: WorkerContext, to: int) -> None:
    for number in range(to):
        context.progress(number)


def log(context: WorkerContext, text: str) -> None:
    logger_of("testbed.tests.calls").info("%s", text)
    logger_of("testbed.tests.calls").debug("a detail")


def refuse(context: WorkerContext) -> None:
    raise CollectiveError(f"{context.name} will not")


def exhaust(context: WorkerContext, how: str) -> None:
    """Run into a limit."""
    match how:
        case "memory":
            bytes(1 << 60)
        case "stack":
            exhaust(context, how)
        case "number":
            range(1 << 100).__len__()


class OddError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


def raise_odd(context: WorkerContext) -> None:
    raise OddError(1, 2)


def return_unpicklable(context: WorkerContext) -> Any:
    return threading.Lock()


def die_half_way(context: WorkerContext) -> None:
    """Answer with the first half of a message."""
    for fd in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(
            os.stat(f"/proc/self/fd/{fd}").st_mode
        ):
            os.write(
                int(fd), struct.pack("!i", 1000) + b"half"
            )  # as multiprocessing.connection frames messages
            os.kill(os.getpid(), signal.SIGKILL)


def meet(context: WorkerContext, directory: Path, names: list[str]) -> None:
    """Return when the workers of all ``names`` have arrived."""
    (directory / context.name).touch()
    wait_until(lambda: all((directory / name).exists() for name in names))


def wait_for(context: WorkerContext, path: Path) -> bytes:
    """Return more than fits into a socket's buffer, as soon as a file exists."""
    wait_until(path.exists)
    return bytes(4 << 20)


def exit_with(context: WorkerContext, status: int) -> None:
    print("farewell", file=sys.stderr, flush=True)
    os._exit(status)


def on_close(context: WorkerContext, path: Path) -> None:
    context.resources.callback(path.write_text, context.name)


def cpus(context: WorkerContext) -> set[int]:
    return os.sched_getaffinity(0)


def namespace(context: WorkerContext) -> int:
    return os.stat("/proc/self/ns/net").st_ino


def size(context: WorkerContext, data: bytes) -> int:
    return len(data)


def echo(
    context: WorkerContext, function: str, timeout: float, name: str
) -> tuple[str, float, str]:
    return function, timeout, name
