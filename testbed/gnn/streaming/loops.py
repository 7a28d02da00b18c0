"""The partitioner's loops in C (``testbed/native/partition.c``), for numpy arrays.

Calls drop the interpreter's lock, so threads run them side by side.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.streaming.edge_policy import Degrees, Masters, State, Vertices
from testbed.gnn.streaming.policies import GAMMA, HUB, alpha, grid_columns
from testbed.kernel.abi import Struct, constant, dtype
from testbed.native import load

__all__ = [
    "Assigner",
    "Hdrf",
    "adopt",
    "count_degrees",
    "draw_rmat",
    "fennel",
    "group",
    "prepare",
    "scatter",
]

_P, _U32, _U64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "partition_assign": (_U64, [_P, _U32, _P, _P, _U64, _P, _P]),
    "partition_scatter": (None, [_U32, _P, _P, _P, _U64, _P, _P, _P, _P]),
    "partition_degrees": (None, [_P, _U64, _P]),
    "partition_group": (None, [_P, _P, _U64, _U64, _U64, _P, _P]),
    "partition_fennel": (None, [_P]),
    "partition_hdrf": (None, [_P, _P, _P, _U64, _P]),
    "partition_adopt": (None, [_P, _P, _P, _U64, _P]),
    "rmat_edges": (None, [_P, _U64, _U64, _U64, _P, _P]),
}


@cache
def _function(name: str) -> Any:
    function = getattr(load("partition"), name)
    function.restype, function.argtypes = _SIGNATURES[name]
    return function


def prepare() -> None:
    """Compile and load, so that this is not part of a measurement."""
    for name in _SIGNATURES:
        _function(name)
    dtype("partition")


class Assigner:
    """Chooses the owners of edges, and notes which vertices each part needs.

    :param owner: A name of ``enum partition_owner``, or ``given``.
    :param masters: Shape (n,), and `degrees` likewise, or None: kept, and read in later calls.
    :param held: uint64, shape (n, words): bit h of a row is set if part h holds a mirror of it.
    """

    def __init__(
        self,
        owner: str,
        parts: int,
        masters: Masters,
        degrees: Degrees | None,
        held: NDArray[np.uint64],
    ) -> None:
        self._arrays = masters, degrees, held  # kept alive because the structure points to them
        self._how, self._parts = constant(f"PARTITION_{owner.upper()}"), parts
        self._struct = Struct(
            "partition",
            parts=parts,
            words=held.shape[1],
            columns=grid_columns(parts),
            hub=HUB,
            masters=masters.ctypes.data,
            degrees=0 if degrees is None else degrees.ctypes.data,
            held=held.ctypes.data,
        )

    def assign(
        self, src: Vertices, dst: Vertices, owners: Masters | None = None
    ) -> tuple[Masters, NDArray[np.uint64], int]:
        """Return the owners of edges, how many each part has, and how many are cut.

        :param owners: Those of ``given``.
        """
        if owners is None:
            owners = np.empty(len(src), np.uint16)
        counts = np.zeros(self._parts, np.uint64)
        cut = _function("partition_assign")(
            self._struct.address,
            self._how,
            src.ctypes.data,
            dst.ctypes.data,
            len(src),
            owners.ctypes.data,
            counts.ctypes.data,
        )
        return owners, counts, cut


def scatter(
    src: Vertices, dst: Vertices, owners: Masters, counts: NDArray[np.uint64]
) -> tuple[Vertices, Vertices]:
    """Return edges in the order of their owners.

    :param counts: uint64: edges of each part.
    """
    to_src, to_dst = np.empty_like(src), np.empty_like(dst)
    places = np.empty_like(counts)
    _function("partition_scatter")(
        len(counts),
        src.ctypes.data,
        dst.ctypes.data,
        owners.ctypes.data,
        len(src),
        counts.ctypes.data,
        places.ctypes.data,
        to_src.ctypes.data,
        to_dst.ctypes.data,
    )
    return to_src, to_dst


def count_degrees(ends: Vertices, degrees: Degrees) -> None:
    """Add how often each vertex occurs; threads may add to the same array."""
    _function("partition_degrees")(ends.ctypes.data, len(ends), degrees.ctypes.data)


def group(
    src: Vertices, dst: Vertices, first: int, last: int
) -> tuple[NDArray[np.int64], Vertices]:
    """Return the adjacency (indptr, indices) of vertices first..last-1, which all sources are."""
    indptr = np.zeros(last - first + 2, np.int64)
    indices = np.empty(len(dst), np.uint32)
    _function("partition_group")(
        src.ctypes.data,
        dst.ctypes.data,
        len(src),
        first,
        last - first,
        indptr.ctypes.data,
        indices.ctypes.data,
    )
    return indptr[:-1], indices


def fennel(
    state: State,
    first: int,
    last: int,
    indptr: NDArray[np.int64],
    around: tuple[int, int],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Choose masters by Fennel's score, into ``state.masters``.

    :param indptr: int64, shape (last - first + 1,), into ``state.indices``.
    :param around: The vertices that threads assign in this round; first..last-1 are this call's.
    :returns: Nodes and edges of each part, this call's added to the state's, which stay as
        they are.
    """
    parts = len(state.nodes)
    nodes, edges = state.nodes.copy(), state.edges.copy()
    penalties, neighbours = np.zeros(parts), np.zeros(parts, np.uint32)
    struct = Struct(
        "fennel",
        parts=parts,
        hub=HUB,
        first=first,
        last=last,
        round_first=around[0],
        round_last=around[1],
        weight=GAMMA * alpha(state.num_vertices, state.num_edges, parts),
        per_edge=state.num_vertices / max(state.num_edges, 1),
        indptr=indptr.ctypes.data,
        indices=state.indices.ctypes.data,
        bounds=state.bounds.ctypes.data,
        masters=state.masters.ctypes.data,
        nodes=nodes.ctypes.data,
        edges=edges.ctypes.data,
        penalties=penalties.ctypes.data,
        neighbours=neighbours.ctypes.data,
    )
    _function("partition_fennel")(struct.address)
    return nodes, edges


class Hdrf:
    """Chooses the owners of a stream of edges by HDRF's score: see `policies.Hdrf`.

    :param masters: Shape (n,), which it changes; `held`: as `Assigner`'s, likewise.
    :param degrees: Shape (n,), zeros.
    """

    def __init__(
        self, parts: int, masters: Masters, held: NDArray[np.uint64], degrees: Degrees
    ) -> None:
        sizes = np.zeros(parts, np.uint64)
        self._arrays = masters, held, degrees, sizes  # kept alive
        self._struct = Struct(
            "hdrf",
            parts=parts,
            words=held.shape[1],
            masters=masters.ctypes.data,
            held=held.ctypes.data,
            degrees=degrees.ctypes.data,
            sizes=sizes.ctypes.data,
        )

    def choose(self, src: Vertices, dst: Vertices) -> Masters:
        """Return the owners of the next edges."""
        owners = np.empty(len(src), np.uint16)
        _function("partition_hdrf")(
            *(self._struct.address, src.ctypes.data, dst.ctypes.data, len(src), owners.ctypes.data)
        )
        return owners


def adopt(masters: Masters, src: Vertices, dst: Vertices, owners: Masters) -> None:
    """Let the masters of vertices without one be the owners of their first edges."""
    _function("partition_adopt")(
        masters.ctypes.data, src.ctypes.data, dst.ctypes.data, len(src), owners.ctypes.data
    )


def draw_rmat(
    scale: int, seed: int, shares: tuple[float, float, float], first: int, step: int, count: int
) -> tuple[Vertices, Vertices]:
    """Return edges first, first + step, ... of an R-MAT graph; see `testbed.gnn.streaming.rmat`.

    :param shares: Of the first three quadrants.
    """
    a, b, c = (round(65536 * share) for share in shares)
    struct = Struct("rmat", seed=seed, scale=scale, a=a, ab=a + b, abc=a + b + c)
    src, dst = np.empty(count, np.uint32), np.empty(count, np.uint32)
    _function("rmat_edges")(struct.address, first, step, count, src.ctypes.data, dst.ctypes.data)
    return src, dst
