"""``python -m testbed.worker.fork --connect PATH [MODULE ...]``: import modules, then fork a worker whenever told to.

What it is told comes by standard input, a socket, as a line of JSON; each gets a line with a number for an answer.
"""

import argparse
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from testbed.worker.serve import die_with_parent, serve

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000  # linux/sched.h


def main() -> None:
    """Fork workers until the controller closes the socket; be one of them."""
    parser = argparse.ArgumentParser(prog="python -m testbed.worker.fork", description=__doc__)
    parser.add_argument("--connect", type=Path, required=True, metavar="PATH", help="the controller's socket")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="what to import first")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    for module in arguments.modules:
        with suppress(ImportError):  # who calls a function that needs it is told
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that no collection in a worker writes to the pages that all share
    if name := born():
        faulthandler.enable()  # a crash inside a C library leaves its Python stack in the log
        serve(arguments.connect, name)


def born() -> str | None:
    """Return in each worker, with its name, and in the nursery at the end of all questions, with `None`."""
    with socket.socket(fileno=os.dup(0)) as wire, wire.makefile("rw") as lines:
        for line in lines:
            question: dict[str, Any] = json.loads(line)
            if "ended" in question:
                _, status = os.waitpid(question["ended"], 0)
                answer = os.waitstatus_to_exitcode(status)
            elif answer := os.fork():
                os.setpgid(answer, answer)
            else:
                break
            lines.write(f"{answer}\n")
            lines.flush()
        else:
            return None
    settle(question["holder"], Path(question["log"]))
    return str(question["name"])


def settle(holder: int, log: Path) -> None:
    """Move into the namespaces of a process, with output of one's own: what ``mnexec -a`` does."""
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


if __name__ == "__main__":
    main()
