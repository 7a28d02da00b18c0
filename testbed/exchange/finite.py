"""Embeddings that are not finite: one error for all exchanges."""

from collections.abc import Collection

import numpy as np

from testbed.comm.group import GroupSpec
from testbed.comm.lanes import NativeLanes
from testbed.core.errors import CollectiveError
from testbed.exchange.interface import Embeddings
from testbed.protocol.lanes import Lanes

__all__ = ["all_finite", "not_finite"]

_absmax = NativeLanes(Lanes(32, 1)).absmax


def all_finite(x: Embeddings) -> bool:
    """Tell whether all values of a C-contiguous array are finite."""
    return bool(np.isfinite(_absmax(x.ctypes.data, x.size)))


def not_finite(group: GroupSpec, ranks: Collection[int]) -> CollectiveError:
    """Return the error that says which ranks' embeddings are not finite."""
    names = ", ".join(f"rank {rank} ({group.members[rank].name})" for rank in sorted(ranks))
    return CollectiveError(f"exchange: {names} has embeddings that are not finite")
