"""The interface of all backends: open, connect, reduce, count, close."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from testbed.comm.arrays import check_array
from testbed.comm.collective import Collective
from testbed.comm.group import GroupSpec
from testbed.core.errors import SpecError

__all__ = ["PHASES", "Backend", "Tensor", "float32_sum_bound"]

Tensor = NDArray[np.float32]

PHASES = ("quantize", "communicate", "wait", "dequantize")
"""The parts of a collective's time. A backend leaves parts at zero that it does not have or cannot
measure.
"""


def float32_sum_bound(absmax: float, ranks: int) -> float:
    """Largest error of a float32 sum of `ranks` values of at most `absmax` in magnitude, in any
    order.

    ``gamma(n-1) * n * absmax`` with ``gamma(k) = k*u / (1 - k*u)`` and ``u = 2**-24``
    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
    """
    k = (ranks - 1) * 2.0**-24
    return k / (1 - k) * ranks * absmax


class Backend(Collective[GroupSpec]):
    """An all-reduce among the ranks of one group. One thread at a time uses a backend."""

    PHASES = PHASES

    def all_reduce(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """Sum `tensor` over all ranks; all ranks call it with the same shape.

        :param tensor: C-contiguous float32 array of any shape, at most `spec.capacity` elements;
            unchanged unless it is also `out`.
        :param out: Where the sum goes: a writable array of the same shape, `tensor` itself, or None
            for a new one.
        :returns: `out`.
        :raises SpecError: An array has the wrong type, layout, shape or size, or `out` is
            read-only; nothing has been sent.
        :raises CollectiveError: The collective could not complete; the text names the rank.
        """
        check_array("all_reduce", "tensor", tensor)
        if out is None:
            out = np.empty(tensor.shape, np.float32)
        check_array("all_reduce", "out", out, written=True)
        if out.shape != tensor.shape:
            raise SpecError(
                f"all_reduce: out has shape {out.shape}: must be the tensor's, {tensor.shape}"
            )
        if tensor.size > self.spec.capacity:
            raise SpecError(
                f"all_reduce: tensor has {tensor.size} elements: must be at most the group's "
                f"capacity, {self.spec.capacity}"
            )
        if (
            out is not tensor
            and np.may_share_memory(out, tensor)
            and out.ctypes.data != tensor.ctypes.data
        ):
            raise SpecError(
                "all_reduce: out overlaps tensor: must be the same memory or memory of its own"
            )
        self._all_reduce(np.asarray(tensor).reshape(-1), np.asarray(out).reshape(-1))
        return out

    @abstractmethod
    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        """Implement `all_reduce` for checked, flat arrays of equal length, which may be 0."""

    def error_bound(self, absmax: float) -> float:
        """Largest absolute error of an element of the sum, if no rank's element exceeds `absmax` in
        magnitude.
        """
        return float32_sum_bound(absmax, self.spec.size)
