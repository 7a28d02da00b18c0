"""Which MTUs in-kernel backends can have on this machine."""

from collections.abc import Iterable
from typing import Any

from testbed.core.errors import SpecError
from testbed.core.registry import Registry
from testbed.plan import MAX_LINEAR_MTU, MIN_MTU
from testbed.probes import Level, find

__all__ = ["check_mtu"]


def check_mtu(mtu: int, names: Iterable[str], key: str, registry: Registry[Any]) -> None:
    """Check that frames of a fabric's MTU suit its backends.

    :param key: What the MTU was given to, for the error: an option, or a scenario's key.
    :param registry: What they are names of.
    :raises SpecError: Frames would have fragments, which the kernel does not let programs have; not
        where that cannot be tried, as by a user who only plans a run.
    """
    if mtu <= MAX_LINEAR_MTU:
        return
    for name in names:
        if not registry[name].in_kernel:
            continue
        found = find("multi-buffer XDP")
        if found.level is not Level.OK and not found.blocked:
            raise SpecError(
                f"{key}: {mtu}: must be {MIN_MTU} to {MAX_LINEAR_MTU} with {name} here: {found}"
            )
