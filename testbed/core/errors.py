"""The errors that a user may meet: each text says what is wrong, where, and what to do."""

import errno
import os
import resource
from typing import ClassVar

__all__ = [
    "CollectiveError",
    "FabricError",
    "FaultError",
    "KernelError",
    "LimitError",
    "SpecError",
    "StorageError",
    "TestbedError",
    "WorkerDied",
    "WorkerTimeout",
    "limit_reached",
    "no_room",
]


class TestbedError(Exception):
    """Base of all errors that the command line prints as one message, without a traceback.

    :cvar exit_status: The command's exit status: 1 if the work failed, 2 for wrong usage.
    :cvar a_line_each: Whether each line of the text is a separate error; otherwise the first line
        is the error, and a log follows.
    :cvar before_log: What separates the error from the log.
    """

    __test__ = False  # pytest: the name starts with "Test", but it is not a test class

    exit_status: ClassVar[int] = 1
    a_line_each: ClassVar[bool] = False
    before_log: ClassVar[str] = "\n"

    _besides: tuple[str, ...] = ()

    def also(self, text: str) -> None:
        """Add a line before any log, for a caller that knows the cause or what is left behind."""
        self._besides += (text,)

    def __str__(self) -> str:
        head, mark, log = super().__str__().partition(self.before_log)
        return "; ".join([head, *self._besides]) + mark + log


class SpecError(TestbedError):
    """A scenario, flag or argument is wrong; the text names the key, its value, and what it must
    be.
    """

    exit_status = 2
    a_line_each = True


class StorageError(TestbedError):
    """A file or folder cannot be read or written, for example because the disk is full; the text
    names it and the reason.
    """


class KernelError(TestbedError):
    """The kernel refused a program, map, link or netlink request; the text has the kernel's
    message.
    """


class FabricError(TestbedError):
    """Hosts, links or switches could not be built, or have disappeared."""


class FaultError(TestbedError):
    """A fault cannot be injected; the text says which, and why."""


class WorkerDied(TestbedError):
    """A worker process ended before its work did.

    :param worker: Name of the worker (its host's name).
    :param status: Its exit status, negative for a signal number.
    :param log: The end of what it wrote on stdout and stderr.
    """

    before_log = "; its last words:\n"

    def __init__(self, worker: str, status: int | None, log: str = "") -> None:
        how = "ended"
        if status is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
        said = f"{self.before_log}{log}" if log else ""
        super().__init__(f"worker {worker} {how} before its work was done{said}")
        self.worker = worker
        self.status = status
        self.log = log

    def __reduce__(self) -> tuple[type["WorkerDied"], tuple[str, int | None, str]]:
        return type(self), (self.worker, self.status, self.log)


class WorkerTimeout(TestbedError):
    """A worker did not answer, or did not connect, within the timeout."""


class CollectiveError(TestbedError):
    """A collective could not complete; the text names the rank and the reason."""


class LimitError(TestbedError):
    """A process has reached a limit: memory, stack depth, or the range of a number."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def no_room(error: BaseException) -> str | None:
    """Return a line about a disk that takes no more, if that is the error or its cause; None for
    any other error.
    """
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return f"{error.filename or 'output'}: cannot be written: {os.strerror(error.errno)}"
    return no_room(error.__cause__) if error.__cause__ else None


def limit_reached(error: BaseException) -> str | None:
    """Return a line that names the limit that was reached; None for any other error, such as a bug.

    Memory exhaustion shows as `MemoryError`, from which numpy and pyarrow derive theirs, as ENOMEM
    from a system call, and in torch as `RuntimeError`.

    A process that may open no more files shows as EMFILE, and where a shared library is loaded in
    the text of an `ImportError`, or of an `OSError` without a number.
    """
    text = " ".join(str(error).split())
    match error:
        case MemoryError():
            what = "out of memory"
        case OSError(errno=errno.ENOMEM):
            what, text = "out of memory", error.filename or ""
        case OSError() | ImportError() if os.strerror(errno.EMFILE) in text:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            what, text = "too many open files", f"ulimit -n allows {most}"
        case RecursionError():
            what = "nested too deeply"
        case RuntimeError() if "can't allocate memory" in text:
            what, text = "out of memory", text.partition("can't allocate memory: ")[2]
        case OverflowError():
            what = "a number is too large"
        case _:
            return None
    return f"{what}: {text}" if text else what
