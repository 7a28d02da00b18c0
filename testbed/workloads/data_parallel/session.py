"""The controller's side of data-parallel training."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from testbed.collectives.mpi.launch import rank_workers
from testbed.comm.options import CollectiveOptions
from testbed.host import estimates
from testbed.workloads.data_parallel import calls
from testbed.workloads.data_parallel.scenario import DataParallelScenario
from testbed.workloads.training.measures import record_epoch, record_test
from testbed.workloads.training.session import TrainingSession
from testbed.workloads.workload import Stage, Turn

__all__ = ["DataParallel"]


class DataParallel(TrainingSession[DataParallelScenario]):
    """Trains by ``[collective]``."""

    modules = (calls.__name__, "testbed.gnn.train")

    def estimate(
        self, graph: estimates.Graph, model: estimates.Model, classes: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        """See `TrainingSession.estimate`."""
        scenario, hosts = self.scenario, self.scenario.fabric.hosts
        workers, batch = hosts * (1 + ("mpi" in scenario.backends)), scenario.training.batch_size
        need = estimates.data_parallel(graph, model, hosts, workers, batch, scenario.model.fanout)
        return need, {"training.batch_size": batch}

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """See `Session.prepare`."""
        facts = super().prepare(say)
        training = self.scenario.training
        steps = math.ceil(len(self.data.train) // self.scenario.fabric.hosts / training.batch_size)
        self.steps = min(steps, training.steps or steps)
        return facts

    @contextmanager
    def ranks(self, stage: Stage, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Session.ranks`."""
        seed = self.scenario.scenario.seed + trial
        with ExitStack() as stack:
            ranks: dict[str, list[str]] = {}
            for backend in self.scenario.backends:
                names = stack.enter_context(rank_workers(backend, stage.workers, stage.hosts))
                shared = {
                    "backend": backend,
                    "scenario": self.scenario,
                    "graph": str(self.folder),
                    "seed": seed,
                }
                stage.workers.call_all(
                    calls.prepare_rank,
                    {name: {**shared, "rank": number} for number, name in enumerate(names)},
                )
                ranks[backend] = names
            yield ranks

    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """See `Session.open`."""
        groups = stage.groups(
            capacity=self.capacity, **self.scenario.collective.only(CollectiveOptions)
        )
        arguments = {
            name: {"backend": backend, "group": group}
            for name, group in zip(names, groups, strict=True)
        }
        stage.workers.call_all(calls.open_rank, arguments)

    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """See `Session.train`."""

        def on_progress(_name: str, value: calls.StepDone) -> None:
            stage.step(turn.backend, turn.epoch * self.steps + value.step)

        call = {"backend": turn.backend, "epoch": turn.epoch}
        answers = stage.workers.call_all(
            calls.train_rank, dict.fromkeys(names, call), on_progress=on_progress
        )
        return record_epoch(stage.table, turn, [answers[name] for name in names])

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """See `Session.finish`."""
        accuracy, seconds = stage.workers[names[0]].call(calls.test_rank, backend=backend)
        stage.say(record_test(stage.table, trial, backend, accuracy, seconds))
