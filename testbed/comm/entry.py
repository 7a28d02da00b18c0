"""What a registry knows about a backend or an exchange before its module is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.plan import Datapath

__all__ = ["Entry", "entry_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where to find a backend or an exchange, and its properties.

    :param path: ``module:class``.
    :param needs: The datapath that the fabric has to be set to (the class says the same).
    :param summary: One line for help texts.
    :param splits: Whether its times separate waiting for peers from moving data, which some
        libraries do not report.
    """

    path: str
    needs: Datapath
    summary: str
    splits: bool = True

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.path.partition(":")[0]

    @property
    def in_kernel(self) -> bool:
        """Whether it works inside the kernel instead of over sockets."""
        return self.needs == "xdp"


def entry_of(found: Any) -> Entry:
    """Make the entry of a class from another package."""
    summary = (found.__doc__ or "").strip().partition("\n")[0]
    return Entry(f"{found.__module__}:{found.__qualname__}", found.needs, summary)
