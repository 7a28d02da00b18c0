"""The options of models and of training: ``[model]`` and ``[training]`` of a scenario."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from testbed.core.tables import Named, Table
from testbed.gnn.models import MODELS

__all__ = ["MinibatchSpec", "ModelSpec", "SampledModelSpec", "TrainingSpec"]


class ModelSpec(Table):
    """``[model]``: the network."""

    name: Annotated[str, Named(MODELS)] = "sage"
    hidden: int = Field(default=256, ge=1, le=8192)
    layers: int = Field(default=2, ge=1, le=6)
    dropout: float = Field(default=0.5, ge=0, lt=1)

    def widths(self, feature_dim: int, num_classes: int) -> list[int]:
        """Return the elements of a vertex's row between layers: features, hidden, ..., classes."""
        return [feature_dim, *[self.hidden] * (self.layers - 1), num_classes]


class SampledModelSpec(ModelSpec):
    """``[model]`` of training by minibatches: the network, and how its neighbourhoods
    are sampled.
    """

    name: Annotated[str, Named(MODELS, lambda kind: kind.sampled is not None)] = "sage"
    fanout: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(
        default=(10, 5),
        min_length=1,
        strict=False,
        description="neighbours per vertex, from the seeds outwards",
    )

    @model_validator(mode="after")
    def _fanout_a_layer(self) -> Self:
        if len(self.fanout) != self.layers:
            raise ValueError(
                f"fanout: has {len(self.fanout)} numbers for {self.layers} layers: give one per"
                " layer"
            )
        return self


class TrainingSpec(Table):
    """``[training]``: how weights are optimized."""

    epochs: int = Field(default=5, ge=1, le=10_000)
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = Field(default=0.003, gt=0, le=100)
    weight_decay: float = Field(default=0.0, ge=0, le=1)


class MinibatchSpec(TrainingSpec):
    """``[training]`` by minibatches."""

    batch_size: int = Field(
        default=64, ge=1, le=1 << 20, description="training vertices per rank and step"
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=1 << 31,
        description="steps per epoch at most; without it, one pass over the set",
    )

    def steps_of(self, samples: int) -> int:
        """Return the steps of an epoch in which a rank has so many samples."""
        steps = math.ceil(samples / self.batch_size)
        return min(steps, self.steps or steps)
