"""From ranks' results to rows: which rank has waited for which, and whether weights are equal."""

from typing import Any

import numpy as np
import pytest

from testbed.comm.backend import PHASES
from testbed.core.errors import CollectiveError
from testbed.gnn.result import EpochResult
from testbed.gnn.train import OWN_PHASES
from testbed.results import Table
from testbed.scenario import parse_scenario
from testbed.workloads.training.measures import check_agreement, record_epoch
from testbed.workloads.workload import Turn


def result(**changes: Any) -> EpochResult:
    times = dict.fromkeys((*OWN_PHASES, *PHASES, "other", "epoch_time", "communication_time"), 1.0)
    fields: dict[str, Any] = {
        "epoch": 3,
        "loss": 0.5,
        "share": 0.5,
        "val_correct": 3,
        "val_total": 4,
        "digest": "same",
        "times": times,
        "entered": np.array([0.0, 10.0]),
        "left": np.array([5.0, 13.0]),
        "counts": {"steps": 2, "packets": 7, "wire_bytes": 700, "retransmissions": 0},
    }
    return EpochResult(**{**fields, **changes})


def test_late_ranks_are_distinguished_from_a_slow_exchange() -> None:
    table = Table(
        parse_scenario({"scenario": {"name": "m"}, "dataset": {"name": "synthetic"}}).model_dump(
            mode="json"
        )
    )
    late = result(
        entered=np.array([2.0, 11.0]),
        left=np.array([4.0, 12.0]),
        loss=1.5,
        val_total=5,
        val_correct=0,
    )
    record_epoch(table, Turn(0, "gloo", 3), [result(), late])
    frame = table.frame()
    ranks = frame[frame["rank"].notna()].pivot_table(index="rank", columns="metric", values="value")
    # The second rank is last in both steps: the first waits 2 s and 1 s for it.
    assert ranks["straggler_time"].tolist() == [3.0, 0.0]
    assert ranks["exchange_time"].tolist() == [5.0, 3.0]
    together = frame[frame["rank"].isna()].set_index("metric")["value"]
    assert together["loss"] == 1.0
    assert together["validation_accuracy"] == pytest.approx(3 / 9)


def test_differing_weights_name_the_rank() -> None:
    check_agreement("gloo", [result(), result()])
    with pytest.raises(
        CollectiveError, match="gloo: after epoch 3 the weights of rank 1 differ from rank 0's"
    ):
        check_agreement("gloo", [result(), result(digest="other"), result()])
