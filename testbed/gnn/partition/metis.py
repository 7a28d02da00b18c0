"""``metis``: multilevel partitioning for few cut edges (Karypis and Kumar, SIAM J. Sci. Comput.
20(1), 1998), by pymetis.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.partition.partitioner import Owners, Partitioner

__all__ = ["Metis"]


class Metis(Partitioner):
    """Sees the whole graph, which has to be symmetric and without loops; balances
    vertices to 3 %.
    """

    name: ClassVar[str] = "metis"
    streams: ClassVar[bool] = False

    def assign(
        self, vertices: NDArray[np.int64], indptr: NDArray[np.int64], indices: NDArray[np.int32]
    ) -> Owners:
        """Choose the owners of all vertices at once.

        :raises SpecError: These are not all vertices in ascending order.
        """
        import pymetis  # imported here because other partitioners do not need it

        if not np.array_equal(vertices, np.arange(self.num_vertices)):
            raise SpecError(
                f"partitioner metis: {len(vertices)} vertices of {self.num_vertices} came: must"
                " come all at once, ascending"
            )
        if self.parts == 1:
            return np.zeros(self.num_vertices, np.int32)
        options = pymetis.Options(seed=self.seed % 2**31)
        adjacency = pymetis.CSRAdjacency(indptr, indices)
        _cut, parts = pymetis.part_graph(self.parts, adjacency, options=options)
        return np.asarray(parts, np.int32)
