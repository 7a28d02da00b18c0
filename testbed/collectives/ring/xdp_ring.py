"""The ring inside the kernel: float32 in and out, lanes on the wire, sums by XDP programs.

The process quantizes into memory that it shares with the kernel, kicks the doorbell, sleeps, and
dequantizes; everything in between is ``bpf/ring.bpf.c``. System calls per collective, without
losses: one kick per block of input (at most `BLOCKS`), and one sleep.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from testbed.collectives.ring.layout import Pace, cut_blocks
from testbed.collectives.ring.port import RingPort
from testbed.collectives.ring.process import Outcome, Process
from testbed.collectives.ring.recovery import FIRST, Recovery
from testbed.collectives.ring.tensor_kind import TensorKind, TensorPlan
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
from testbed.protocol.scale import SLACK
from testbed.protocol.sequence import must_forget, seq_after
from testbed.protocol.status import (
    Fault,
    Operation,
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

# As plain numbers, which native code returns: looking an enum's member up takes time.
_DONE, _DECLINED = int(Outcome.DONE), int(Outcome.DECLINED)


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
        #: Tensors by size.
        self.tensors: dict[int, TensorPlan] = {}
        self._blocks: dict[tuple[Operation, int, int], list[TensorKind]] = {}
        self.port: RingPort | None = None
        self._failed: str | None = None
        self._process: Process | None = None

    def connect(self) -> None:
        """See `Backend.connect`."""
        if self.spec.size > 1:
            self.port = RingPort(Dispatcher.of(self.context), self.spec, self.lanes)
            self._recovery = Recovery(self.port)
            self._process = self.port.process
            self._process.seq, self._process.within = FIRST, True
            self._recovery.meet()
            self._process.within = False

    @property
    def seq(self) -> int:
        """Sequence number of the last collective."""
        return FIRST if self.port is None else self.port.process.seq

    @seq.setter
    def seq(self, seq: int) -> None:
        assert self.port is not None
        self.port.process.seq = seq

    @property
    def phases(self) -> dict[str, float]:
        """See `Backend.phases`."""
        return super().phases if self.port is None else self.port.process.seconds

    def all_reduce(self, tensor: Tensor, out: Tensor | None = None, op: str = "sum") -> Tensor:
        """See `Backend.all_reduce`. If nothing is special, all of it is a single call of native
        code: in Python, it took 20 us before the collective and 20 us after it, because four ranks
        on two CPUs find the caches cold.
        """
        if type(tensor) is not np.ndarray or self._process is None or op != "sum":
            return super().all_reduce(tensor, out, op)
        if out is None:
            out = np.empty(tensor.shape, np.float32)
        elif type(out) is not np.ndarray:
            return super().all_reduce(tensor, out, op)
        outcome = self._process.all_reduce(self._process.address, tensor, out)
        if outcome == _DONE:
            return out
        if outcome == _DECLINED and not self._process.reduced:
            return super().all_reduce(tensor, out, op)
        self._go_on(tensor.reshape(-1), out.reshape(-1), self._process.outcome(outcome))
        return out

    def _check_alive(self) -> None:
        if self._failed:
            raise CollectiveError(f"this group has failed before, form it again: {self._failed}")

    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        self._check_alive()
        if tensor.size == 0:
            return
        if self.port is None:
            self._alone(tensor, out, Operation.REDUCE_SCATTER)
            return
        kinds = self._segments(Operation.REDUCE_SCATTER, tensor.size)
        self._predict(kinds, tensor)
        for kind in kinds:
            self._reduce(kind, tensor, out[kind.first : kind.first + kind.layout.share // 4])

    def _all_gather(self, tensor: Tensor, out: Tensor) -> None:
        self._check_alive()
        if tensor.size == 0:
            return
        if self.port is None:
            np.copyto(out, tensor)
            return
        for kind in self._segments(Operation.ALL_GATHER, out.size):
            self._settle_gather(kind, tensor, out)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        self._check_alive()
        if tensor.size == 0 or self.port is None:
            return
        for kind in self._segments(Operation.BROADCAST, tensor.size, root):
            self._settle_gather(kind, tensor, tensor)

    def _segments(self, operation: Operation, size: int, root: int = 0) -> list[TensorKind]:
        """The segments of a whole tensor of a size, of other collectives than an all-reduce."""
        assert self.port is not None
        kinds = self._blocks.get((operation, size, root))
        if kinds is None:
            maps = self.port.maps
            parts = cut_blocks(
                operation,
                size if operation is Operation.BROADCAST else size // self.spec.size,
                self.lanes,
                maps.chunk_bytes,
                maps.chunks,
                self._pace,
            )
            kinds = self._blocks[operation, size, root] = [
                TensorKind(size, self.lanes, maps.chunk_bytes, part, self._pace, operation, root)
                for part in parts
            ]
        return kinds

    def _settle_gather(self, kind: TensorKind, tensor: Tensor, out: Tensor) -> None:
        """Complete the all-gather or the broadcast of a segment."""
        port, seq, target = self._enter(), self.seq, out.ctypes.data + kind.first * 4
        source = tensor.ctypes.data + kind.first * 4
        outcome = port.process.gather(kind.layout, seq, kind.tag(0), source, target)
        outcome = self._settle(kind, tensor, target, 0, outcome)
        if outcome is Outcome.FAULTY:
            status = decode(self.spec.size, port.maps.status_bytes(kind.layout))
            self._compare(kind, status)
        assert outcome is Outcome.DONE

    def _all_reduce(self, tensor: Tensor, out: Tensor) -> None:
        self._check_alive()
        if tensor.size == 0:
            return
        if self.port is None:
            self._alone(tensor, out, Operation.ALL_REDUCE)
            return
        plan = self.tensors.get(tensor.size)
        if plan is None:
            plan = self.tensors[tensor.size] = TensorPlan(
                tensor.size, self._pace, self.port, self.lanes
            )
            self._plans = np.array([each.native.value for each in self.tensors.values()])
            self.port.process.know(self._plans)
        self._predict(plan.kinds, tensor)
        self.port.process.reduced = 0
        self._go_on(tensor, out, Outcome.DECLINED)

    def _go_on(self, tensor: Tensor, out: Tensor, outcome: Outcome) -> None:
        """Reduce a tensor from the segment on that native code has come to.

        :param outcome: How that segment's collective has ended; `Outcome.DECLINED` if it has not
            begun.
        """
        assert self.port is not None
        process, plan = self.port.process, self.tensors[tensor.size]
        while True:
            if outcome is Outcome.DECLINED:
                outcome = process.reduce_segments(plan.native, tensor.ctypes.data, out.ctypes.data)
            if outcome is Outcome.DONE:
                return
            kind = plan.kinds[process.reduced]
            part = slice(kind.first, kind.first + kind.layout.count)
            started = None if outcome is Outcome.DECLINED else outcome
            self._reduce(kind, tensor[part], out[part], started)
            process.reduced += 1
            outcome = Outcome.DECLINED

    def _reduce(
        self, kind: TensorKind, tensor: Tensor, out: Tensor, outcome: Outcome | None = None
    ) -> None:
        """Reduce a tensor, or a segment of one.

        :param outcome: How far its collective has come, if it has been started.
        """
        assert self.port is not None
        values = tensor
        while True:
            exponent = kind.exponent
            assert exponent is not None
            if outcome is None:
                outcome = self._start(kind, values, out, exponent)
            outcome = self._settle(kind, values, out.ctypes.data, exponent, outcome)
            if outcome is Outcome.FAULTY:
                # All ranks see the same faults, so all get here, and all continue or give up
                # together.
                status = decode(self.spec.size, self.port.maps.status_bytes(kind.layout))
                self._compare(kind, status)
                values = self._mend(tensor, status, kind.operation)
                self._learn(kind, status.exponent)
            else:
                self._learn(kind, self.port.process.seen)
            if outcome is Outcome.DONE:
                break
            self.redone += 1
            outcome = None
        if self.lanes.may_overflow(exponent):
            self._limit(kind, out, exponent)

    def _predict(self, kinds: list[TensorKind], tensor: Tensor) -> None:
        """Agree on the exponent of a tensor's segments, unless they have one."""
        if kinds[0].exponent is None:
            exponent = self._agree(tensor)
            for kind in kinds:
                self._learn(kind, exponent)

    def _learn(self, kind: TensorKind, seen: int) -> None:
        """Update the prediction of a kind of tensor with a collective's status."""
        assert self.port is not None
        self.port.process.learn(kind.native, seen)
        kind.retag()

    def _fail(self, cause: str) -> None:
        """From now on, refuse all collectives."""
        self._failed = cause
        self.tensors.clear()
        if self.port is not None:
            self.port.process.know(np.empty(0, dtype("ring_plan")))

    def _start(
        self, kind: TensorKind, values: Tensor, out: Tensor, exponent: int, absmax: float = 0.0
    ) -> Outcome:
        """One collective of a tensor's lanes and the status, until it is complete or needs help.

        :param absmax: A magnitude that the status counts in addition to those of the values.
        """
        port, target = self._enter(), out.ctypes.data
        source, tag = target if values is out else values.ctypes.data, kind.tag(exponent)
        if kind.operation is Operation.REDUCE_SCATTER:
            source += kind.first * values.itemsize
            return port.process.scatter(kind.layout, self.seq, tag, source, target, exponent)
        return port.process.reduce(kind.layout, self.seq, tag, source, target, absmax, exponent)

    def _enter(self) -> RingPort:
        """Take the next sequence number."""
        port = self.port
        assert port is not None
        before, seq = self.seq, seq_after(self.seq)
        port.process.seq = seq
        if must_forget(before, seq):
            port.maps.forget(before)
        if self.spec.reproducible:  # save all partial sums, as after a loss
            port.maps.control.lossy = seq
        port.process.within = True
        return port

    def _settle(
        self, kind: TensorKind, values: Tensor, target: int, exponent: int, outcome: Outcome
    ) -> Outcome:
        """Complete the collective that has been started.

        :param target: Address of the result.
        :param outcome: How far it has come.
        """
        port, seq, layout = self.port, self.seq, kind.layout
        assert port is not None
        fewest, progressed = math.inf, time.monotonic()
        first = layout.scattered or layout.gathered
        while outcome in (Outcome.APART, Outcome.NONFINITE, Outcome.LATE):
            if outcome is Outcome.NONFINITE:
                self._report(kind, values)
            try:
                apart = outcome is Outcome.APART
                self._recovery.wait(seq, first if apart else layout.total, kind.operation)
                before, stored = port.process.refused, int(port.maps.control.stored)
                go_on = port.process.go_on if apart else port.process.complete
                outcome = go_on(layout, target, exponent)
                # What is only gathered may come before the chunks that this part waits for.
                first = layout.scattered or max(layout.gathered, stored + 1)
                bad = port.process.refused - before
                if bad < fewest or (apart and not bad):
                    fewest, progressed = bad, time.monotonic()
                elif time.monotonic() - progressed > self.spec.timeout:
                    self._recovery.give_up(End(Reason.DAMAGED))
                    raise CollectiveError(
                        f"rank {self.spec.rank} ({self.spec.me.name}): results are not what their"
                        f" checks say, again and again for {self.spec.timeout:g} s"
                        f" ({kind.operation.noun} {seq}: at best {fewest} of {layout.total} chunks)"
                    )
            except CollectiveError as error:
                self._fail(str(error))
                raise
        port.process.within = False
        return outcome

    def _report(self, kind: TensorKind, values: Tensor) -> None:
        """End the input with a status that says which values are not finite."""
        assert self.port is not None
        rest = self.lanes.exponent_for(finite_absmax(values))
        fault = inspect(values, self.spec.rank)
        if fault is not None and kind.operation is Operation.ALL_REDUCE:
            fault = replace(fault, index=kind.first + fault.index)
        status = encode(self.spec.size, self.spec.rank, rest, kind.layout.identity, fault)
        self.port.process.finish(kind.layout, self.seq, status)

    def _compare(self, kind: TensorKind, status: Status) -> None:
        """Check that all ranks reduce the same tensor, as far as the status shows.

        :raises CollectiveError: The text names the ranks that reduce another tensor than this one.
        """
        identity = kind.layout.identity
        others = [
            f"rank {rank} ({self.spec.members[rank].name}) {describe(other)}"
            for rank, other in enumerate(status.identities)
            if other != identity
        ]
        if others:
            text = (
                f"rank {self.spec.rank} ({self.spec.me.name}): the ranks reduce different tensors:"
                f" {describe(identity)} here, {', '.join(others)}"
                f" ({kind.operation.noun} {self.seq})"
            )
            self._fail(text)
            raise CollectiveError(text)

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
        outcome = self._settle(kind, nothing, nothing.ctypes.data, 0, outcome)
        if outcome is Outcome.FAULTY:
            status = decode(self.spec.size, self.port.maps.status_bytes(kind.layout))
            self._compare(kind, status)
        assert outcome is Outcome.DONE
        return self.port.process.seen

    def _alone(self, tensor: Tensor, out: Tensor, operation: Operation) -> None:
        fault = inspect(tensor, 0)
        if fault is not None:
            tensor = self._mend(tensor, Status(0, (), (fault,)), operation)
        np.copyto(out, tensor)

    def _mend(self, tensor: Tensor, status: Status, operation: Operation) -> Tensor:
        """Return what to reduce instead of a tensor with values that are not finite.

        :raises CollectiveError: ``on_overflow`` is "error"; the text names ranks and indices.
        """
        if self.spec.on_overflow == "error":
            found = "; ".join(self._describe(fault) for fault in status.faults)
            raise CollectiveError(f"{operation.noun}: {found}")
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
        maps, every, first = self.port.maps, 1, 0
        if kind.operation is Operation.REDUCE_SCATTER:
            every, first = self.spec.size, (self.spec.rank + 1) % self.spec.size
        sums = kind.layout.lanes_in(
            maps.results[first * maps.chunk_bytes :],
            maps.chunk_bytes,
            indices,
            self.lanes.dtype,
            every,
        )
        beyond = indices[self.lanes.surely_overflows(sums, exponent)]
        if beyond.size and self.spec.on_overflow == "error":
            index = kind.first + int(beyond[0])
            raise CollectiveError(
                f"{kind.operation.noun}: the sum over ranks 0..{self.spec.size - 1} overflows"
                f" float32 at index {index}, as rank {self.spec.rank} ({self.spec.me.name}) and all"
                " others see"
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
                if not self.port.process.within:
                    self._recovery.linger(self.seq)
                elif self._failed:
                    self._recovery.part()
            finally:
                self.port.close()
                self.port = self._process = None
                del self._recovery  # it has views of the maps
