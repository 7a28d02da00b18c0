"""The tables that all training has."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SerializeAsAny

from testbed.core.tables import Table, Tagged
from testbed.gnn.datasets import DATASETS, Dataset
from testbed.gnn.options import ModelSpec, TrainingSpec
from testbed.workloads.scenario import Scenario

__all__ = ["ToleranceSpec", "TrainingScenario"]


class ToleranceSpec(Table):
    """``[tolerance]``: how far a backend may be from the reference, the first fp32 backend."""

    loss: float = Field(
        default=0.02, ge=0, description="largest distance of two loss curves, at any epoch"
    )
    accuracy: float = Field(
        default=0.5, ge=0, le=100, description="distance of test accuracies in percentage points"
    )


class TrainingScenario(Scenario):
    """A scenario that trains a graph network."""

    dataset: Annotated[SerializeAsAny[Dataset], Tagged(DATASETS)]
    model: ModelSpec = ModelSpec()
    training: TrainingSpec = TrainingSpec()
    tolerance: ToleranceSpec = ToleranceSpec()

    @property
    def epochs(self) -> int:
        """See `Scenario.epochs`."""
        return self.training.epochs

    def resolve(self, base: Path) -> Self:
        """Return the scenario with its data set's relative path taken from the folder `base`."""
        return self.model_copy(update={"dataset": self.dataset.resolve(base)})
