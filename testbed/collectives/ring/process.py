"""The process's side of the ring: native code (``testbed/native/ring.c``) and its memory."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.ring.layout import Layout
from testbed.collectives.ring.maps import Maps
from testbed.comm.backend import PHASES
from testbed.comm.doorbell import Doorbell
from testbed.comm.lanes import NativeLanes
from testbed.kernel.abi import Struct, constant, dtype
from testbed.native import load
from testbed.protocol.lanes import EXPONENTS, Lanes
from testbed.protocol.ring.memory import ANYWHERE, WrKind
from testbed.protocol.scale import SLACK
from testbed.protocol.wire import Frame, Header, Kind, encode, offset_of

__all__ = ["Outcome", "Process"]

_SLICE_NS = 100_000_000
"""How long `reduce` waits before `Recovery` determines which ranks are alive."""


class Outcome(IntEnum):
    """How a collective ended: ``enum ring_outcome``."""

    DONE = constant("RING_DONE")
    LATE = constant("RING_LATE")
    NONFINITE = constant("RING_NONFINITE")
    FAULTY = constant("RING_FAULTY")
    MISFIT = constant("RING_MISFIT")
    FAILED = constant("RING_FAILED")


_OUTCOMES = tuple(Outcome)


class Process:
    """The functions of ``testbed/native/ring.c`` for one rank. Those that kick raise
    `CollectiveError` if the doorbell is gone.
    """

    def __init__(self, maps: Maps, doorbell: Doorbell, lanes: Lanes) -> None:
        spec = maps.spec
        self._check = doorbell.check
        self._memory = maps  # kept alive because native code has addresses in it
        kick = encode(Frame(Header(Kind.DOORBELL, spec.group_id, spec.cookie, prev=0)))
        # A kick is as long as the frame that it becomes, so that it does not have to grow.
        kick = kick.ljust(offset_of(maps.chunk_bytes) + maps.chunk_bytes, b"\0")
        self._kick = ctypes.create_string_buffer(kick, len(kick))
        self._quiet = np.zeros(maps.cpus, dtype("ring_quiet"))
        self._native = Struct(
            "ring",
            control=maps.control.address,
            early_frames=maps.early_frames.ctypes.data,
            kick=ctypes.addressof(self._kick),
            kick_length=len(self._kick),
            doorbell=doorbell.fd,
            events=maps.events.fd,
            rank=spec.rank,
            ranks=spec.size,
            sq=maps.sq.ctypes.data,
            inputs=maps.inputs.ctypes.data,
            results=maps.results.ctypes.data,
            records=maps.records.ctypes.data,
            lanes=NativeLanes(lanes).format.value,
            chunk_bytes=maps.chunk_bytes,
            cpus=maps.streams.ctypes.data,
            peers=maps.ranks.ctypes.data,
            cpu_count=maps.cpus,
            window=maps.window,
            timeout_ns=_SLICE_NS,
            quiet=self._quiet.ctypes.data,
            yields=spec.yields,
            slack=SLACK,
            consumer=maps.consumer.ctypes.data,
            producer=maps.producer.ctypes.data,
            least_exponent=EXPONENTS.start,
            exponents=len(EXPONENTS),
        )
        library = load("ring")
        self._ring = self._native.address
        pointer, u16, u32 = ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32
        self._reduce = library.ring_reduce
        self._reduce.argtypes = [pointer, pointer, u32, u16, pointer, pointer, u32, ctypes.c_int32]
        self._reduce_segments = library.ring_reduce_segments
        self._reduce_segments.argtypes = [pointer, pointer, u32, pointer, pointer, pointer]
        self._reduced = ctypes.c_uint32()
        self._complete = library.ring_complete
        self._complete.argtypes = [pointer, pointer, pointer, ctypes.c_int32]
        self._finish = library.ring_finish
        self._finish.argtypes = [pointer, pointer, u32, pointer]
        self._post = library.ring_post
        self._post.argtypes, self._post.restype = [pointer, u32, u32, u32, u32, u32], None
        self._begin = library.ring_begin
        self._begin.argtypes, self._begin.restype = [pointer, u32, u32, u16, u16, u32], None
        self._flush = library.ring_flush
        self._flush.argtypes = [pointer]
        self._wait = library.ring_wait
        self._wait.argtypes = [pointer, u32, ctypes.c_int64]

    def reduce(
        self,
        layout: Layout,
        seq: int,
        tag: int,
        values: int,
        out: int,
        absmax: float,
        exponent: int,
    ) -> Outcome:
        """Run a collective until it is complete or needs help.

        :param values: Address of the float32 values.
        :param out: Address of the sums; it may be the same.
        :param absmax: A magnitude that the status counts in addition to those of the values.
        """
        bits = _bits(absmax) if absmax else 0
        outcome: int = self._reduce(
            self._ring, layout.address, seq, tag, values, out, bits, exponent
        )
        if outcome == Outcome.FAILED:
            self._check(self._native.error)
        return _OUTCOMES[outcome]

    def reduce_segments(
        self, segments: NDArray[np.void], values: int, out: int
    ) -> tuple[int, Outcome]:
        """Run collectives one after the other until one needs help: ``struct ring_segment``.

        :param values: Address of the tensor's values.
        :param out: Address of the sums; it may be the same.
        :returns: The number of collectives that are complete, and the outcome of the next one, or
            of the last one if all are complete.
        """
        outcome: int = self._reduce_segments(
            self._ring,
            segments.ctypes.data,
            len(segments),
            values,
            out,
            ctypes.addressof(self._reduced),
        )
        if outcome == Outcome.FAILED:
            self._check(self._native.error)
        return self._reduced.value, _OUTCOMES[outcome]

    def complete(self, layout: Layout, out: int, exponent: int) -> Outcome:
        """Finish when all results are stored: read the status, and turn the sums into floats."""
        outcome: int = self._complete(self._ring, layout.address, out, exponent)
        return _OUTCOMES[outcome]

    def finish(self, layout: Layout, seq: int, status: bytes) -> None:
        """Publish the end of the input, with the status that the caller passes."""
        self._check(self._finish(self._ring, layout.address, seq, status))

    @property
    def seen(self) -> int:
        """The exponent in the last status."""
        return int(self._native.seen)

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent since the start, by phase."""
        return {phase: getattr(self._native, f"{phase}_ns") * 1e-9 for phase in PHASES}

    def begin(self, seq: int) -> None:
        """Enter a sequence number with nothing to reduce."""
        self._begin(self._ring, seq, 0, 0, 0, 0)

    def post(
        self, kind: WrKind, seq: int, chunk: int, attempt: int = 0, extra: int = ANYWHERE
    ) -> None:
        """Post a work request; `flush` kicks the doorbell."""
        self._post(self._ring, kind, seq, chunk, attempt, extra)

    def flush(self) -> None:
        """Kick the doorbell for the work requests that wait."""
        self._check(self._flush(self._ring))

    def wait(self, target: int, seconds: float) -> bool:
        """Sleep until ``target`` results are stored (True) or time is up (False), and recover what
        is missing.
        """
        result = self._wait(self._ring, target, int(seconds * 1e9))
        self._check(-result if result < 0 else 0)
        return bool(result)

    @property
    def refused(self) -> int:
        """Number of results that failed their check."""
        return int(self._native.refused)

    @property
    def syscalls(self) -> int:
        """System calls that the ring itself has made."""
        return int(self._native.syscalls)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
