"""What a registry knows about a backend or an exchange before its module is imported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.comm.options import DATATYPES, FLOAT32
from testbed.core.errors import SpecError

if TYPE_CHECKING:
    from testbed.core.registry import Registry
    from testbed.plan import Datapath

__all__ = ["Entry", "check_generic", "entry_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where to find a backend or an exchange, and its properties.

    :param path: ``module:class``.
    :param needs: The datapath that the fabric has to be set to (the class says the same).
    :param summary: One line for help texts.
    :param splits: Whether its times separate waiting for peers from moving data, which some
        libraries do not report.
    :param generic: Whether its programs also work in the stack (``xdp = "generic"``).
    :param ops: How a backend can reduce values (the class says the same); an exchange has none.
    :param dtypes: The types of values that it reduces, by numpy's names (the class says the same).
    """

    path: str
    needs: Datapath
    summary: str
    splits: bool = True
    generic: bool = True
    ops: tuple[str, ...] = ("sum", "avg")
    dtypes: tuple[str, ...] = FLOAT32

    @property
    def datatypes(self) -> list[str]:
        """The same types by the names in `DATATYPES`."""
        return [name for name, dtype in DATATYPES.items() if dtype in self.dtypes]

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.path.partition(":")[0]

    @property
    def in_kernel(self) -> bool:
        """Whether it works inside the kernel instead of over sockets."""
        return self.needs == "xdp"


def check_generic(xdp: str, names: Iterable[str], key: str, registry: Registry[Any]) -> None:
    """Check that a fabric's XDP programs run where its backends need them.

    :param xdp: Where they run.
    :param key: What that was given to, for the error: an option, or a scenario's key.
    :param registry: What `names` are names of.
    :raises SpecError: One of them works natively only.
    """
    for name in names:
        if xdp == "generic" and not registry[name].generic:
            raise SpecError(f"{key}: {xdp}: must be native with {name}")


def entry_of(found: Any) -> Entry:
    """Make the entry of a class from another package."""
    summary = (found.__doc__ or "").strip().partition("\n")[0]
    ops, dtypes = getattr(found, "OPS", ()), getattr(found, "DTYPES", FLOAT32)
    path = f"{found.__module__}:{found.__qualname__}"
    return Entry(path, found.needs, summary, ops=ops, dtypes=dtypes)
