"""The log of faults: one record for each rule that each frame has met, drained from the kernel's
ring buffer in bulk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from testbed.core.closing import Closing
from testbed.core.errors import StorageError
from testbed.kernel import Map, RingReader
from testbed.kernel.abi import dtype, lifted

__all__ = ["RECORD", "Drain", "read_log"]

#: ``struct fault_record``: time in nanoseconds of CLOCK_MONOTONIC; argument as of
#: :class:`testbed.faults.fate.Fired`; length of the frame in bytes; ``order`` counts the rules that
#: the frame met from 0, ``fired`` is how many they are.
RECORD: Final = lifted(dtype("fault_record"))
_INTERVAL: Final = 0.02  # seconds; the ring buffer has room for more than a second's records


class Drain(Closing):
    """A thread that moves records from a ring buffer to a file, until closed.

    :param records: The ring buffer.
    :param path: The file; its records are of :data:`RECORD`.
    """

    def __init__(self, records: Map, path: Path) -> None:
        self._reader = RingReader(records, RECORD)
        self._file = path.open("wb", buffering=0)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="faults' log", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Move the records that are available now.

        :raises StorageError: The file could not be written, now or earlier.
        """
        self._move()
        if self._error:
            raise StorageError(
                f"the log of faults cannot be written: {self._file.name}: {self._error.strerror}"
            )

    def close(self) -> None:
        """Move the remaining records and end the thread."""
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
            records = self._reader.peek()
            if not records.size or self._error:
                return  # unwritten records stay; the program counts those without room
            data = memoryview(records.tobytes())
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                self._error = error
                return
            self._reader.advance(records.size)


def read_log(paths: Iterable[Path]) -> NDArray[Any]:
    """Records of several files, by time: shape (n,), of :data:`RECORD`."""
    records = np.concatenate([np.zeros(0, RECORD), *(np.fromfile(path, RECORD) for path in paths)])
    return records[np.argsort(records["time"], kind="stable")]
