"""The worker's side: connect to the controller, and serve calls until it sends Stop or
disconnects.
"""

import ctypes
import importlib
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from testbed.core.errors import LimitError, TestbedError, limit_reached
from testbed.core.logs import logger_of
from testbed.worker.context import WorkerContext
from testbed.worker.messages import Call, Failure, Hello, Log, Progress, Result, Welcome

__all__ = ["die_with_parent", "serve"]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send ``number`` to this process when its parent thread ends (prctl(2))."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it exited before the call
        os.kill(os.getpid(), number)


def serve(path: Path, name: str) -> None:
    """Serve calls, one at a time, until the controller ends it.

    :param path: The controller's socket. The key with which both sides authenticate is next to it,
        in ``<path>.key``.
    :param name: Name of this worker.
    """
    # A Ctrl-C at the terminal is for the controller, which then stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    die_with_parent()
    key = path.with_name(path.name + ".key").read_bytes()
    with Client(str(path), "AF_UNIX", authkey=key) as connection:
        assert isinstance(connection, Connection)
        try:
            connection.send(Hello(name, os.getpid()))
            welcome = connection.recv()
            assert isinstance(welcome, Welcome)
            sys.path.extend(entry for entry in welcome.path if entry not in sys.path)
            context = WorkerContext(name, welcome.kind, welcome.plan, welcome.fabric_plan)
            handler = ToController(connection)
            logger = logger_of("testbed")
            logger.setLevel(welcome.level)
            with context.resources:
                while isinstance(call := connection.recv(), Call):
                    logger.addHandler(handler)
                    _answer(connection, context, call)
                    logger.removeHandler(handler)  # between calls nobody reads
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the controller is gone; the resources are closed by now


class ToController(logging.Handler):
    """Sends log entries to the controller. Only those of the thread that serves calls: a
    connection is for one thread.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send an entry; see `logging.Handler.emit`."""
        if threading.current_thread() is threading.main_thread():
            self._connection.send(Log(record.name, record.levelno, record.getMessage()))


def _answer(connection: Connection, context: WorkerContext, call: Call) -> None:
    context.send_progress = lambda value: connection.send(Progress(call.number, value))
    answer: Result | Failure
    try:
        answer = Result(call.number, _function(call)(context, **call.arguments))
    except Exception as error:
        text = limit_reached(error)
        told = LimitError(f"worker {context.name}: {text}") if text else error
        answer = Failure(call.number, told, traceback.format_exc())
    try:
        data = pickle.dumps(answer)
        if isinstance(answer, Failure):
            pickle.loads(
                data
            )  # exceptions whose arguments do not fit their constructor fail when unpickled
    except Exception as error:
        text = answer.traceback if isinstance(answer, Failure) else traceback.format_exc()
        what = (
            repr(answer.error)
            if isinstance(answer, Failure)
            else f"its result cannot be pickled: {error}"
        )
        data = pickle.dumps(Failure(call.number, TestbedError(f"{call.qualname}: {what}"), text))
    connection.send_bytes(data)


def _function(call: Call) -> Callable[..., Any]:
    found: Any = importlib.import_module(call.module)
    for name in call.qualname.split("."):
        found = getattr(found, name)
    function: Callable[..., Any] = found
    return function


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
