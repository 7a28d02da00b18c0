"""The log of faults: one record for each rule that each frame has met, drained from the kernel's ring buffer in bulk."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from testbed.closing import Closing
from testbed.errors import FaultError
from testbed.kernel import Map

__all__ = ["RECORD", "Drain", "read_log"]

#: ``struct fault_record``: time in nanoseconds of CLOCK_MONOTONIC; argument as of :class:`testbed.faults.fate.Fired`; length of
#: the frame in bytes; ``order`` counts the rules that the frame met from 0, ``fired`` is how many they are.
RECORD: Final = np.dtype(
    [
        ("time", "<u8"),
        ("sender", "u1"),
        ("receiver", "u1"),
        ("kind", "u1"),
        ("hop", "u1"),
        ("attempt", "<u2"),
        ("group", "<u2"),
        ("generation", "<u4"),
        ("chunk", "<u4"),
        ("argument", "<u8"),
        ("length", "<u2"),
        ("rule", "u1"),
        ("action", "u1"),
        ("order", "u1"),
        ("fired", "u1"),
        ("padding", "<u2"),
    ]
)
# A record as it lies in a ring buffer (Documentation/bpf/ringbuf.rst), behind 8 bytes of header.
_ENTRY: Final = np.dtype([("length", "<u4"), ("page", "<u4"), ("record", RECORD)])
_BUSY: Final = 1 << 31  # BPF_RINGBUF_BUSY_BIT: being written
_INTERVAL: Final = 0.02  # seconds; the ring buffer has room for those of a second and more


class Drain(Closing):
    """A thread that moves records from a ring buffer to a file, until closed.

    :param records: The ring buffer; records are of one size, so a whole stretch is one array.
    :param path: The file; its records are of :data:`RECORD`.
    """

    def __init__(self, records: Map, path: Path) -> None:
        self._consumer, self._producer, self._data = records.ring_buffer()
        self._size = records.max_entries
        self._file = path.open("wb", buffering=0)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="faults' log", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Move what is there now.

        :raises FaultError: The file could not be written, now or earlier.
        """
        self._move()
        if self._error:
            raise FaultError(f"the log of faults cannot be written: {self._file.name}: {self._error.strerror}")

    def close(self) -> None:
        """Move what is left and end the thread."""
        self._stopped.set()
        self._thread.join()
        if not self._file.closed:
            self._move()
            self._file.close()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            self._move()

    def _move(self) -> None:
        with self._lock:
            start, end = int(self._consumer[0]), int(self._producer[0])
            offset = start % self._size
            # The data are mapped twice in a row: a stretch that wraps around is in one piece all the same.
            entries = self._data[offset : offset + end - start].view(_ENTRY)
            busy = np.flatnonzero(entries["length"] & _BUSY)
            entries = entries[: busy[0]] if busy.size else entries
            if not entries.size or self._error:
                return  # what cannot be written stays; the program counts what finds no room
            data = memoryview(entries["record"].tobytes())
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                self._error = error
                return
            self._consumer[0] = start + entries.size * _ENTRY.itemsize


def read_log(paths: Iterable[Path]) -> NDArray[Any]:
    """Records of several files, by time: shape (n,), of :data:`RECORD`."""
    records = np.concatenate([np.zeros(0, RECORD), *(np.fromfile(path, RECORD) for path in paths)])
    return records[np.argsort(records["time"], kind="stable")]
