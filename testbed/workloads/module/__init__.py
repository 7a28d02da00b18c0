"""Data-parallel training of any torch module on any torch data set."""

from typing import TYPE_CHECKING

from testbed.collectives.registry import BACKENDS
from testbed.workloads.module.scenario import ModuleScenario
from testbed.workloads.workload import Report, Workload

if TYPE_CHECKING:
    from testbed.results import Run

__all__ = ["WORKLOAD"]


def about(run: "Run") -> list[str]:
    """See `Report.about`."""
    from testbed.workloads.training.measures import gradient

    task, samples = run.manifest["scenario"]["module"]["task"], run.manifest["samples"]
    return [f"{task}: {samples['train']:,} samples to train on", gradient(run, "step")]


WORKLOAD = Workload(
    table="module",
    scenario=ModuleScenario,
    backends=BACKENDS,
    session="testbed.workloads.module.session:ModuleSession",
    summary="data-parallel training of any torch module on any torch data set",
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
        },
    ),
)
