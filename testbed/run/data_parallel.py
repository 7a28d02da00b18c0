"""Data-parallel training as a run does it: minibatches, and a transport that sums gradients."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from testbed.collectives.launch import rank_workers
from testbed.gnn.result import EpochResult
from testbed.gnn.weights import parameter_count
from testbed.run import measures, rank
from testbed.run.turns import Stage, Turns

__all__ = ["DataParallel"]


class DataParallel(Turns):
    """Trains by ``[collective]``."""

    modules = ("testbed.run.rank", "testbed.gnn.train")

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        share = len(stage.data.train) // self.scenario.fabric.hosts
        steps = math.ceil(share / self.scenario.training.batch_size)
        self.steps = min(steps, self.scenario.training.steps or steps)
        self.capacity = parameter_count(self.scenario.model, stage.data.feature_dim, stage.data.num_classes)

    @contextmanager
    def prepared(self, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Turns.prepared`."""
        seed = self.scenario.scenario.seed + trial
        with ExitStack() as stack:
            ranks: dict[str, list[str]] = {}
            for transport in self.scenario.transports:
                names = stack.enter_context(rank_workers(transport, self.workers, self.hosts))
                shared = {"transport": transport, "scenario": self.scenario, "graph": str(self.stage.graph), "seed": seed}
                self.workers.call_all(
                    rank.prepare_rank, {name: {**shared, "rank": number} for number, name in enumerate(names)}
                )
                ranks[transport] = names
            yield ranks

    def open(self, transport: str, names: list[str]) -> None:
        """See `Turns.open`."""
        terms = self.scenario.collective
        groups = self.groups(
            lanes=terms.lanes,
            capacity=self.capacity,
            window=terms.window,
            recovery=terms.recovery,
            gap=terms.gap,
            timeout=terms.timeout,
            on_overflow=terms.on_overflow,
            affinity=terms.affinity,
        )
        calls = {name: {"transport": transport, "group": group} for name, group in zip(names, groups, strict=True)}
        self.workers.call_all(rank.open_rank, calls)

    def train(self, transport: str, epoch: int, names: list[str]) -> list[EpochResult]:
        """See `Turns.train`."""

        def on_progress(_name: str, value: rank.StepDone) -> None:
            self.stage.display.step(transport, epoch * self.steps + value.step)

        call = {"transport": transport, "epoch": epoch}
        answers = self.workers.call_all(rank.train_rank, dict.fromkeys(names, call), on_progress=on_progress)
        return [answers[name] for name in names]

    def finish(self, trial: int, transport: str, names: list[str]) -> None:
        """See `Turns.finish`."""
        accuracy, seconds = self.workers[names[0]].call(rank.test_rank, transport=transport)
        measures.record_test(self.table, trial, transport, accuracy, seconds)
        self.stage.display.say(f"{transport}: test accuracy {accuracy:.2%}")
