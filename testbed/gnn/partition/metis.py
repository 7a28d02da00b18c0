"""``metis``: multilevel partitioning for few cut edges (Karypis and Kumar, SIAM J. Sci. Comput.
20(1), 1998), by pymetis; and ``metis-balanced``, with several balances at once (Karypis and Kumar,
SC 1998).
"""

import ctypes
from importlib import import_module
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.gnn.partition.partitioner import Owners, Partitioner

__all__ = ["Metis", "MetisBalanced"]

_METIS_OK, _METIS_NOPTIONS = 1, 40


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
        if not np.array_equal(vertices, np.arange(self.num_vertices)):
            raise SpecError(
                f"partitioner metis: {len(vertices)} vertices of {self.num_vertices} came: must"
                " come all at once, ascending"
            )
        if self.parts == 1:
            return np.zeros(self.num_vertices, np.int32)
        return self._cut(indptr, indices)

    def _cut(self, indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Owners:
        import pymetis  # imported here because other partitioners do not need it

        options = pymetis.Options(seed=self.seed % 2**31)
        adjacency = pymetis.CSRAdjacency(indptr, indices)
        _cut, parts = pymetis.part_graph(self.parts, adjacency, options=options)
        return np.asarray(parts, np.int32)


class MetisBalanced(Metis):
    """Also balances edges and training vertices, each to about 3 %, as DistDGL does (Zheng et al.,
    IA3 2020, section 5.2).
    """

    name: ClassVar[str] = "metis-balanced"

    def _cut(self, indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Owners:
        # METIS's own function (METIS manual 5.1, section 5.8), which pymetis brings along but calls
        # with one weight a vertex.
        import pymetis

        kind = np.dtype(pymetis.zero_copy_dtype())
        weights = [np.ones(self.num_vertices), np.diff(indptr)]
        if self.training is not None and len(self.training):
            weights.append(np.bincount(self.training, minlength=self.num_vertices))
        options = np.full(_METIS_NOPTIONS, -1, kind)
        options[int(pymetis.OptionKey.SEED)] = self.seed % 2**31
        of = {
            name: np.ascontiguousarray(value, kind)
            for name, value in {
                "vertices": self.num_vertices,
                "constraints": len(weights),
                "indptr": indptr,
                "indices": indices,
                "weights": np.stack(weights, axis=1),
                "parts": self.parts,
                "cut": 0,
                "owners": np.zeros(self.num_vertices),
            }.items()
        }
        at = {name: ctypes.c_void_p(array.ctypes.data) for name, array in of.items()}
        metis = ctypes.CDLL(import_module("pymetis._internal").__file__)
        status = metis.METIS_PartGraphKway(
            *(at["vertices"], at["constraints"], at["indptr"], at["indices"], at["weights"]),
            *(None, None, at["parts"], None, None),  # to 3 %
            *(ctypes.c_void_p(options.ctypes.data), at["cut"], at["owners"]),
        )
        if status != _METIS_OK:
            raise SpecError(f"partitioner {self.name}: METIS returned {status}")
        return of["owners"].astype(np.int32)
