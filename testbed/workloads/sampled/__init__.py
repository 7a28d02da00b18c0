"""Training on sampled neighbourhoods of a graph whose parts are on different hosts."""

from typing import TYPE_CHECKING

from testbed.sampling.registry import WAYS
from testbed.workloads.sampled.scenario import SampledScenario
from testbed.workloads.workload import Report, Workload

if TYPE_CHECKING:
    from testbed.results import Run

__all__ = ["WORKLOAD"]


def about(run: "Run") -> list[str]:
    """See `Report.about`."""
    from testbed.workloads.training.measures import gradient

    scenario = run.manifest["scenario"]
    return [
        f"the graph dealt out by {scenario['sampling']['partitioner']}",
        gradient(run, "step"),
    ]


WORKLOAD = Workload(
    table="sampling",
    scenario=SampledScenario,
    backends=WAYS,
    session="testbed.workloads.sampled.session:Sampled",
    summary="sampled training of a graph whose parts are on different hosts",
    report=Report(
        compute=("sampling", "forward", "backward", "update"),
        communication=("quantize", "communicate", "wait", "dequantize"),
        noun="all-reduce",
        every="a step",
        about=about,
        captions={
            "loss": ("All ways prepare the same minibatches, so that the lines should coincide."),
            "validation_accuracy": "From sampled neighbourhoods, after each epoch.",
        },
    ),
)
