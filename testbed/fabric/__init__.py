"""Mininet hosts, links and switches, and their clean-up."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.fabric.core import Fabric

__all__ = ["Fabric"]


def __getattr__(name: str) -> Any:
    """Import Mininet and pyroute2 on first use: workers use modules of this package that need
    neither.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from testbed.fabric import core

    return getattr(core, name)
