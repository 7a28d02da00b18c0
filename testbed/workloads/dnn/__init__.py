"""Data-parallel training as PyTorch's DDP does it, of deep networks with the real sizes of their
gradients: buckets are summed while backward computes those that follow.
"""

from typing import TYPE_CHECKING

from testbed.collectives.registry import BACKENDS
from testbed.workloads.dnn.scenario import DNNScenario
from testbed.workloads.workload import Report, Workload

if TYPE_CHECKING:
    from testbed.results import Run

__all__ = ["WORKLOAD"]


def about(run: "Run") -> list[str]:
    """See `Report.about`."""
    manifest, table = run.manifest, run.manifest["scenario"]["dnn"]
    beside = "while backward goes on" if table["overlap"] else "after backward"
    return [
        f"{table['model']}: {manifest['parameters']:,} parameters"
        f" ({manifest['gradient_bytes'] / 1e6:.0f} MB), summed in {manifest['buckets']} buckets"
        f" {beside}",
        f"{table['compute']:g} s of matrix work a step on a CPU of its own",
    ]


WORKLOAD = Workload(
    table="dnn",
    scenario=DNNScenario,
    backends=BACKENDS,
    session="testbed.workloads.dnn.session:DNN",
    simulation="testbed.workloads.dnn.simulated:SimulatedDNN",
    summary="data-parallel training of deep networks in buckets, summed while backward goes on",
    report=Report(
        compute=("forward", "backward", "update"),
        communication=("exposed",),
        noun="all-reduce",
        every="a step",
        about=about,
        overlapped=True,
    ),
)
