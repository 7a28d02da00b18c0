"""The collectives that are measured like an all-reduce: which method of a backend, on which part of
a tensor, and what nccl-tests makes of its time. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from testbed.comm.backend import Backend, Tensor

__all__ = ["ALL_REDUCE", "OPERATIONS", "Operation"]


@dataclass(frozen=True)
class Operation:
    """One collective. Its size is that of the whole tensor, the larger of input and output, as in
    nccl-tests.

    :param command: The bench's name.
    :param title: What it is called in texts.
    :param method: The method of `testbed.comm.backend.Backend`.
    :param blocks: Whether the tensor has a block for each rank; `count` is that of a block then.
    :param reduces: Whether values are summed.
    :param cost: What a rank has to send at least, in ``(n-1) / n`` of the tensor: the factor of the
        bus bandwidth (nccl-tests, doc/PERFORMANCE.md).
    :param rooted: Whether rank 0 gives the tensor, and sends all of it: bus and algorithm bandwidth
        are the same.
    """

    command: str
    title: str
    method: str
    blocks: bool
    reduces: bool
    cost: int
    rooted: bool = False

    def busbw(self, size: int, seconds: float, ranks: int) -> float:
        """Bus bandwidth in GB/s (1e9 bytes) of a tensor of so many bytes."""
        if self.rooted:
            return size / seconds / 1e9
        return size / seconds / 1e9 * self.cost * (ranks - 1) / ranks

    def count(self, size: int, ranks: int, width: int = 4) -> int:
        """Elements of `width` bytes, as nccl-tests counts them."""
        return size // width // (ranks if self.blocks else 1)

    def fit(self, size: int, ranks: int, width: int = 4) -> int:
        """The largest size up to one that can be measured: whole elements of `width` bytes and
        whole words of 4, in blocks of equal length.
        """
        unit = max(width, 4) * (ranks if self.blocks else 1)
        return size // unit * unit

    def own(self, whole: NDArray[np.generic], rank: int, ranks: int) -> slice:
        """A rank's block of the whole tensor; all of it, if it has no blocks."""
        share = len(whole) // ranks
        return slice(rank * share, (rank + 1) * share) if self.blocks else slice(0, len(whole))

    def output(self, whole: NDArray[np.generic], rank: int, ranks: int) -> slice:
        """The part of the whole tensor that a rank has afterwards."""
        return self.own(whole, rank, ranks) if self.reduces else slice(0, len(whole))

    def run(self, backend: Backend, source: Tensor, buffer: Tensor, op: str = "sum") -> None:
        """Do it.

        :param source: The whole tensor; this rank gives all of it, or its block.
        :param buffer: The whole tensor that this rank gets, or has its block of; `source` itself:
            in place.
        :param op: One of `testbed.comm.backend.OPS`.
        """
        ranks = backend.spec.rank, backend.spec.size
        if self.rooted:
            if source is not buffer and not backend.spec.rank:
                buffer[:] = source
            backend.broadcast(buffer, 0)
        elif self.reduces:
            target = buffer[self.own(buffer, *ranks)]
            getattr(backend, self.method)(source, target, op)
        else:
            getattr(backend, self.method)(source[self.own(source, *ranks)], buffer)


ALL_REDUCE = Operation("allreduce", "all-reduce", "all_reduce", False, True, 2)
OPERATIONS = {
    operation.command: operation
    for operation in (
        ALL_REDUCE,
        Operation("reducescatter", "reduce-scatter", "reduce_scatter", True, True, 1),
        Operation("allgather", "all-gather", "all_gather", True, False, 1),
        Operation("bcast", "broadcast", "broadcast", False, False, 1, rooted=True),
    )
}
