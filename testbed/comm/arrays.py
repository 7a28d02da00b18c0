"""Checks of the arrays of a collective, because C and the kernel use their memory directly."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.comm.options import FLOAT32
from testbed.core.errors import SpecError

__all__ = ["check_array"]


def check_array(
    where: str,
    key: str,
    array: Any,
    shape: tuple[int, ...] | None = None,
    written: bool = False,
    dtypes: Sequence[str] = FLOAT32,
) -> None:
    """Check that native code can use an array's memory.

    :param where: The method that received it; `key`: the argument's name; both for the error.
    :param shape: The required shape.
    :param written: Whether it is written to; writing to a read-only mapping of a file would end in
        SIGSEGV.
    :param dtypes: Types that it may have, by numpy's names.
    :raises SpecError: It is not a C-contiguous, aligned array of that shape and such a type, or
        cannot be written.
    """
    kinds = " or ".join(filter(None, (", ".join(dtypes[:-1]), dtypes[-1])))
    allowed = f"{kinds}{f' of shape {shape}' if shape is not None else ''}, C-contiguous"
    if not isinstance(array, np.ndarray):
        raise SpecError(
            f"{where}: {key} is {type(array).__name__}: must be a numpy array of {allowed}"
        )
    if (
        array.dtype not in [np.dtype(name) for name in dtypes]
        or not array.flags.c_contiguous
        or (shape is not None and array.shape != shape)
    ):
        what = f"{array.dtype} of shape {array.shape} with strides {array.strides}"
        raise SpecError(f"{where}: {key} is {what}: must be {allowed}")
    if not array.flags.aligned:
        raise SpecError(
            f"{where}: {key} begins at {array.ctypes.data:#x}: must be a multiple of"
            f" {array.itemsize} bytes"
        )
    if written and not array.flags.writeable:
        raise SpecError(f"{where}: {key} is read-only: must be an array that can be written")
