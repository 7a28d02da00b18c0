"""Full-graph training: exchanges between neighbours, and a backend that sums gradients."""

from typing import TYPE_CHECKING

from testbed.exchange.registry import EXCHANGES
from testbed.workloads.full_graph.scenario import FullGraphScenario
from testbed.workloads.workload import Report, Workload

if TYPE_CHECKING:
    from testbed.results import Run

__all__ = ["WORKLOAD"]


def about(run: "Run") -> list[str]:
    """See `Report.about`."""
    from testbed.workloads.training.measures import gradient

    scenario = run.manifest["scenario"]

    def worth(metric: str) -> float:
        return float(run.metric(metric)["value"].iloc[0])

    exchange = scenario["exchange"]
    dealer = exchange.get("policy") or exchange["partitioner"]  # recorded runs have no policy
    return [
        (
            f"full-graph training of {scenario['model']['name']}, dealt out by"
            f" {dealer}: {worth('edge_cut'):,.0f} edges cut"
            f" ({100 * worth('edge_cut_share'):.1f} %), replication factor"
            f" {worth('replication_factor'):.2f}, the largest part has"
            f" {worth('vertex_balance'):.2f}× the mean number of vertices and"
            f" {worth('edge_balance'):.2f}× that of edges"
        ),
        gradient(run, "epoch"),
    ]


WORKLOAD = Workload(
    table="exchange",
    scenario=FullGraphScenario,
    backends=EXCHANGES,
    session="testbed.workloads.full_graph.session:FullGraph",
    summary="full-graph training: exchanges between neighbours, and a backend that sums gradients",
    report=Report(
        compute=("forward", "backward", "update"),
        communication=("quantize", "send", "wait", "aggregate", "dequantize", "all_reduce"),
        noun="communication",
        every="an epoch",
        about=about,
        captions={
            "loss": (
                "All backends train on the whole graph from the same weights, so that the lines"
                " should coincide."
            ),
            "validation_accuracy": "From whole neighbourhoods, after each epoch.",
        },
    ),
)
