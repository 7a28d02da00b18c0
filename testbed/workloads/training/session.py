"""The controller's side of training: the data, the memory needed, and the facts for the
manifest.
"""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from testbed.core.errors import SpecError
from testbed.gnn.graph import GraphData
from testbed.gnn.models import parameter_count
from testbed.host import estimates
from testbed.workloads.training.scenario import TrainingScenario
from testbed.workloads.workload import Session

__all__ = ["TrainingSession"]

S = TypeVar("S", bound=TrainingScenario)


class TrainingSession(Session[S]):
    """Trains one model per backend from the same seed.

    :ivar folder: The graph's folder, which workers map; `data`: the graph. Both are set by
        `prepare`.
    """

    folder: Path
    data: GraphData

    def check(self, data: GraphData | None = None) -> None:
        """Check that there is memory.

        :param data: The graph; without it, a synthetic graph is estimated from its keys, and others
            are not checked.
        :raises SpecError: There is not; the text has the estimate and the limit.
        """
        scenario, model = self.scenario, self.scenario.model
        if data is not None:
            graph, classes = sizes(data), data.num_classes
        elif estimate := scenario.dataset.estimate():
            graph, classes = estimate
        else:
            return
        widths = model.widths(graph.features, classes)
        made = estimates.Model(
            parameter_count(model, graph.features, classes), widths, len(scenario.backends)
        )
        keys = {"fabric.hosts": scenario.fabric.hosts, "model.hidden": model.hidden}
        keys |= {f"dataset.{key}": getattr(scenario.dataset, key) for key in scenario.dataset.keys}
        need, more = self.estimate(graph, made, classes)
        estimates.check(need, ", ".join(f"{key} = {value}" for key, value in (keys | more).items()))

    @abstractmethod
    def estimate(
        self, graph: estimates.Graph, model: estimates.Model, classes: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the bytes that training needs, by purpose, and further keys on which they
        depend.
        """

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Read the data set; see `Session.prepare`."""
        scenario = self.scenario
        say(f"reading data set {scenario.dataset.name}")
        self.folder = scenario.dataset.prepare()
        self.data = data = GraphData.load(self.folder)
        if len(data.train) < scenario.fabric.hosts:
            raise SpecError(
                f"fabric.hosts = {scenario.fabric.hosts}: must be at most the size of the training"
                f" set, {len(data.train)}"
            )
        self.check(data)
        return {
            "parameters": self.capacity,
            "gradient_bytes": 4 * self.capacity,
            "dataset": {
                "name": data.name,
                "vertices": data.num_vertices,
                "edges": data.num_edges // 2,
                "features": data.feature_dim,
                "classes": data.num_classes,
                "train": len(data.train),
                "val": len(data.val),
                "test": len(data.test),
                **data.facts,
            },
        }

    @property
    def capacity(self) -> int:
        """Elements of a gradient."""
        return parameter_count(self.scenario.model, self.data.feature_dim, self.data.num_classes)


def sizes(data: GraphData) -> estimates.Graph:
    """Return the sizes of a graph, exactly."""
    batch = min(estimates.EVALUATION_BATCH, data.num_vertices)
    crowd = int((data.indptr[batch:] - data.indptr[:-batch]).max(initial=0))
    return estimates.Graph(data.num_vertices, data.num_edges, data.feature_dim, crowd)
