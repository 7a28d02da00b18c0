"""`Channel`: a rank's open connections to the other ranks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from testbed.comm.backend import Backend
from testbed.comm.collective import Counters
from testbed.exchange.interface import PHASES, Exchange
from testbed.gnn.options import ModelSpec

__all__ = ["Channel", "Slot", "Use", "plan_exchanges", "transforms_first"]


Use = Literal["forward", "backward", "evaluation", "broadcast", "reduce"]


class Slot(NamedTuple):
    """Which exchange of a model.

    :param layer: From 0, at the features.
    :param use: Embeddings of training, their gradients, or embeddings of evaluation. With a vertex
        cut, the two steps of any of these: see `testbed.gnn.full.vertex_cut`.
    """

    layer: int
    use: Use


def transforms_first(inputs: int, outputs: int) -> bool:
    """Tell whether a layer multiplies by its weights before it sums over neighbours, which makes
    rows shorter.
    """
    return inputs > outputs


def plan_exchanges(
    spec: ModelSpec, feature_dim: int, num_classes: int, cached: bool, cut: bool = False
) -> dict[Slot, int]:
    """Return the exchanges that a model takes, in the order in which all ranks open them, and their
    dimensions.

    The first layer has no backward exchange if features themselves are exchanged, since they need
    no gradients.

    :param cached: Exchanges keep what was last sent, so evaluation, which has no dropout, gets
        separate exchanges.
    :param cut: Of a vertex cut, which is never cached.
    """
    planned: dict[Slot, int] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(spec.widths(feature_dim, num_classes))):
        dim = min(inputs, outputs)
        if cut:
            planned |= {Slot(layer, "broadcast"): dim, Slot(layer, "reduce"): dim}
            continue
        planned[Slot(layer, "forward")] = dim
        if layer or transforms_first(inputs, outputs):
            planned[Slot(layer, "backward")] = dim
        if cached:
            planned[Slot(layer, "evaluation")] = dim
    return planned


@dataclass(frozen=True)
class Channel:
    """An all-reduce and a model's exchanges among the same ranks, connected; all of one datapath.

    :param backend: None: this rank is alone.
    :param exchanges: As `plan_exchanges` names them.
    """

    backend: Backend | None = None
    exchanges: Mapping[Slot, Exchange] = field(default_factory=dict)

    def counters(self) -> Counters:
        """What this rank has sent so far. For sockets, the device counts everything, so one counter
        suffices.
        """
        if self.backend is None or self.backend.needs == "sockets":
            return self.backend.counters() if self.backend else Counters()
        return sum(
            (exchange.counters() for exchange in self.exchanges.values()), self.backend.counters()
        )

    def seconds(self) -> dict[str, float]:
        """Time in each phase of the exchanges so far."""
        return {
            phase: sum(exchange.phases[phase] for exchange in self.exchanges.values())
            for phase in PHASES
        }

    def measures(self) -> dict[str, float]:
        """Further counts of the exchanges so far."""
        total: Counter[str] = Counter()
        for exchange in self.exchanges.values():
            total.update(exchange.measures())
        return dict(total)
