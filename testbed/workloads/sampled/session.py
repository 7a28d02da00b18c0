"""The controller's side of sampled training of a distributed graph."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from testbed.comm.options import GroupOptions
from testbed.core.errors import SpecError
from testbed.gnn.partition import cached_owners, measure
from testbed.gnn.result import share_of
from testbed.host import estimates
from testbed.workloads.data_parallel.gradients import GradientSession
from testbed.workloads.sampled import calls
from testbed.workloads.sampled.scenario import SampledScenario
from testbed.workloads.training.measures import record_quality, record_test
from testbed.workloads.training.session import TrainingSession
from testbed.workloads.workload import OPTIMIZERS, Stage

__all__ = ["Sampled"]


class Sampled(TrainingSession[SampledScenario], GradientSession[SampledScenario]):
    """Trains by ``[sampling]``."""

    modules = (calls.__name__, "testbed.sampling.train", "testbed.gnn.model", OPTIMIZERS)
    prepare_rank = staticmethod(calls.prepare_rank)

    def estimate(
        self, graph: estimates.Graph, model: estimates.Model, classes: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        """See `TrainingSession.estimate`."""
        scenario, hosts = self.scenario, self.scenario.fabric.hosts
        batch = scenario.training.batch_size
        need = estimates.data_parallel(graph, model, hosts, hosts, batch, scenario.model.fanout)
        kept = min(scenario.sampling.memory << 20, graph.mapped) * hosts
        return need | {"minibatches ahead": kept}, {"training.batch_size": batch}

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Also distribute the graph; see `Session.prepare`.

        :raises SpecError: A rank would have no training vertex.
        :raises StorageError: As in :func:`testbed.gnn.partition.cached_owners`.
        """
        facts, data, hosts = super().prepare(say), self.data, self.scenario.fabric.hosts
        name = self.scenario.sampling.partitioner
        say(f"distributing the graph by {name}")
        owners = cached_owners(self.folder, name, hosts, self.scenario.scenario.seed)
        counts = np.bincount(owners[data.train], minlength=hosts)
        if not counts.min():
            raise SpecError(
                f"sampling.partitioner = {name}: rank {int(counts.argmin())} of {hosts} would have"
                " no training vertex: use fewer hosts, or another partitioner"
            )
        self.quality = measure(data.indptr, data.indices, owners, hosts)
        self.steps = self.scenario.training.steps_of(int(counts.min()))
        return facts

    def rank_arguments(self) -> dict[str, Any]:
        """See `GradientSession.rank_arguments`."""
        return {"graph": str(self.folder)}

    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """See `Session.open`."""
        options = self.scenario.sampling.only(GroupOptions)
        groups = stage.groups(capacity=self.capacity, **options), stage.groups(**options)
        stage.workers.call_all(
            calls.open_rank,
            {
                name: {"backend": backend, "group": group, "sampling": sampling}
                for name, group, sampling in zip(names, *groups, strict=True)
            },
        )

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """See `Session.finish`."""
        record_quality(stage.table, trial, backend, self.quality)
        with self.opened(stage, backend, names):
            started = time.perf_counter()
            right = stage.workers.call_all(
                calls.test_rank, {name: {"backend": backend} for name in names}
            )
            seconds = time.perf_counter() - started
        correct, of = (sum(each[place] for each in right.values()) for place in (0, 1))
        accuracy = share_of(correct, of)
        stage.say(record_test(stage.table, trial, backend, accuracy, seconds))
