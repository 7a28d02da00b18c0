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
from testbed.native import load, load_locked
from testbed.protocol.lanes import EXPONENTS, Lanes
from testbed.protocol.ring.memory import ANYWHERE, WrKind
from testbed.protocol.scale import PATIENCE, SLACK
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
    DECLINED = constant("RING_DECLINED")
    APART = constant("RING_APART")


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
            most_exponent=_most_exponent(lanes, spec.reproducible),
            calm_most=PATIENCE,
        )
        #: ``ring_all_reduce``, for `XdpRing.all_reduce`, which avoids each call that it can.
        self.all_reduce = load_locked("ring").ring_all_reduce
        self.all_reduce.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
        library = load("ring")
        self._ring = self.address = self._native.address
        pointer, u16, u32 = ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32
        self._reduce = library.ring_reduce
        self._reduce.argtypes = [pointer, pointer, u32, u16, pointer, pointer, u32, ctypes.c_int32]
        self._reduce_segments = library.ring_reduce_segments
        self._reduce_segments.argtypes = [pointer, pointer, u32, pointer, pointer]
        self._learn = library.ring_learn
        self._learn.argtypes, self._learn.restype = [pointer, pointer, ctypes.c_int32], None
        self._scatter, self._gather, self._go_on = (
            library.ring_scatter,
            library.ring_gather,
            library.ring_go_on,
        )
        self._scatter.argtypes = [pointer, pointer, u32, u16, pointer, pointer, ctypes.c_int32]
        self._gather.argtypes = [pointer, pointer, u32, u16, pointer, pointer]
        self._go_on.argtypes = [pointer, pointer, pointer, ctypes.c_int32]
        self._complete = library.ring_complete
        self._complete.argtypes = [pointer, pointer, pointer, ctypes.c_int32]
        self._finish = library.ring_finish
        self._finish.argtypes = [pointer, pointer, u32, pointer]
        self._post = library.ring_post
        self._post.argtypes, self._post.restype = [pointer, u32, u32, u32, u32, u32], None
        self._begin = library.ring_begin
        self._begin.argtypes, self._begin.restype = [pointer, u32, pointer, u32], None
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
        return self.outcome(
            self._reduce(self._ring, layout.address, seq, tag, values, out, bits, exponent)
        )

    def reduce_segments(self, plan: Struct, values: int, out: int) -> Outcome:
        """Run the collectives of a tensor's segments from number `reduced` on, one after the other,
        until all are done or one needs help.

        :param plan: ``struct ring_plan``.
        :param values: Address of the tensor's values.
        :param out: Address of the sums; it may be the same.
        """
        return self.outcome(
            self._reduce_segments(self._ring, plan.segments, plan.count, values, out)
        )

    def outcome(self, number: int) -> Outcome:
        """What a number that native code has returned means.

        :raises CollectiveError: The doorbell is gone.
        """
        if number == Outcome.FAILED:
            self._check(self._native.error)
        return _OUTCOMES[number]

    def learn(self, segment: Struct, seen: int) -> None:
        """Update a segment's prediction, ``struct ring_segment``, with a collective's status."""
        self._learn(self._ring, segment.address, seen)

    def know(self, plans: NDArray[np.void]) -> None:
        """Set the tensors that `all_reduce` may reduce, which the caller keeps.

        :param plans: ``struct ring_plan``.
        """
        self._native.plans, self._native.plan_count = plans.ctypes.data, len(plans)

    @property
    def seq(self) -> int:
        """Sequence number of the last collective."""
        return int(self._native.seq)

    @seq.setter
    def seq(self, seq: int) -> None:
        self._native.seq = seq

    @property
    def within(self) -> bool:
        """Whether a collective has begun and is not complete."""
        return bool(self._native.within)

    @within.setter
    def within(self, within: bool) -> None:
        self._native.within = within

    @property
    def reduced(self) -> int:
        """Number of segments that are done of the tensor that is being reduced."""
        return int(self._native.reduced)

    @reduced.setter
    def reduced(self, reduced: int) -> None:
        self._native.reduced = reduced

    def scatter(
        self, layout: Layout, seq: int, tag: int, values: int, out: int, exponent: int
    ) -> Outcome:
        """Run a reduce-scatter until it is complete or needs help.

        :param values: Address of the first rank's block.
        :param out: Address of the sums of this rank's block.
        """
        return self.outcome(
            self._scatter(self._ring, layout.address, seq, tag, values, out, exponent)
        )

    def gather(self, layout: Layout, seq: int, tag: int, values: int, out: int) -> Outcome:
        """Run an all-gather until it is complete or needs help.

        :param values: Address of this rank's block.
        :param out: Address of the first rank's block.
        """
        return self.outcome(self._gather(self._ring, layout.address, seq, tag, values, out))

    def go_on(self, layout: Layout, out: int, exponent: int) -> Outcome:
        """Go on with a collective whose outcome was `Outcome.APART`."""
        return self.outcome(self._go_on(self._ring, layout.address, out, exponent))

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
        self._begin(self._ring, seq, Struct("ring_tensor").address, 0)

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


def _most_exponent(lanes: Lanes, reproducible: bool) -> int:
    """The exponent up to which a collective has nothing that only Python does: its sums cannot
    exceed float32.
    """
    if reproducible:
        return EXPONENTS.start - 1
    return max(e for e in EXPONENTS if not lanes.may_overflow(e))
