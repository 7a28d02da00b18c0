"""``fennel``: each vertex in turn goes where most of its neighbours are, if that part is not too
full (Tsourakakis et al., "FENNEL: Streaming Graph Partitioning for Massive Scale Graphs", WSDM
2014).
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.partition.partitioner import Owners, Partitioner

__all__ = ["Fennel"]


class Fennel(Partitioner):
    """The masters of the policies fec, gvc and svc: one pass over vertices, with the edges' number
    known.
    """

    name: ClassVar[str] = "fennel"
    streams: ClassVar[bool] = False

    def assign(
        self, vertices: NDArray[np.int64], indptr: NDArray[np.int64], indices: NDArray[np.int32]
    ) -> Owners:
        """Choose the owners of all vertices at once.

        :raises SpecError: These are not all vertices in ascending order.
        """
        # Imported here because policies import partitioners: METIS is one of them.
        from testbed.gnn.streaming import loops
        from testbed.gnn.streaming.bounds import exact_bounds
        from testbed.gnn.streaming.edge_policy import State

        n = self.num_vertices
        if not np.array_equal(vertices, np.arange(n)):
            raise SpecError(
                f"partitioner fennel: {len(vertices)} vertices of {n} came: must come all at once,"
                " ascending"
            )
        state = State(
            num_vertices=n,
            num_edges=len(indices),
            bounds=exact_bounds(np.diff(indptr), self.parts),
            masters=np.full(n, 0xFFFF, np.uint16),
            nodes=np.zeros(self.parts),
            edges=np.zeros(self.parts),
            indices=np.ascontiguousarray(indices, np.uint32),
        )
        loops.fennel(state, 0, n, np.ascontiguousarray(indptr, np.int64), (0, n))
        return state.masters.astype(np.int32)
