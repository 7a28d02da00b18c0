"""The models by name."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from testbed.core.registry import Registry

if TYPE_CHECKING:
    from testbed.gnn.options import ModelSpec

__all__ = ["MODELS", "ModelKind", "parameter_count"]


@dataclass(frozen=True)
class ModelKind:
    """Where to find a model, and its properties.

    :param layer: ``module:class`` of a layer on a rank's part of a graph, as
        `testbed.gnn.full.model` makes them.
    :param sampled: ``module:class`` of the whole network on sampled blocks; None: it is only
        trained on whole graphs.
    :param native: The same with kernels of our own.
    :param matrices: Weight matrices per layer, in addition to a bias.
    :param drops_features: Whether there is also dropout before the first layer.
    :param decays_first: Whether ``weight_decay`` applies only to the first layer.
    :param summary: One line for `testbed list`.
    """

    layer: str
    sampled: str | None = None
    native: str | None = None
    matrices: int = 2
    drops_features: bool = False
    decays_first: bool = False
    summary: str = ""


MODELS: Registry[ModelKind] = Registry(
    "model",
    f"{__name__}:ModelKind",
    {
        "sage": ModelKind(
            "testbed.gnn.full.model:Sage",
            "testbed.gnn.model:Sage",
            "testbed.gnn.native_sage:NativeSage",
            summary="GraphSAGE with mean aggregation (Hamilton et al., NIPS 2017)",
        ),
        "gcn": ModelKind(
            "testbed.gnn.full.model:Gcn",
            matrices=1,
            drops_features=True,
            decays_first=True,
            summary="graph convolutional network (Kipf and Welling, ICLR 2017); whole graphs only",
        ),
    },
    group="testbed.models",
    instances=True,
)


def parameter_count(spec: "ModelSpec", feature_dim: int, num_classes: int) -> int:
    """Return the number of float32 in a gradient: each layer has a bias and its matrices."""
    matrices = MODELS[spec.name].matrices
    return sum(matrices * a * b + b for a, b in pairwise(spec.widths(feature_dim, num_classes)))
