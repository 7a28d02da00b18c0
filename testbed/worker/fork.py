"""``python -m testbed.worker.fork --connect PATH``: import modules and fork workers on request.

Each request is a line of JSON on standard input, a socket, and its answer is a line with a number.
"""

import argparse
import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import testbed.host.cpus  # noqa: F401  # before workers are pinned
from testbed.core.errors import limit_reached
from testbed.worker.serve import die_with_parent, serve

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000  # linux/sched.h


def main() -> None:
    """Fork workers until the controller closes the socket; each worker continues in here."""
    parser = argparse.ArgumentParser(prog="python -m testbed.worker.fork", description=__doc__)
    parser.add_argument(
        "--connect", type=Path, required=True, metavar="PATH", help="the controller's socket"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    if name := born():
        faulthandler.enable()  # a crash inside a C library leaves its Python stack in the log
        serve(arguments.connect, name)


def born() -> str | None:
    """Return the name in each worker, and `None` in the forkserver when there is nothing more to
    do.
    """
    with socket.socket(fileno=os.dup(0)) as wire, wire.makefile("rw") as lines:
        for line in lines:
            order: dict[str, Any] = json.loads(line)
            answer = 0
            if "modules" in order:
                learn(order["path"], order["modules"])
            elif "ended" in order:
                _, status = os.waitpid(order["ended"], 0)
                answer = os.waitstatus_to_exitcode(status)
            else:
                answer = os.fork()
                if answer == 0:
                    break
            lines.write(f"{answer}\n")
            lines.flush()
        else:
            return None
    settle(order["holder"], Path(order["log"]))
    return str(order["name"])


def learn(path: list[str], modules: list[str]) -> None:
    """Import modules for all future workers."""
    sys.path.extend(entry for entry in path if entry not in sys.path)
    for module in modules:
        with suppress(ImportError):  # a call that needs the module reports the error
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that garbage collection in a worker does not write to the shared pages


def settle(holder: int, log: Path) -> None:
    """Move into the namespaces of a process and redirect the output, as ``mnexec -a`` does."""
    # A Ctrl-C at the terminal is for the controller. This must not be a new session: autogroups
    # (sched(7)) give each session its share, and ranks that wait with sched_yield would only yield
    # to themselves.
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(null)
    directory = Path.cwd()
    pidfd = os.pidfd_open(holder)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(pidfd, CLONE_NEWNET | CLONE_NEWNS):  # the latter moves to the root directory
        raise OSError(ctypes.get_errno(), "setns")
    os.close(pidfd)
    os.chdir(directory)


def ended(function: Callable[[], None]) -> int:
    """Call a function as an interpreter runs a program; return the exit status."""
    try:
        function()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else leaving.code is not None
    except BaseException as error:
        print(limit_reached(error) or traceback.format_exc(), file=sys.stderr)
        return 1
    else:
        return 0


if __name__ == "__main__":
    status = ended(main)
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: tearing down the imported modules dirties all of their pages, and takes longer
    # than most tasks.
    os._exit(status)
