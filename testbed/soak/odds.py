"""The expected time of a scenario under its faults, so that no draw takes minutes. Pure.

The model is coarse: it counts the hops of a collective that nothing overlaps with, and what a loss
costs on one of them. Its constants were fitted to what soaks took on the reference machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.collectives.ring.layout import Layout, Pace, chunk_bytes_for, window_for
from testbed.faults.rules import Burst, Corrupt, Delay, Drop, Reorder, Rule
from testbed.faults.spec import parse_fault
from testbed.protocol.lanes import Lanes
from testbed.soak.scenario import Exchange, Group

__all__ = ["LEAST_PHASE", "Odds"]

LEAST_PHASE = 0.02
"""With ``origin`` a reduce-scatter phase that breaks starts over at the chunk's owner, so it takes
(1-p)^-(N-1) attempts on average, each at least a round trip. It always ends; in time for a soak if
a phase succeeds at least once in fifty attempts."""

_RANK = 60e-6  # seconds per rank and collective: two cores serve all ranks
_FRAME = 3e-6  # seconds per frame and hop
_LOSS = 1.5e-3  # seconds until a lost frame has been retransmitted
_TRY = 4e-3  # seconds of a phase that an owner starts over
_TOKENS = 192  # frames in flight


@dataclass(frozen=True)
class Odds:
    """The combined effect of faults on a frame over one link.

    :param passes: Probability that it is not lost or damaged.
    :param once: The same of all rules that are for a single link: one hop of a phase meets them.
    :param waits: Seconds that it is delayed on average.
    """

    passes: float = 1.0
    once: float = 1.0
    waits: float = 0.0

    @classmethod
    def of(cls, faults: Sequence[str], kinds: Sequence[str]) -> "Odds":
        """Of faults, in the words of ``--fault``, for frames of these kinds."""
        passes = once = 1.0
        waits = 0.0
        for fault in map(parse_fault, faults):
            if (
                not isinstance(fault, Rule)
                or (fault.kind and not set(fault.kind) & set(kinds))
                or fault.attempt.last == 0
            ):
                continue
            if isinstance(fault, Delay):
                waits += fault.p * (fault.delay + fault.jitter)
            elif isinstance(fault, Reorder):
                waits += fault.p * fault.within  # at most
            elif isinstance(fault, Drop | Corrupt | Burst):
                lost = fault.p
                if isinstance(fault, Burst):
                    lost *= fault.enter / (fault.enter + fault.leave)
                if fault.link == (("*", "*"),):
                    passes *= 1 - lost
                else:
                    once *= 1 - lost
        return cls(passes, once, waits)

    def phase(self, ranks: int) -> float:
        """Probability that a chunk's reduce-scatter phase gets through without a loss."""
        return self.once * math.pow(self.passes, ranks - 1)

    def all_reduce(self, group: Group, elements: int, mtu: int) -> float:
        """Seconds that an all-reduce takes."""
        ranks = len(group.members)
        chunk_bytes = chunk_bytes_for(mtu, group.terms.chunk)
        lanes, pace = Lanes.named(group.terms.lanes, ranks), Pace.of(group.terms)
        parts = [
            Layout.plan(elements, lanes, chunk_bytes, len(part), pace).total
            for part in pace.cut(elements, lanes)
        ]
        chunks = sum(parts)
        window = window_for(group.terms.window, ranks, chunk_bytes, tokens=group.terms.tokens)
        in_a_row = sum(max(1.0, part / (window * ranks)) for part in parts)
        hops = 2 * (ranks - 1)
        lost = hops * (1 / self.passes - 1) + 2 * (1 / self.once - 1)
        way = _RANK * ranks + hops * self.waits
        if group.terms.recovery == "upstream":
            way += lost * _LOSS / self.passes
        else:
            way += (1 / self.phase(ranks) - 1) * (
                _TRY + ranks * self.waits
            ) + lost / 2 * _LOSS / self.passes
        return in_a_row * way + chunks * hops * _FRAME

    def aggregation(self, exchange: Exchange) -> float:
        """Seconds that an exchange takes."""
        ranks = len(exchange.members)
        rows = min(exchange.vertices * (ranks - 1), exchange.entries)  # that are sent
        frames = rows * exchange.dim * (
            2 if exchange.terms.lanes == "int16" else 4
        ) / 1000 + ranks * (ranks - 1)
        flights = max(1.0, frames / ranks / _TOKENS)
        lost = 1 / (self.passes * self.once) - 1
        way = _RANK * ranks + 4 * self.waits + 4 * lost * _LOSS / self.passes
        return flights * way + frames * _FRAME + exchange.entries * exchange.dim * 2e-9
