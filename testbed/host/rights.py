"""A check for operations that only root may perform."""

import os

from testbed.core.errors import FabricError

__all__ = ["require_root"]


def require_root() -> None:
    """Refuse any other user before anything is created that would have to be removed again.

    :raises FabricError: This is not root.
    """
    if os.geteuid() != 0:
        raise FabricError("namespaces and interfaces need root: run it with sudo")
