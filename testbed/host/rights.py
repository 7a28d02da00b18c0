"""What an operation on the machine's network needs: root, and the tools of root's PATH."""

import os

from testbed.core.errors import FabricError

__all__ = ["add_system_tools", "require_root"]

_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def require_root() -> None:
    """Refuse any other user before anything is created that would have to be removed again.

    :raises FabricError: This is not root.
    """
    if os.geteuid() != 0:
        raise FabricError("namespaces and interfaces need root: run it with sudo")


def add_system_tools() -> None:
    """Look for programs, such as tc, in the sbin folders as well, which `su` and cron leave out of
    PATH; after those that are in it. What this process starts does so, too.
    """
    known = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = [each for each in _FOLDERS if each not in known]
    os.environ["PATH"] = os.pathsep.join([*known, *missing])
