"""``pinch``: a TC program broadcasts embeddings and an XDP program sums them; see docs/pinch.md.

The process quantizes what other ranks need into memory that it shares with the kernel, kicks,
sleeps, and reads the sums; everything in between is ``bpf/broadcast.bpf.c`` and
``bpf/aggregate.bpf.c``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.comm.collective import Counters
from testbed.core.errors import CollectiveError
from testbed.datapath.dispatcher import Dispatcher
from testbed.exchange.finite import not_finite
from testbed.exchange.interface import Embeddings, Exchange, ExchangeSpec
from testbed.exchange.partial_sums import scaled_sums
from testbed.exchange.pinch.cache import SLACK as CACHE_SLACK
from testbed.exchange.pinch.cache import Cache
from testbed.exchange.pinch.fixed_point import (
    EXPONENTS,
    LEAST_EXPONENT,
    SLACK,
    Numbers,
    exponent_of,
)
from testbed.exchange.pinch.landings import Landings, frame_bound
from testbed.exchange.pinch.layout import Bundles, RowLayout, bundle, is_packed
from testbed.exchange.pinch.port import PinchPort
from testbed.exchange.pinch.recovery import Recovery
from testbed.exchange.pinch.vertex_tables import make_tables
from testbed.kernel.abi import constant
from testbed.plan import Datapath
from testbed.protocol.pinch.packet import LEAST_BYTES
from testbed.protocol.scale import ScaleGuess
from testbed.protocol.sequence import seq_after

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["Pinch"]

_FEW = constant("PINCH_FEW")


class Pinch(Exchange):
    """One rank. See `Exchange`."""

    name: ClassVar[str] = "pinch"
    needs: ClassVar[Datapath] = "xdp"

    def __init__(self, context: WorkerContext, spec: ExchangeSpec) -> None:
        plain = spec.aggregate == "process"
        if not plain:
            halo, aggregation = scaled_sums(spec.halo, spec.aggregation)
            spec = replace(spec, halo=halo, aggregation=aggregation)
        super().__init__(context, spec)
        bits = 16 if spec.group.lanes == "int16" and not plain else 32
        packed = not plain and is_packed(spec.sums, bits, spec.aggregation)
        self.layout = RowLayout.plan(spec.dim, bits, spec.group.mtu, packed)
        if plain:
            tables = make_tables(spec.halo, self.layout, "max")  # the process has no limits
            self._tables = tables.for_landing(frame_bound(spec.halo, self.layout))
        else:
            self._tables = make_tables(spec.halo, self.layout, spec.aggregation)
        self._scale = ScaleGuess(spec.exponent, SLACK)
        if spec.bound is not None:
            self._scale = ScaleGuess(
                slack=CACHE_SLACK, patience=None
            )  # a new scale costs the whole cache
        self._numbers = Numbers(
            self.layout,
            spec.aggregation,
            self._tables.scale,
            spec.bound is not None,
            self._scale.slack,
            plain,
        )
        self._cache = (
            None if spec.bound is None else Cache(self._numbers, spec, self._tables.outgoing)
        )
        self.port: PinchPort | None = None
        self._plain = plain  # rows travel as they are, and the process adds them up
        self._failed: str | None = None
        self._together = False  # as far as this rank knows, all ranks are in the same exchange
        self._nonfinite = False  # all ranks know that some rank has values that are not finite

    def connect(self) -> None:
        """See `Exchange.connect`."""
        group = self.spec.group
        if group.size == 1:
            return
        self.port = port = PinchPort(
            Dispatcher.of(self.context), self.spec, self.layout, self._tables, self._numbers
        )
        meeting = Recovery(port, group.connect_timeout)
        self._recovery = Recovery(port, group.timeout)
        if self._plain:
            self._landings = Landings(
                self.spec.halo,
                self._numbers,
                self.spec.aggregation,
                port.maps,
                port.placement.banks,
            )
        self._numbers.reset(port.maps.accumulators)
        nothing = bundle(self._tables.outgoing[:0], self._tables.masks[:0], self.layout.rows)
        self._address(nothing)
        self._advance()
        port.handshakes.enter(LEAST_EXPONENT, EXPONENTS)
        # Handshakes of other ranks may have arrived before this rank was open.
        port.kicks.send_handshakes(1)
        port.sending.send(np.empty((0, self.spec.dim), np.float32), nothing, 1.0, None)
        meeting.wait()
        self._together = True
        self._address(bundle(self._tables.outgoing, self._tables.masks, self.layout.rows))
        if self.spec.exponent is not None:
            halo = self.spec.halo
            needed = [
                rank
                for rank in range(group.size)
                if len(halo.sends[rank]) or len(halo.sources[rank])
            ]
            port.maps.control.partners = sum(1 << rank for rank in {*needed, group.rank})
        self.open_next()

    def _address(self, bundles: Bundles) -> None:
        assert self.port is not None
        self._bundles = bundles
        self.port.sending.address(bundles)

    def _advance(self) -> None:
        """Accept frames of the next sequence number from now on."""
        assert self.port is not None
        self.port.process.open(seq_after(self.port.process.seq))

    def open_next(self) -> None:
        """Open the next exchange, because other ranks may enter it before this one does."""
        self._advance()
        if self.spec.exponent is not None:
            # The content of the handshake is known already.
            assert self.port is not None
            self.port.handshakes.enter(self.spec.exponent, EXPONENTS)

    @property
    def phases(self) -> dict[str, float]:
        """See `Exchange.phases`."""
        if self.port is None:
            return self._phases
        native = self.port.process.seconds
        return {phase: seconds + native.get(phase, 0.0) for phase, seconds in self._phases.items()}

    def _aggregate(self, x: Embeddings, out: Embeddings) -> None:
        if self._failed:
            raise CollectiveError(f"this exchange has failed before, open it again: {self._failed}")
        port = self.port
        if port is None:
            self._alone(x, out)
            return
        try:
            exponent = self._exchange(x)
        except CollectiveError as error:
            self._failed, self._together = (
                str(error),
                self._nonfinite or any(port.handshakes.ended[0]),
            )
            raise
        if self._plain:
            with self._timed("aggregate"):
                self._landings.aggregate(out)
            self.open_next()
            return
        with self._timed("dequantize"):
            clear = self._cache is None
            self._numbers.collect(
                port.maps.accumulators,
                self._tables.targets,
                port.placement.banks,
                out,
                exponent,
                clear,
            )
        self.open_next()

    def _exchange(self, x: Embeddings) -> int:
        """Send and receive everything.

        :returns: The exponent that all ranks have used.
        """
        with self._timed("quantize"):
            absmax = self._numbers.absmax(x, self._tables.outgoing)
        own = exponent_of(absmax) if math.isfinite(absmax) else None
        if self._plain and own is not None:
            own = self.spec.exponent or 0  # nothing depends on it
        if self.spec.exponent is not None:
            # A partial sum may be rounded up to the power of two itself, which a lane holds.
            if own is None or (
                own > self.spec.exponent
                and (self.spec.halo.sums is None or absmax > 2.0**self.spec.exponent)
            ):
                raise self._too_large(own, self.spec.exponent)
            self._send(x, self.spec.exponent)
            self._recovery.wait()
            return self.spec.exponent
        while (exponent := self._try(x, own)) is None:
            # All ranks get here, because all have the same handshakes. None has sent anything yet.
            assert self.port is not None
            if self._cache:
                self._cache.forget()
                self._numbers.reset(self.port.maps.accumulators)
            self._advance()
        if self._cache:
            self._cache.commit()
        return exponent

    def _try(self, x: Embeddings, own: int | None) -> int | None:
        """Exchange with the predicted scale.

        :param own: This rank's largest exponent; None: it has values that are not finite.
        :returns: The exponent used; None: it does not fit, and the right one is now known.
        """
        guess, port = self._scale.exponent, self.port
        assert port is not None
        holds = (
            range(0)
            if guess is None
            else range(max(guess - self._scale.slack, LEAST_EXPONENT), guess + 1)
        )
        used = None if guess is None or own is None or own > guess else guess
        if used is not None and self._cache:
            self._choose(x, self._cache, used)
        # Few frames are filled before any rank waits for the handshake, which then is their kick.
        few = used is not None and len(self._bundles.to) * self.layout.parts <= _FEW
        if used is not None and few:
            self._send(x, used)
        with self._timed("send"):
            port.handshakes.enter(own, holds)
        if used is not None and not few:
            self._send(x, used)
        complete = self._recovery.wait()
        highest = port.handshakes.highest
        if highest is None:
            nonfinite, self._nonfinite = port.handshakes.nonfinite, True
            self._advance()
            raise not_finite(self.spec.group, nonfinite)
        self._scale.learn(highest)
        return guess if complete else None

    def _send(self, x: Embeddings, exponent: int) -> None:
        assert self.port is not None
        last = self._cache.last if self._cache else None
        self.port.sending.send(x, self._bundles, self._numbers.factor(exponent), last)

    def _too_large(self, own: int | None, exponent: int) -> CollectiveError:
        """Tell all other ranks, which would otherwise wait for frames that this rank cannot
        send.
        """
        assert self.port is not None
        group = self.spec.group
        self.port.handshakes.end(nonfinite=[group.rank])
        what = (
            "that are not finite"
            if own is None
            else f"of 2**{exponent} or more, which exponent = {exponent} leaves out"
        )
        return CollectiveError(
            f"exchange: rank {group.rank} ({group.me.name}) has embeddings {what}"
        )

    def _choose(self, x: Embeddings, cache: Cache, exponent: int) -> None:
        """Choose the vertices to send in this exchange."""
        with self._timed("quantize"):
            chosen = cache.choose(x, exponent)
            self._address(
                bundle(self._tables.outgoing[chosen], self._tables.masks[chosen], self.layout.rows)
            )

    def _alone(self, x: Embeddings, out: Embeddings) -> None:
        out[:] = -np.inf if self.spec.aggregation == "max" else 0

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._phases[phase] += time.perf_counter() - started

    def counters(self) -> Counters:
        """See `Exchange.counters`."""
        if self.port is None:
            return Counters()
        table = self.port.maps.counters()
        others = table["acks"] + table["asks"] + table["handshakes"]
        return Counters(
            table["sent"] + others, table["sent_bytes"] + others * LEAST_BYTES, table["resent"]
        )

    def error_bound(self, absmax: float) -> NDArray[np.float64]:
        """Largest error of each vertex's aggregate if no embedding's element exceeds `absmax`; see
        `Numbers.error_bound`.

        :returns: float64 of shape (owned vertices, 1).
        """
        if self._plain:
            return Landings.error_bound(self.spec.halo, absmax, self.spec.aggregation)
        return self._numbers.error_bound(self.spec.halo, absmax, self.spec.bound or 0.0)

    def statistics(self) -> dict[str, int]:
        """The state of this rank: its sequence number, and all counters of its programs (``enum
        pinch_counter``).
        """
        if self.port is None:
            return {}
        return {"seq": self.port.process.seq, **self.port.maps.counters()}

    def measures(self) -> dict[str, float]:
        """Return further counts since `connect`; see docs/results.md."""
        if self.port is None:
            return {}
        table = self.port.maps.counters()
        row = 8 * self.layout.words + 4
        unused = self._landings.redundant if self._plain else table["unused"]
        found = {
            "redundant_bytes": float(unused * row),
            "aggregated_vertices": float(table["vertices"]),
            "aggregated_edges": float(table["edges"]),
            "acknowledgements": float(table["acks"]),
            "questions": float(table["asks"]),
            "handshakes": float(table["handshakes"]),
            "hub_slices": float(table["slices"]),
            "duplicates": float(table["duplicate"]),
        }
        if self._cache:
            found |= {
                "cache_hits": float(self._cache.hits),
                "cache_lookups": float(self._cache.lookups),
                "bytes_saved": float(self._cache.copies_saved * row * self.layout.parts),
            }
        return found

    def close(self) -> None:
        """See `Exchange.close`."""
        if self.port is not None:
            if self._together:
                with suppress(CollectiveError):
                    self._recovery.linger()
            self.port.close()
            self.port = None
