"""Records of one size in a BPF ring buffer, read in bulk: consecutive records are one array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.kernel.maps import Map

__all__ = ["RingReader"]

_BUSY = 1 << 31  # BPF_RINGBUF_BUSY_BIT: being written


class RingReader:
    """The only reader of a ring buffer.

    :param source: The ring buffer.
    :param record: What programs write to it, a multiple of 8 bytes long.
    """

    def __init__(self, source: Map, record: np.dtype[Any]) -> None:
        # A record follows a header of 8 bytes (Documentation/bpf/ringbuf.rst).
        self._entry = np.dtype([("length", "<u4"), ("page", "<u4"), ("record", record)])
        self._consumer, self._producer, self._data = source.ring_buffer()
        self._size = source.max_entries

    def peek(self) -> NDArray[Any]:
        """A view of the complete records, oldest first: they may be overwritten after `advance`."""
        start, end = int(self._consumer[0]), int(self._producer[0])
        offset = start % self._size
        # The data are mapped twice in a row, so records that wrap around are contiguous, too.
        entries = self._data[offset : offset + end - start].view(self._entry)
        busy = np.flatnonzero(entries["length"] & _BUSY)
        found: NDArray[Any] = (entries[: busy[0]] if busy.size else entries)["record"]
        return found

    def advance(self, count: int) -> None:
        """Release the space of the oldest records."""
        self._consumer[0] += np.uint64(count * self._entry.itemsize)
