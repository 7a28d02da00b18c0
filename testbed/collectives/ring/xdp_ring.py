"""Ring all-reduce inside the kernel: float32 in and out, lanes on the wire, sums by XDP programs.

The process quantizes into memory that it shares with the kernel, kicks the doorbell, sleeps, and
dequantizes; everything in between is ``bpf/ring.bpf.c``. System calls per collective, without
losses: one kick per block of input (at most `BLOCKS`), and one sleep.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from testbed.collectives.ring.layout import BY_RULE, Layout, Pace
from testbed.collectives.ring.port import RingPort
from testbed.collectives.ring.process import Outcome
from testbed.collectives.ring.recovery import FIRST, Recovery
from testbed.comm.backend import Backend, Tensor
from testbed.comm.collective import Counters
from testbed.comm.group import GroupSpec
from testbed.comm.lanes import NativeLanes
from testbed.core.errors import CollectiveError
from testbed.datapath.dispatcher import Dispatcher
from testbed.kernel.abi import dtype
from testbed.plan import Datapath
from testbed.protocol.lanes import Lanes
from testbed.protocol.ring.liveness import End, Reason
from testbed.protocol.scale import SLACK, ScaleGuess
from testbed.protocol.sequence import must_forget, seq_after
from testbed.protocol.status import (
    Fault,
    Status,
    decode,
    describe,
    encode,
    finite_absmax,
    inspect,
)

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["XdpRing"]


class XdpRing(Backend):
    """One rank of a group. See `Backend`."""

    name: ClassVar[str] = "xdp-ring"
    needs: ClassVar[Datapath] = "xdp"

    def __init__(self, context: WorkerContext, spec: GroupSpec) -> None:
        super().__init__(context, spec)
        self.lanes = Lanes.named(spec.lanes, spec.size)
        self.saturated = 0
        self.redone = 0
        self._native = NativeLanes(self.lanes)
        self._pace = Pace.of(spec)
        #: Sequence number of the last collective.
        self.seq = FIRST
        #: Tensors by size, each with its segments.
        self.tensors: dict[int, list[TensorKind]] = {}
        self.port: RingPort | None = None
        self._failed: str | None = None
        self._together = False  # all ranks are connected, and this one is in no collective

    def connect(self) -> None:
        """See `Backend.connect`."""
        if self.spec.size > 1:
            self.port = RingPort(Dispatcher.of(self.context), self.spec, self.lanes)
            self._recovery = Recovery(self.port)
            self._recovery.meet()
            self._together = True

    @property
    def phases(self) -> dict[str, float]:
        """See `Backend.phases`."""
        return super().phases if self.port is None else self.port.process.seconds

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        if self._failed:
            raise CollectiveError(f"this group has failed before, form it again: {self._failed}")
        if tensor.size == 0:
            return
        if self.port is None:
            self._alone(tensor, out)
            return
        kinds = self.tensors.get(tensor.size)
        if kinds is None:
            kinds = self.tensors[tensor.size] = [
                TensorKind(tensor.size, self.lanes, self.port.maps.chunk_bytes, part, self._pace)
                for part in self._pace.cut(tensor.size, self.lanes)
            ]
        if kinds[0].guess.exponent is None:
            exponent = self._agree(tensor)
            for kind in kinds:
                kind.guess.learn(exponent)
        if len(kinds) == 1:
            self._reduce(kinds[0], tensor, out)
        else:
            self._reduce_segments(kinds, tensor, out)

    def _reduce_segments(self, kinds: Sequence[TensorKind], tensor: Tensor, out: Tensor) -> None:
        """Reduce a tensor segment by segment."""
        assert self.port is not None
        done, values, sums = 0, tensor.ctypes.data, out.ctypes.data
        while done < len(kinds):
            run = self._run(kinds[done:])
            outcome = None
            if run:
                table = np.array([kind.entry(seq) for kind, seq in run], dtype("ring_segment"))
                self._together = False
                reduced, outcome = self.port.process.reduce_segments(table, values, sums)
                for (kind, self.seq), seen in zip(run[:reduced], table["seen"], strict=False):
                    kind.guess.learn(int(seen))
                done += reduced
                if outcome is Outcome.DONE:
                    self._together = True
                    continue
                self.seq = run[reduced][1]
            part = slice(kinds[done].first, kinds[done].first + kinds[done].layout.count)
            self._reduce(kinds[done], tensor[part], out[part], outcome)
            done += 1

    def _run(self, kinds: Sequence[TensorKind]) -> list[tuple[TensorKind, int]]:
        """The first segments, and their sequence numbers, as far as nothing has to be done before,
        between and after their collectives.
        """
        run, seq = [], self.seq
        for kind in kinds:
            before, seq = seq, seq_after(seq)
            assert kind.guess.exponent is not None
            special = self.spec.reproducible or self.lanes.may_overflow(kind.guess.exponent)
            if special or must_forget(before, seq):
                break
            run.append((kind, seq))
        return run

    def _reduce(
        self, kind: TensorKind, tensor: Tensor, out: Tensor, outcome: Outcome | None = None
    ) -> None:
        """Reduce a tensor, or a segment of one.

        :param outcome: How far its collective has come, if it has been started.
        """
        assert self.port is not None
        guess, values = kind.guess, tensor
        while True:
            assert guess.exponent is not None
            exponent = guess.exponent
            if outcome is None:
                outcome = self._start(kind, values, out, exponent)
            outcome = self._settle(kind, values, out, exponent, outcome)
            if outcome is Outcome.FAULTY:
                # All ranks see the same faults, so all get here, and all continue or give up
                # together.
                status = decode(self.spec.size, self.port.maps.status_bytes(kind.layout))
                self._compare(kind.layout.identity, status)
                values = self._mend(tensor, status)
                guess.learn(status.exponent)
            else:
                guess.learn(self.port.process.seen)
            if outcome is Outcome.DONE:
                break
            self.redone += 1
            outcome = None
        if self.lanes.may_overflow(exponent):
            self._limit(kind, out, exponent)

    def _start(
        self, kind: TensorKind, values: Tensor, out: Tensor, exponent: int, absmax: float = 0.0
    ) -> Outcome:
        """One collective of a tensor's lanes and the status, until it is complete or needs help.

        :param absmax: A magnitude that the status counts in addition to those of the values.
        """
        port = self.port
        assert port is not None
        before, self.seq = self.seq, seq_after(self.seq)
        if must_forget(before, self.seq):
            port.maps.forget(before)
        if self.spec.reproducible:  # save all partial sums, as after a loss
            port.maps.control.lossy = self.seq
        self._together = False
        target = out.ctypes.data
        source = target if values is out else values.ctypes.data
        return port.process.reduce(
            kind.layout, self.seq, kind.tag(exponent), source, target, absmax, exponent
        )

    def _settle(
        self, kind: TensorKind, values: Tensor, out: Tensor, exponent: int, outcome: Outcome
    ) -> Outcome:
        """Complete the collective that has been started.

        :param outcome: How far it has come.
        """
        port, seq, target = self.port, self.seq, out.ctypes.data
        assert port is not None
        if outcome is Outcome.NONFINITE:
            rest = self.lanes.exponent_for(finite_absmax(values))
            fault = inspect(values, self.spec.rank)
            if fault is not None:
                fault = replace(fault, index=kind.first + fault.index)
            status = encode(self.spec.size, self.spec.rank, rest, kind.layout.identity, fault)
            port.process.finish(kind.layout, seq, status)
        fewest, progressed = math.inf, time.monotonic()
        while outcome in (Outcome.NONFINITE, Outcome.LATE):
            try:
                self._recovery.wait(seq, kind.layout.total)
                before = port.process.refused
                outcome = port.process.complete(kind.layout, target, exponent)
                if port.process.refused - before < fewest:
                    fewest, progressed = port.process.refused - before, time.monotonic()
                elif time.monotonic() - progressed > self.spec.timeout:
                    self._recovery.give_up(End(Reason.DAMAGED))
                    raise CollectiveError(
                        f"rank {self.spec.rank} ({self.spec.me.name}): results are not what their"
                        f" checks say, again and again for {self.spec.timeout:g} s (all-reduce"
                        f" {seq}: at best {fewest} of {kind.layout.total} chunks)"
                    )
            except CollectiveError as error:
                self._failed = str(error)
                raise
        self._together = True
        return outcome

    def _compare(self, identity: int, status: Status) -> None:
        """Check that all ranks reduce the same tensor, as far as the status shows.

        :raises CollectiveError: The text names the ranks that reduce another tensor than this one.
        """
        others = [
            f"rank {rank} ({self.spec.members[rank].name}) {describe(other)}"
            for rank, other in enumerate(status.identities)
            if other != identity
        ]
        if others:
            self._failed = (
                f"rank {self.spec.rank} ({self.spec.me.name}): the ranks reduce different tensors:"
                f" {describe(identity)} here, {', '.join(others)} (all-reduce {self.seq})"
            )
            raise CollectiveError(self._failed)

    def _agree(self, tensor: Tensor) -> int:
        """Run a collective of the status alone, for the first tensor of a size, because its
        exponent is unknown.

        :returns: The exponent of the group's largest finite magnitude.
        """
        assert self.port is not None
        absmax = self._native.absmax(tensor.ctypes.data, tensor.size)
        if not math.isfinite(absmax):
            # The next pass reports it; this one only determines the exponent of the other values.
            absmax = finite_absmax(tensor)
        nothing = tensor[:0]
        kind = TensorKind(tensor.size, self.lanes, self.port.maps.chunk_bytes, range(0), self._pace)
        outcome = self._start(kind, nothing, nothing, 0, absmax)
        outcome = self._settle(kind, nothing, nothing, 0, outcome)
        if outcome is Outcome.FAULTY:
            status = decode(self.spec.size, self.port.maps.status_bytes(kind.layout))
            self._compare(kind.layout.identity, status)
        assert outcome is Outcome.DONE
        return self.port.process.seen

    def _alone(self, tensor: Tensor, out: Tensor) -> None:
        fault = inspect(tensor, 0)
        np.copyto(out, tensor if fault is None else self._mend(tensor, Status(0, (), (fault,))))

    def _mend(self, tensor: Tensor, status: Status) -> Tensor:
        """Return what to reduce instead of a tensor with values that are not finite.

        :raises CollectiveError: ``on_overflow`` is "error"; the text names ranks and indices.
        """
        if self.spec.on_overflow == "error":
            raise CollectiveError(
                "all-reduce: " + "; ".join(self._describe(fault) for fault in status.faults)
            )
        mine = [fault for fault in status.faults if fault.rank == self.spec.rank]
        if not mine:
            return tensor
        self.saturated += mine[0].count
        most = finite_absmax(tensor)
        return np.nan_to_num(tensor, nan=0.0, posinf=most, neginf=-most)

    def _describe(self, fault: Fault) -> str:
        name = self.spec.members[fault.rank].name
        return (
            f"rank {fault.rank} ({name}) has {fault.kind.noun} at index {fault.index}"
            f" ({fault.count} values are not finite)"
        )

    def _limit(self, kind: TensorKind, out: Tensor, exponent: int) -> None:
        """Handle sums beyond float32: raise an error, or replace them by the largest float32. If
        rounding alone caused the overflow, they are always replaced.

        :raises CollectiveError: ``on_overflow`` is "error"; the text names the index.
        """
        assert self.port is not None
        indices = np.flatnonzero(np.isinf(out))
        if not indices.size:
            return
        sums = kind.layout.lanes_in(
            self.port.maps.results, self.port.maps.chunk_bytes, indices, self.lanes.dtype
        )
        beyond = indices[self.lanes.surely_overflows(sums, exponent)]
        if beyond.size and self.spec.on_overflow == "error":
            index = kind.first + int(beyond[0])
            raise CollectiveError(
                f"all-reduce: the sum over ranks 0..{self.spec.size - 1} overflows float32 at index"
                f" {index}, as rank {self.spec.rank} ({self.spec.me.name}) and all others see"
            )
        self.saturated += int(beyond.size)
        most = np.finfo(np.float32).max
        np.clip(out, -most, most, out=out)

    def counters(self) -> Counters:
        """See `Backend.counters`."""
        if self.port is None:
            return Counters()
        table = self.port.maps.counters()
        return Counters(table["sent"], table["sent_bytes"], table["resent"])

    def statistics(self) -> dict[str, int]:
        """The state of this rank: its sequence number, the system calls that the ring itself has
        made, and all counters of its programs (``enum ring_counter``).
        """
        if self.port is None:
            return {}
        return {
            "seq": self.seq,
            "syscalls": self.port.process.syscalls,
            **self.port.maps.counters(),
        }

    def error_bound(self, absmax: float) -> float:
        """Half a step per rank, at the largest exponent that a prediction may have; see
        `Lanes.error_bound`.
        """
        if self.spec.size == 1:
            return 0.0
        return self.lanes.error_bound(self.lanes.exponent_for(absmax) + SLACK, absmax)

    def close(self) -> None:
        """See `Backend.close`."""
        if self.port is not None:
            try:
                if self._together:
                    self._recovery.linger(self.seq)
                elif self._failed:
                    self._recovery.part()
            finally:
                self.port.close()
                self.port = None
                del self._recovery  # it has views of the maps


class TensorKind:
    """What a rank keeps about tensors of one size, or one segment of such tensors.

    :param size: Elements of such a tensor.
    :param part: The elements that are laid out: a segment, all, or none for the status alone.
    :param pace: How it is cut up.
    """

    def __init__(
        self,
        size: int,
        lanes: Lanes,
        chunk_bytes: int,
        part: range | None = None,
        pace: Pace = BY_RULE,
    ) -> None:
        part = range(size) if part is None else part
        self.size = size
        self.first = part.start
        self.bits = lanes.bits
        self.layout = Layout.plan(size, lanes, chunk_bytes, len(part), pace)
        self.guess = ScaleGuess()
        self._tags: dict[int, int] = {}

    def entry(self, seq: int) -> tuple[int, int, int, int, int, int, int]:
        """``struct ring_segment`` for the collective with this sequence number."""
        exponent = self.guess.exponent
        assert exponent is not None
        return self.layout.address, self.first, seq, exponent, 0, self.tag(exponent), 0

    def tag(self, exponent: int) -> int:
        """Return 16 bits that stand for all that ranks must agree on besides the number of chunks.
        They reveal most tensors that differ with the first frame; the status reveals all.
        """
        if exponent not in self._tags:
            self._tags[exponent] = (
                zlib.crc32(f"{self.bits} {self.size} {exponent}".encode()) & 0xFFFF
            )
        return self._tags[exponent]
