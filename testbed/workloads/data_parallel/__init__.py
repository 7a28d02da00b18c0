"""Data-parallel training: minibatches, and a backend that sums gradients."""

from typing import TYPE_CHECKING

from testbed.collectives.registry import BACKENDS
from testbed.workloads.data_parallel.scenario import DataParallelScenario
from testbed.workloads.workload import Report, Workload

if TYPE_CHECKING:
    from testbed.results import Run

__all__ = ["WORKLOAD"]


def about(run: "Run") -> list[str]:
    """See `Report.about`."""
    from testbed.workloads.training.measures import gradient

    return [gradient(run, "step")]


WORKLOAD = Workload(
    table="collective",
    scenario=DataParallelScenario,
    backends=BACKENDS,
    session="testbed.workloads.data_parallel.session:DataParallel",
    summary="data-parallel training: minibatches, and a backend that sums gradients",
    report=Report(
        compute=("sampling", "forward", "backward", "update"),
        communication=("quantize", "communicate", "wait", "dequantize"),
        noun="all-reduce",
        every="a step",
        about=about,
        captions={
            "loss": (
                "All backends get the same minibatches from the same weights, so that the lines"
                " should coincide."
            ),
            "validation_accuracy": "From sampled neighbourhoods, after each epoch.",
        },
    ),
)
