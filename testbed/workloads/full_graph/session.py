"""The controller's side of full-graph training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from testbed.comm.options import GroupOptions
from testbed.core.errors import SpecError
from testbed.exchange.interface import MAX_DIM
from testbed.exchange.options import ExchangeTerms
from testbed.exchange.registry import EXCHANGES
from testbed.gnn.full.channel import Slot, plan_exchanges
from testbed.gnn.result import FullResult, share_of
from testbed.host import estimates
from testbed.workloads.full_graph import calls
from testbed.workloads.full_graph.scenario import FullGraphScenario
from testbed.workloads.measures import record_counts
from testbed.workloads.training.measures import record_epoch, record_quality, record_test
from testbed.workloads.training.session import TrainingSession
from testbed.workloads.workload import OPTIMIZERS, Stage, Turn

__all__ = ["FullGraph"]


class FullGraph(TrainingSession[FullGraphScenario]):
    """Trains by ``[exchange]``."""

    modules = (calls.__name__, "testbed.gnn.full.train", OPTIMIZERS)

    def __init__(self, scenario: FullGraphScenario) -> None:
        super().__init__(scenario)
        self.planned: dict[Slot, int] = {}
        self.last: dict[str, list[FullResult]] = {}

    def estimate(
        self, graph: estimates.Graph, model: estimates.Model, classes: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        """See `TrainingSession.estimate`."""
        planned = self.plan(graph.features, classes)
        return (
            estimates.full_graph(graph, model, self.scenario.fabric.hosts, list(planned.values())),
            {},
        )

    def plan(self, features: int, classes: int) -> dict[Slot, int]:
        """Return the exchanges that the model takes, with their dimensions."""
        return plan_exchanges(
            self.scenario.model,
            features,
            classes,
            cached=self.scenario.exchange.bound is not None,
            cut=self.scenario.exchange.policy is not None,
        )

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Also partition the graph, and check the size of its embeddings; see `Session.prepare`.

        :raises StorageError: As in :func:`testbed.gnn.partition.cached_owners`.
        """
        facts, data, hidden = super().prepare(say), self.data, self.scenario.model.hidden
        self.planned = self.plan(data.feature_dim, data.num_classes)
        if (longest := max(self.planned.values())) > MAX_DIM:
            raise SpecError(
                f"model.hidden = {hidden}: embeddings of {longest} elements travel: must be at most"
                f" {MAX_DIM}"
            )
        self.quality = calls.quality_of(self.scenario, self.folder, data)
        return facts

    @contextmanager
    def ranks(self, stage: Stage, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Session.ranks`."""
        for backend in self.scenario.backends:
            seed = self.scenario.scenario.seed + trial
            shared = {
                "backend": backend,
                "scenario": self.scenario,
                "graph": str(self.folder),
                "seed": seed,
            }
            stage.workers.call_all(
                calls.prepare_rank,
                {name: {**shared, "rank": number} for number, name in enumerate(stage.hosts)},
            )
            record_quality(stage.table, trial, backend, self.quality)
        yield dict.fromkeys(self.scenario.backends, stage.hosts)

    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """See `Session.open`."""
        options = self.scenario.exchange.only(GroupOptions)
        # Ranks enter at different times, since they compute before: yielding to each other would
        # only waste system calls.
        reduce = stage.groups(capacity=self.capacity, yields=0, **options)
        groups = {slot: stage.groups(**options) for slot in self.planned}
        arguments = {
            name: {
                "backend": EXCHANGES[backend].all_reduce,
                "group": reduce[number],
                "exchange": backend,
                "exchanges": {
                    slot: {"group": groups[slot][number], **self._terms(slot)}
                    for slot in self.planned
                },
            }
            for number, name in enumerate(names)
        }
        stage.workers.call_all(calls.open_rank, arguments)

    def _terms(self, slot: Slot) -> dict[str, Any]:
        """Return a slot's fields of `testbed.exchange.interface.ExchangeSpec`.

        A bound applies to embeddings in training. Gradients are too small for it, so only unchanged
        ones are left out. Evaluation sends everything.
        """
        terms = self.scenario.exchange.only(ExchangeTerms)
        bound = terms["bound"]
        bounds = {"forward": bound, "backward": None if bound is None else 0.0}
        return {**terms, "dim": self.planned[slot], "bound": bounds.get(slot.use)}

    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """See `Session.train`."""
        call = {"backend": turn.backend, "epoch": turn.epoch}
        answers = stage.workers.call_all(calls.train_rank, dict.fromkeys(names, call))
        self.last[turn.backend] = results = [answers[name] for name in names]
        return record_epoch(stage.table, turn, results)

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """Record the accuracy after the last epoch, and the system calls and page faults of a
        further epoch; see `Session.finish`.

        That epoch is separate and without faults, because counting slows every system call down;
        and the second of its turn, when connections and caches are warm.
        """
        results = self.last[backend]
        accuracy = share_of(
            sum(result.test_correct for result in results),
            sum(result.test_total for result in results),
        )
        stage.say(
            record_test(stage.table, trial, backend, accuracy, results[0].times["validation_time"])
        )
        epochs = self.scenario.epochs
        with self.opened(stage, backend, names):
            for epoch, counted in ((epochs, False), (epochs + 1, True)):
                call = {"backend": backend, "epoch": epoch, "counted": counted}
                answers = stage.workers.call_all(calls.train_rank, dict.fromkeys(names, call))
        for number, name in enumerate(names):
            counts = answers[name].counts
            crossings = {key: counts[key] for key in ("syscalls", "page_faults")}
            crossings["crossings"] = sum(crossings.values())
            record_counts(stage.table, trial, backend, number, None, crossings)
