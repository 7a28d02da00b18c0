"""Arrays in numpy's files (``.npy``), which may come from elsewhere or be torn: their headers are
compared with what is there before anything is read or mapped into memory.
"""

import io
import lzma
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from testbed.core.errors import SpecError
from testbed.core.files import check_regular
from testbed.core.numbers import cut, shown, why

__all__ = ["ZIP_FAILURES", "Header", "map_array", "map_at", "read_header"]

ZIP_FAILURES: Final = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    OverflowError,
    RuntimeError,  # an encrypted member; NotImplementedError: another way to compress
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""What `zipfile` raises for a damaged file, such as an NPZ file."""

LARGEST: Final = 1 << 14  # bytes of a header; numpy itself refuses more than 10,000
MOST_AXES: Final = 8


@dataclass(frozen=True)
class Header:
    """What an array is.

    :param fortran: Whether it is column-major.
    :param length: Bytes before its items.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    length: int

    @property
    def nbytes(self) -> int:
        """Bytes of its items."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], name: str) -> Header:
    """Read the header at the beginning of a file.

    :param name: Stands at the start of errors.
    :raises SpecError: There is none, or it is that of something else than numbers.
    """
    start = io.BytesIO(file.read(LARGEST))
    try:
        first = npy_format.read_magic(start) == (1, 0)
        read = npy_format.read_array_header_1_0 if first else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(start)
    except Exception as error:  # whatever the parser of Python raises for a damaged one
        raise SpecError(f"{name}: is no .npy file, or is torn: {why(error)}") from error
    whole = all(type(size) is int and size >= 0 for size in shape) and len(shape) <= MOST_AXES
    if dtype.kind not in "biuf" or not whole:
        raise SpecError(f"{name}: is of {cut(str(dtype))}, {shown(shape)}: must be of numbers")
    return Header(shape, dtype, bool(fortran), start.tell())


def map_array(path: Path, name: str) -> NDArray[Any]:
    """Map a file's array into memory, read-only.

    :param name: Stands at the start of errors.
    :raises SpecError: It cannot be read, is no array of numbers, or is torn.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            header = read_header(file, name)
    except OSError as error:
        raise SpecError(f"{name}: cannot be read: {error.strerror}") from error
    return map_at(path, header, header.length, name)


def map_at(path: Path, header: Header, offset: int, name: str) -> NDArray[Any]:
    """Map an array into memory whose items begin at `offset` of a file; see `map_array`."""
    order: Literal["F", "C"] = "F" if header.fortran else "C"
    try:
        size = path.stat().st_size
        if offset + header.nbytes > size:
            raise SpecError(
                f"{name}: is torn: {max(0, size - offset)} of {header.nbytes} bytes are there"
            )
        if not header.nbytes:  # which mmap(2) refuses
            return np.zeros(header.shape, header.dtype)
        return np.memmap(path, header.dtype, "r", offset, header.shape, order)
    except (OSError, ValueError) as error:
        raise SpecError(f"{name}: cannot be mapped into memory: {error}") from error
