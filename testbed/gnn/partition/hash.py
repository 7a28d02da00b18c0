"""``hash``: a vertex's part is a hash of its number."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.mix import GOLDEN, mix
from testbed.gnn.partition.partitioner import Owners, Partitioner

__all__ = ["Hash"]


class Hash(Partitioner):
    """Ignores edges: it cuts a share of 1 - 1/parts of them, and part sizes differ only by
    chance.
    """

    name: ClassVar[str] = "hash"

    def assign(
        self, vertices: NDArray[np.int64], indptr: NDArray[np.int64], indices: NDArray[np.int32]
    ) -> Owners:
        """See `Partitioner.assign`."""
        drawn = mix(vertices.astype(np.uint64) + np.uint64((self.seed + 1) * GOLDEN % 2**64))
        return (drawn % np.uint64(self.parts)).astype(np.int32)
