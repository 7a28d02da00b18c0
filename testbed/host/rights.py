"""What the testbed needs of the process it runs in: root, tools of the PATH of root, open files."""

import os
import resource

from testbed.core.errors import FabricError

__all__ = ["add_system_tools", "allow_many_files", "require_root"]

_FILES = 65_536
_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def require_root() -> None:
    """Refuse any other user before anything is created that would have to be removed again.

    :raises FabricError: This is not root.
    """
    if os.geteuid() != 0:
        raise FabricError("namespaces and interfaces need root: run it with sudo")


def allow_many_files() -> None:
    """Let this process and its children open as many files as an unprivileged process may, up to
    `_FILES`: a fabric of 32 hosts needs more than the usual 1024, or what a shell allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def add_system_tools() -> None:
    """Look for programs, such as tc, in the sbin folders as well, which `su` and cron leave out of
    PATH; after those that are in it. What this process starts does so, too.
    """
    known = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = [each for each in _FOLDERS if each not in known]
    os.environ["PATH"] = os.pathsep.join([*known, *missing])
