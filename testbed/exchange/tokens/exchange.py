"""``pinch`` by tokens: programs move rows to where the process adds them up; see docs/pinch.md."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from testbed.comm.affinity import apply_affinity
from testbed.comm.collective import Counters
from testbed.core.errors import CollectiveError
from testbed.datapath.dispatcher import Dispatcher
from testbed.exchange.adjacency import Adjacency, RowFormat, RowLanes
from testbed.exchange.finite import not_finite
from testbed.exchange.interface import Embeddings, Exchange, ExchangeSpec
from testbed.exchange.partial_sums import scaled_sums
from testbed.exchange.tokens.adding import Adding, Sums
from testbed.exchange.tokens.layout import Layout
from testbed.exchange.tokens.port import TokenPort
from testbed.exchange.tokens.recovery import Recovery
from testbed.plan import Datapath

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Tokens"]

_LANES: dict[str | None, dict[str | None, RowLanes]] = {
    "process": {"int16": "int16", "bfloat16": "bfloat16", "float32": "float32"},
    "kernel": {"int16": "fixed16", "int32": "fixed32"},
}
"""By who adds, and by `ExchangeTerms.dtype`."""


class Tokens(Exchange):
    """One rank. See `Exchange`.

    Values that are not finite end `aggregate` on the rank that has them, if others need them, and
    on those others; the exchange can be used again. After any other error it cannot.

    Phases: ``quantize`` is packing, which forms partial sums; ``send`` handing the first frames to
    the kernel; ``wait`` all until everything has landed; ``aggregate`` adding.
    """

    name: ClassVar[str] = "pinch"
    needs: ClassVar[Datapath] = "xdp"

    def __init__(self, context: WorkerContext, spec: ExchangeSpec) -> None:
        cached = spec.bound is not None
        if cached:  # rows are formed before they are compared
            halo, aggregation = scaled_sums(spec.halo, spec.aggregation)
            spec = replace(spec, halo=halo, aggregation=aggregation)
        super().__init__(context, spec, forms=cached)
        lanes = _LANES[spec.aggregate][spec.dtype]
        form = RowFormat.of(lanes, spec.dim, spec.halo, marked=cached)
        native = not context.fabric_plan.generic
        self.layout = Layout.plan(form, spec.halo, spec.group.mtu, native)
        self.port: TokenPort | None = None
        self._failed: str | None = None
        self._together = False  # no partner can be missing anything but this rank's latest frames

    def connect(self) -> None:
        """See `Exchange.connect`."""
        spec, group, halo = self.spec, self.spec.group, self.spec.halo
        apply_affinity(group)
        adding, travels = None, spec
        if self.layout.form.is_fixed:
            adding = Adding.plan(self.layout, halo, spec.aggregation)
            scaled, how = scaled_sums(halo, spec.aggregation)  # partial sums in the range of rows
            travels = replace(spec, halo=scaled, aggregation=how)
        self.port = port = TokenPort(Dispatcher.of(self.context), travels, self.layout, adding)
        self._recovery = Recovery(port, group.timeout)
        if adding:
            self._sums = Sums(adding, halo, spec.aggregation, port.sums, port.steps)
        else:
            self._adjacency = Adjacency(
                *(halo.indptr, halo.indices, halo.weights, spec.dim, spec.aggregation),
                form=self.layout.form,
                offsets=self.layout.offsets(),
                steps=port.steps if self.layout.form.stepped else None,
            )
        port.open_next()
        port.send(None)
        Recovery(port, group.connect_timeout).wait()
        port.open_next()
        self._together = True

    @property
    def phases(self) -> dict[str, float]:
        """See `Exchange.phases`."""
        if self.port is None:
            return self._phases
        native = self.port.seconds
        return {phase: seconds + native.get(phase, 0.0) for phase, seconds in self._phases.items()}

    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        port = self.port
        if self._failed:
            raise CollectiveError(f"this exchange has failed before, open it again: {self._failed}")
        if port is None:
            raise CollectiveError(f"{self.name}: rank {self.spec.group.rank} is not connected")
        try:
            port.send(x)
            self._recovery.wait()
        except CollectiveError as error:
            self._failed, self._together = str(error), False
            raise
        started = time.perf_counter()
        nonfinite = port.nonfinite
        if not nonfinite:
            self._add(port, out)
        port.open_next()
        self._phases["aggregate"] += time.perf_counter() - started
        if nonfinite:
            raise not_finite(self.spec.group, nonfinite)

    def _add(self, port: TokenPort, out: Embeddings) -> None:
        """Form the result of what has landed."""
        if self.layout.form.is_fixed:
            port.add()
            self._sums.take(port.landed, out)
        else:
            self._adjacency.aggregate(port.landed, out, port.large)

    def counters(self) -> Counters:
        """See `Exchange.counters`."""
        if self.port is None:
            return Counters()
        table = self.port.counters()
        others = table["returned"] + table["statuses"]
        return Counters(table["sent"] + others, table["sent_bytes"], table["resent"])

    def measures(self) -> dict[str, float]:
        """See `Exchange.measures`."""
        return {} if self.port is None else self.port.measures()

    def statistics(self) -> dict[str, int]:
        """The state of this rank: its sequence number, and all counters of its programs (``enum
        token_counter``).
        """
        return {} if self.port is None else {"seq": self.port.seq, **self.port.counters()}

    def close(self) -> None:
        """See `Exchange.close`."""
        if self.port is not None:
            if self._together:
                with suppress(CollectiveError):
                    self._recovery.linger()
            self.port.close()
            self.port = None
