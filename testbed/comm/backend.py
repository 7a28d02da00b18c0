"""The interface of all backends: open, connect, reduce, scatter and gather, count, close."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from testbed.comm.arrays import check_array
from testbed.comm.collective import Collective
from testbed.comm.group import GroupSpec
from testbed.comm.options import DATATYPES, FLOAT32
from testbed.core.errors import SpecError

__all__ = ["PHASES", "Backend", "Tensor", "sum_bound"]

Tensor = NDArray[Any]
"""The values of a rank: float32, unless a backend has other types."""

_EVERY = tuple(DATATYPES.values())
_WORD = 4  # bytes of a float32

PHASES = ("quantize", "communicate", "wait", "dequantize")
"""The parts of a collective's time. A backend leaves parts at zero that it does not have or cannot
measure.
"""


def sum_bound(absmax: float, ranks: int, dtype: DTypeLike = np.float32) -> float:
    """Largest error of a sum of `ranks` values of at most `absmax` in magnitude, in any order; 0
    for integers.

    ``gamma(n-1) * n * absmax`` with ``gamma(k) = k*u / (1 - k*u)`` and ``u`` half of the distance
    from 1 to the next number: ``2**-24`` for float32
    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
    """
    kind = np.dtype(dtype)
    if kind.kind != "f":
        return 0.0
    k = (ranks - 1) * float(np.finfo(kind).eps) / 2
    return k / (1 - k) * ranks * absmax


class Backend(Collective[GroupSpec]):
    """An all-reduce among the ranks of one group, and the other collectives that a backend has. One
    thread at a time uses a backend.
    """

    PHASES = PHASES
    OPS: ClassVar[tuple[str, ...]] = ("sum", "avg")
    """Those of `OPS` that this backend has; the registry's entry says the same."""
    DTYPES: ClassVar[tuple[str, ...]] = FLOAT32
    """Types of values that it reduces, of those in `DATATYPES`; the registry's entry says the same.
    What is not reduced may have any of them, because it arrives bit by bit.
    """

    def all_reduce(self, tensor: Tensor, out: Tensor | None = None, op: str = "sum") -> Tensor:
        """Reduce `tensor` over all ranks; all ranks call it with the same shape.

        :param tensor: C-contiguous array of any shape and a type of `DTYPES`, at most
            `spec.capacity` float32 elements or as many bytes; unchanged unless it is also `out`.
        :param out: Where the result goes: a writable array of the same shape and type, `tensor`
            itself, or None for a new one.
        :param op: One of `OPS`; integers have no average.
        :returns: `out`.
        :raises SpecError: An array has the wrong type, layout, shape or size, or `out` is
            read-only, or the backend does not have `op`; nothing has been sent.
        :raises CollectiveError: The collective could not complete; the text names the rank.
        """
        check_array("all_reduce", "tensor", tensor, dtypes=self.DTYPES)
        self._check_op("all_reduce", op, tensor)
        if out is None:
            out = np.empty(tensor.shape, tensor.dtype)
        check_array("all_reduce", "out", out, written=True, dtypes=(tensor.dtype.name,))
        if out.shape != tensor.shape:
            raise SpecError(
                f"all_reduce: out has shape {out.shape}: must be the tensor's, {tensor.shape}"
            )
        self._check_room("all_reduce", "tensor", tensor)
        if (
            out is not tensor
            and np.may_share_memory(out, tensor)
            and out.ctypes.data != tensor.ctypes.data
        ):
            raise SpecError(
                "all_reduce: out overlaps tensor: must be the same memory or memory of its own"
            )
        flat, target = np.asarray(tensor).reshape(-1), np.asarray(out).reshape(-1)
        if op in ("sum", "avg"):
            self._all_reduce(flat, target)
        else:
            self._all_reduce_extreme(flat, target, op)
        self._divide(target, op)
        return out

    def _check_op(self, where: str, op: str, tensor: Tensor) -> None:
        ops, what = self.OPS, self.name
        if tensor.dtype.kind != "f":
            ops, what = tuple(each for each in ops if each != "avg"), f"{what} and {tensor.dtype}"
        if op not in ops:
            raise SpecError(f"{where}: op = {op!r}: must be one of {', '.join(ops)} with {what}")

    def _check_room(self, where: str, key: str, array: Tensor) -> None:
        capacity = self.spec.capacity * _WORD // array.itemsize
        if array.size > capacity:
            raise SpecError(
                f"{where}: {key} has {array.size} elements: must be at most the group's capacity,"
                f" {capacity}"
            )

    def _divide(self, sums: Tensor, op: str) -> None:
        if op == "avg":
            np.divide(sums, sums.dtype.type(self.spec.size), out=sums)

    @abstractmethod
    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        """Implement `all_reduce` of sums for checked, flat arrays of equal length, which may be
        0.
        """

    def _all_reduce_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        """Implement `all_reduce` for "min" and "max", if they are in `OPS`."""
        raise SpecError(f"all_reduce: {self.name} has no {op}")

    def reduce_scatter(self, tensor: Tensor, out: Tensor | None = None, op: str = "sum") -> Tensor:
        """Reduce over all ranks the blocks of `tensor` for each rank, and give each rank the result
        of its own; all ranks call it with the same shape.

        :param tensor: As of `all_reduce`, with a block for each rank, in rank order, all of one
            length.
        :param out: Where the result of this rank's block goes: a writable array of as many
            elements, which may be this rank's block of `tensor` itself, or None for a new one.
        :param op: As of `all_reduce`.
        :returns: `out`.
        :raises SpecError: As of `all_reduce`, or the backend has no reduce-scatter.
        :raises CollectiveError: The collective could not complete; the text names the rank.
        """
        check_array("reduce_scatter", "tensor", tensor, dtypes=self.DTYPES)
        self._check_op("reduce_scatter", op, tensor)
        ranks = self.spec.size
        if tensor.size % ranks:
            raise SpecError(
                f"reduce_scatter: tensor has {tensor.size} elements: must be a multiple of the"
                f" number of ranks, {ranks}"
            )
        share = tensor.size // ranks
        if out is None:
            out = np.empty(share, tensor.dtype)
        self._check_blocks("reduce_scatter", "tensor", tensor, "out", out, share, written=True)
        flat, target = tensor.reshape(-1), out.reshape(-1)
        if op in ("sum", "avg"):
            self._reduce_scatter(flat, target)
        else:
            self._reduce_scatter_extreme(flat, target, op)
        self._divide(target, op)
        return out

    def all_gather(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """Give each rank the tensors of all ranks, bit by bit; all ranks call it with the same
        shape.

        :param tensor: C-contiguous array of any shape and a type in `DATATYPES`, of a multiple of 4
            bytes.
        :param out: Where the tensors go, in rank order: a writable array of the same type and as
            many elements, at most `spec.capacity` of float32 or as many bytes, or None for a new
            one. `tensor` may be this rank's block of it.
        :returns: `out`.
        :raises SpecError: As of `all_reduce`, or the backend has no all-gather.
        :raises CollectiveError: The collective could not complete; the text names the rank.
        """
        check_array("all_gather", "tensor", tensor, dtypes=_EVERY)
        if out is None:
            out = np.empty(tensor.size * self.spec.size, tensor.dtype)
        check_array("all_gather", "out", out, written=True, dtypes=(tensor.dtype.name,))
        self._check_blocks("all_gather", "out", out, "tensor", tensor, tensor.size)
        self._all_gather(_words("all_gather", tensor), _words("all_gather", out))
        return out

    @property
    def broadcasts(self) -> bool:
        """Whether the backend has a broadcast: one of another package need not."""
        return type(self)._broadcast is not Backend._broadcast  # noqa: SLF001

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Give each rank the tensor of one, bit by bit, in place; all ranks call it with the same
        shape.

        :param tensor: C-contiguous, writable array of any shape and a type in `DATATYPES`, of a
            multiple of 4 bytes, at most `spec.capacity` float32 elements or as many bytes.
        :param root: The rank whose tensor it is.
        :returns: `tensor`.
        :raises SpecError: As of `all_reduce`, or the backend has no broadcast.
        :raises CollectiveError: The collective could not complete; the text names the rank.
        """
        check_array("broadcast", "tensor", tensor, written=True, dtypes=_EVERY)
        if not 0 <= root < self.spec.size:
            raise SpecError(f"broadcast: root = {root}: must be a rank, 0 to {self.spec.size - 1}")
        self._check_room("broadcast", "tensor", tensor)
        self._broadcast(_words("broadcast", tensor), root)
        return tensor

    def _check_blocks(
        self,
        where: str,
        whole_key: str,
        whole: Tensor,
        key: str,
        block: Tensor,
        share: int,
        written: bool = False,
    ) -> None:
        """Check sizes, and that a block is memory of its own or this rank's part of the whole."""
        check_array(where, key, block, written=written, dtypes=(whole.dtype.name,))
        ranks = self.spec.size
        if (whole.size, block.size) != (share * ranks, share):
            name, found, wanted = (
                (key, block.size, share)
                if block.size != share
                else (whole_key, whole.size, share * ranks)
            )
            raise SpecError(
                f"{where}: {name} has {found} elements: must be {wanted}, with {ranks} ranks"
            )
        self._check_room(where, whole_key, whole)
        mine = whole.ctypes.data + self.spec.rank * share * whole.itemsize
        if np.may_share_memory(whole, block) and block.ctypes.data != mine:
            raise SpecError(
                f"{where}: out overlaps tensor: must be memory of its own, or {key} this rank's"
                f" block of {whole_key}"
            )

    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        """Implement `reduce_scatter` for checked, flat arrays, which may be empty."""
        raise SpecError(f"reduce_scatter: {self.name} has none")

    def _reduce_scatter_extreme(self, tensor: Tensor, out: Tensor, op: str) -> None:
        """Implement `reduce_scatter` for "min" and "max", if they are in `OPS`."""
        raise SpecError(f"reduce_scatter: {self.name} has none")

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        """Implement `broadcast` for the words of a tensor: a checked, flat float32 array, which may
        be empty.
        """
        raise SpecError(f"broadcast: {self.name} has none")

    def _all_gather(self, tensor: Tensor, out: Tensor) -> None:
        """Implement `all_gather` for the words of tensors: checked, flat float32 arrays, which may
        be empty.
        """
        raise SpecError(f"all_gather: {self.name} has none")

    def error_bound(self, absmax: float) -> float:
        """Largest absolute error of an element of the sum of float32, if no rank's element exceeds
        `absmax` in magnitude.
        """
        return sum_bound(absmax, self.spec.size)


def _words(where: str, array: Tensor) -> NDArray[np.float32]:
    """An array's memory as float32, which nothing reads as numbers."""
    if array.nbytes % _WORD:
        raise SpecError(
            f"{where}: {array.size} elements of {array.dtype} have {array.nbytes} bytes: must be a"
            f" multiple of {_WORD}"
        )
    if array.ctypes.data % _WORD:
        raise SpecError(
            f"{where}: memory begins at {array.ctypes.data:#x}: must be a multiple of {_WORD} bytes"
        )
    return array.reshape(-1).view(np.float32)
