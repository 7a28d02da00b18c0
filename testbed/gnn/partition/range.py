"""``range``: each part owns consecutive vertices."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.partition.partitioner import Owners, Partitioner

__all__ = ["Range"]


class Range(Partitioner):
    """Parts differ by at most one vertex. Good if a graph's numbering follows its structure, as in
    crawled pages.
    """

    name: ClassVar[str] = "range"

    def assign(
        self, vertices: NDArray[np.int64], indptr: NDArray[np.int64], indices: NDArray[np.int32]
    ) -> Owners:
        """See `Partitioner.assign`."""
        return (vertices * self.parts // self.num_vertices).astype(np.int32)
