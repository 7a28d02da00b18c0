"""The quality of a partition: how much has to be sent, and how evenly work is distributed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.gnn.partition.partitioner import Owners

__all__ = ["Quality", "measure"]


@dataclass(frozen=True)
class Quality:
    """Numbers of a partition.

    :param edge_cut: Undirected edges whose ends have different owners.
    :param edge_cut_share: The same as a share of all edges; 0 where there are none.
    :param replication_factor: Mean over vertices of the number of parts that hold it, as its owner
        or as a neighbour of what they own; 1 where nothing is cut (Gonzalez et al., PowerGraph,
        OSDI 2012, section 5).
    :param vertex_balance: Vertices of the largest part, divided by the mean.
    :param edge_balance: The same for adjacency entries, each counted at the vertex that aggregates
        it.
    """

    edge_cut: int
    edge_cut_share: float
    replication_factor: float
    vertex_balance: float
    edge_balance: float


def measure(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], owners: Owners, parts: int
) -> Quality:
    """Measure a partition.

    :param indptr: int64, shape (n + 1,), of a symmetric adjacency without repeats: each edge has
        two entries in `indices`.
    :param owners: Shape (n,), 0..parts-1.
    """
    n = len(owners)
    holder = np.repeat(owners, np.diff(indptr)).astype(np.int64)
    cut = holder != owners[indices]
    copies = len(
        np.unique(holder[cut] * n + indices[cut])
    )  # pairs of a part and a vertex that it holds but does not own
    return Quality(
        edge_cut=int(cut.sum()) // 2,
        edge_cut_share=float(cut.mean()) if len(cut) else 0.0,
        replication_factor=(n + copies) / n,
        vertex_balance=_balance(np.bincount(owners, minlength=parts)),
        edge_balance=_balance(np.bincount(holder, minlength=parts)),
    )


def _balance(counts: NDArray[np.intp]) -> float:
    return float(counts.max() / counts.mean()) if counts.any() else 1.0
