"""Lanes in C, for large arrays, in one pass over memory each (``testbed/native/lanes.c``).
Reference model: `testbed.protocol.lanes`.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from testbed.kernel.abi import Struct, dtype
from testbed.native import load
from testbed.protocol.lanes import Lanes

__all__ = ["NativeLanes"]


class NativeLanes:
    """One format of lanes.

    Addresses are those of C-contiguous arrays; the caller makes sure that they stay alive and are
    large enough.
    """

    def __init__(self, lanes: Lanes) -> None:
        #: ``struct lanes``.
        self.format = Struct(
            "lanes", **{name: getattr(lanes, name) for name in dtype("lanes").names or ()}
        )
        self._address = self.format.address

    def absmax(self, values: int, count: int) -> float:
        """Largest magnitude of ``count`` float32; infinite or NaN if one of them is."""
        return _as_float(_library().absmax(values, count))

    def find_nonfinite(self, values: int, count: int) -> int:
        """Index of the first value that is not finite, or ``count``."""
        return int(_library().find_nonfinite(values, count))

    def exponent_for(self, absmax: float) -> int:
        """See `Lanes.exponent_for`."""
        return int(_library().exponent_for(self._address, int(np.float32(absmax).view(np.uint32))))

    def quantize(
        self,
        values: int,
        count: int,
        out: int,
        stride: int,
        per_chunk: int,
        records: int,
        exponent: int,
    ) -> float:
        """Quantize into chunks of ``per_chunk`` lanes and a word, ``stride`` bytes apart.

        The extra word of each full chunk becomes its check, and the sum of all its words goes into
        its record.

        :returns: The largest magnitude.
        """
        return _as_float(
            _library().quantize(
                self._address, values, count, out, stride, per_chunk, records, exponent
            )
        )

    def seal(self, chunk: int, length: int, record: int) -> None:
        """Set a chunk's last word to the check of the words before it, and its record's sum to that
        of all words.
        """
        _library().seal(chunk, length, record)

    def dequantize(
        self, sums: int, count: int, stride: int, per_chunk: int, out: int, exponent: int
    ) -> int:
        """Convert sums in chunks to ``count`` float32, up to the first chunk that fails its check;
        return the number of chunks converted.
        """
        return int(
            _library().dequantize(self._address, sums, count, stride, per_chunk, out, exponent)
        )


@cache
def _library() -> ctypes.CDLL:
    library = load("lanes")
    pointer, size, integer, own = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_void_p
    library.absmax.argtypes, library.absmax.restype = [pointer, size], ctypes.c_uint32
    library.find_nonfinite.argtypes, library.find_nonfinite.restype = [pointer, size], size
    library.exponent_for.argtypes, library.exponent_for.restype = [own, ctypes.c_uint32], integer
    library.quantize.argtypes = [own, pointer, size, pointer, size, size, pointer, integer]
    library.quantize.restype = ctypes.c_uint32
    library.seal.argtypes, library.seal.restype = [pointer, size, pointer], None
    library.dequantize.argtypes, library.dequantize.restype = (
        [
            own,
            pointer,
            size,
            size,
            size,
            pointer,
            integer,
        ],
        size,
    )
    return library


def _as_float(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))
