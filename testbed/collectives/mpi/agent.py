"""mpirun's remote shell, which enters a host's namespaces instead: ``mpi_agent.py HOST
COMMAND...``.

It is started once for mpirun itself, and by mpirun once for each of its daemons. It does not import
the package.
"""

import ctypes
import os
import signal
import socket
import sys

PIDS_VARIABLE = "TESTBED_MPI_PIDS"
"""Environment: the process that holds each host's namespaces, ``h1=123,h2=124``."""

CLONE_NEWUTS = 0x04000000  # linux/sched.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Run COMMAND, a shell command line, in the namespaces of HOST; die with the parent."""
    host, command = sys.argv[1], " ".join(sys.argv[2:])
    pids = dict(entry.split("=") for entry in os.environ[PIDS_VARIABLE].split(","))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # Open MPI distinguishes nodes by hostname, and the hosts of a fabric share the machine's.
    if libc.unshare(CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUTS)")
    socket.sethostname(host)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them
    os.execvp("mnexec", ["mnexec", "-a", pids[host], "sh", "-c", f"exec {command}"])


if __name__ == "__main__":
    main()
