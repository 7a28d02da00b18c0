"""The controller's side of data-parallel training."""

from collections.abc import Callable
from typing import Any

from testbed.host import estimates
from testbed.workloads.data_parallel import calls
from testbed.workloads.data_parallel.gradients import GradientSession
from testbed.workloads.data_parallel.scenario import DataParallelScenario
from testbed.workloads.training.session import TrainingSession
from testbed.workloads.workload import OPTIMIZERS

__all__ = ["DataParallel"]


class DataParallel(TrainingSession[DataParallelScenario], GradientSession[DataParallelScenario]):
    """Trains by ``[collective]``."""

    modules = (calls.__name__, "testbed.gnn.train", "testbed.gnn.model", OPTIMIZERS)
    prepare_rank = staticmethod(calls.prepare_rank)

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
        share = len(self.data.train) // self.scenario.fabric.hosts
        self.steps = self.scenario.training.steps_of(share)
        return facts

    def rank_arguments(self) -> dict[str, Any]:
        """See `GradientSession.rank_arguments`."""
        return {"graph": str(self.folder)}
