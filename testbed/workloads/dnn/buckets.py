"""Cutting a gradient into buckets as PyTorch's DistributedDataParallel does.

DDP sums gradients in the order in which backward computes them, which is the reverse of the order
of definition, in buckets of whole tensors. A bucket is closed by the tensor that reaches its limit,
which is smaller for the first one, so that summing begins early
(``torch.distributed._compute_bucket_assignment_by_size``, as `Reducer.rebuild_buckets` calls it
after the first step; the tests compare with it).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

__all__ = ["FIRST_BYTES", "Bucket", "make_buckets", "work_of"]

FIRST_BYTES = 1 << 20
"""``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES``."""

FLOAT = 4


@dataclass(frozen=True)
class Bucket:
    """Tensors that are summed together, consecutive in the gradient vector.

    :param start: Its first element; `end`: behind its last.
    """

    start: int
    end: int


def make_buckets(tensors: Sequence[int], limit: int, first: int = FIRST_BYTES) -> list[Bucket]:
    """Return the buckets in the order in which they are summed.

    :param tensors: Elements of each tensor, in the order of definition; float32.
    :param limit: Bytes that close a bucket; `first`: those that close the first one.
    """
    buckets: list[Bucket] = []
    start = end = 0
    for number in range(len(tensors) - 1, -1, -1):
        end += tensors[number]
        if FLOAT * (end - start) >= (limit if buckets else first) or number == 0:
            buckets.append(Bucket(start, end))
            start = end
    return buckets


def work_of(amounts: Sequence[int], total: int) -> list[int]:
    """Divide `total` units of work in proportion to `amounts`; the parts add up to it."""
    whole = sum(amounts)
    marks = [total * done // whole for done in accumulate(amounts, initial=0)]
    return [end - start for start, end in pairwise(marks)]
