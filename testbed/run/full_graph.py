"""Full-graph training as a run does it: exchanges between neighbours, and a transport beside them that sums gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.errors import SpecError
from testbed.exchange.interface import MAX_DIM
from testbed.exchange.registry import EXCHANGES
from testbed.gnn.full.channel import Slot, plan_exchanges
from testbed.gnn.graph import GraphData
from testbed.gnn.partition import measure
from testbed.gnn.result import EpochResult, FullResult
from testbed.gnn.weights import parameter_count
from testbed.run import full_rank, measures
from testbed.run.full_rank import partition
from testbed.run.turns import Stage, Turns
from testbed.spec.scenario import Scenario

__all__ = ["FullGraph", "check_full_graph"]


class FullGraph(Turns):
    """Trains by ``[exchange]``."""

    # The last is what torch's optimizers import when the first of them is made.
    modules = ("testbed.run.full_rank", "testbed.gnn.full.train", "torch._dynamo")

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        assert self.scenario.exchange is not None
        self.terms = self.scenario.exchange
        self.epochs_a_turn = self.terms.turn
        data, model, hosts = stage.data, self.scenario.model, len(self.hosts)
        self.planned = plan_exchanges(model, data.feature_dim, data.num_classes, self.terms.bound is not None)
        self.capacity = parameter_count(model, data.feature_dim, data.num_classes)
        self.quality = measure(data.indptr, data.indices, partition(self.scenario, stage.graph), hosts)
        self.last: dict[str, list[FullResult]] = {}

    @contextmanager
    def prepared(self, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Turns.prepared`."""
        for transport in self.scenario.transports:
            seed = self.scenario.scenario.seed + trial
            shared = {"transport": transport, "scenario": self.scenario, "graph": str(self.stage.graph), "seed": seed}
            self.workers.call_all(
                full_rank.prepare_rank, {name: {**shared, "rank": number} for number, name in enumerate(self.hosts)}
            )
            measures.record_partition(self.table, trial, transport, self.quality)
        yield dict.fromkeys(self.scenario.transports, self.hosts)

    def open(self, transport: str, names: list[str]) -> None:
        """See `Turns.open`."""
        terms = self.terms.model_dump(include={"lanes", "window", "timeout", "affinity"})
        # Ranks come at different times, from computing: giving way to each other would be system calls for nothing.
        reduce = self.groups(capacity=self.capacity, yields=0, **terms)
        groups = {slot: self.groups(**terms) for slot in self.planned}
        calls = {
            name: {
                "transport": EXCHANGES[transport].all_reduce,
                "group": reduce[rank],
                "exchange": transport,
                "exchanges": {slot: {"group": groups[slot][rank], **self._terms(slot)} for slot in self.planned},
            }
            for rank, name in enumerate(names)
        }
        self.workers.call_all(full_rank.open_rank, calls)

    def _terms(self, slot: Slot) -> dict[str, Any]:
        """Return a slot's fields of `testbed.exchange.interface.ExchangeSpec`.

        A bound is one for embeddings in training. Gradients are too small for it: only those that have not changed at all are
        left out. Evaluation takes everything.
        """
        bounds = {"forward": self.terms.bound, "backward": None if self.terms.bound is None else 0.0, "evaluation": None}
        return {
            "dim": self.planned[slot],
            "bound": bounds[slot.use],
            "staleness": self.terms.staleness,
            "processing": self.terms.processing,
        }

    def train(self, transport: str, epoch: int, names: list[str]) -> list[EpochResult]:
        """See `Turns.train`."""
        call = {"transport": transport, "epoch": epoch}
        answers = self.workers.call_all(full_rank.train_rank, dict.fromkeys(names, call))
        self.last[transport] = [answers[name] for name in names]
        return list(self.last[transport])

    def finish(self, trial: int, transport: str, names: list[str]) -> None:
        """Record the accuracy after the last epoch, and what a further one asks of the kernel; see `Turns.finish`.

        That epoch is one of its own, without faults, since counting makes every system call slower; and the second of its turn,
        when connections and caches are warm.
        """
        results = self.last[transport]
        total = sum(result.test_total for result in results)
        accuracy = sum(result.test_correct for result in results) / total if total else 0.0
        measures.record_test(self.table, trial, transport, accuracy, results[0].times["validation_time"])
        self.stage.display.say(f"{transport}: test accuracy {accuracy:.2%}")
        epochs = self.scenario.training.epochs
        with self.opened(transport, names):
            for epoch, counted in ((epochs, False), (epochs + 1, True)):
                call = {"transport": transport, "epoch": epoch, "counted": counted}
                answers = self.workers.call_all(full_rank.train_rank, dict.fromkeys(names, call))
        for rank, name in enumerate(names):
            counts = answers[name].counts
            crossings = {key: counts[key] for key in ("syscalls", "page_faults")}
            measures.record_counts(self.table, trial, transport, rank, None, crossings | {"crossings": sum(crossings.values())})


def check_full_graph(scenario: Scenario, graph: Path, data: GraphData) -> None:
    """Partition the graph, and see whether its embeddings can travel.

    :raises SpecError: The graph cannot be partitioned so, or embeddings are too long for an exchange.
    :raises StorageError: As :func:`testbed.gnn.partition.cached_owners`.
    """
    partition(scenario, graph)
    longest = max(plan_exchanges(scenario.model, data.feature_dim, data.num_classes, cached=False).values())
    if longest > MAX_DIM:
        raise SpecError(
            f"model.hidden = {scenario.model.hidden}: embeddings of {longest} elements travel: allowed is {MAX_DIM}"
        )
