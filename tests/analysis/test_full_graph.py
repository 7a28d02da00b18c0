"""The report of a full-graph run: its own parts of an epoch, the partition, and the system calls of
collectives.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.narrative import answer
from analysis.report import make_report
from analysis.summary import baseline, checks, counted, epoch_split, traffic
from analysis.workload import workload_of
from testbed.results import load_run
from testbed.workloads import data_parallel, full_graph
from testbed.workloads.workload import Workload

RunMaker = Callable[..., Path]
SECONDS = {"pinch": 0.2, "tcp-pull": 0.6, "gloo": 0.4}


@pytest.mark.parametrize(
    ("full_graph", "workload"), [(False, data_parallel.WORKLOAD), (True, full_graph.WORKLOAD)]
)
def test_workloads(make_run: RunMaker, full_graph: bool, workload: Workload) -> None:
    assert workload_of(load_run(make_run({"gloo": 1.0}, full_graph=full_graph))) is workload


def test_split_adds_up(make_run: RunMaker) -> None:
    run = load_run(make_run(SECONDS, full_graph=True))
    split = epoch_split(run)
    assert list(split.index) == list(SECONDS)
    for name, row in split.iterrows():
        assert row[list(full_graph.WORKLOAD.report.parts)].sum() == pytest.approx(row["epoch"])
        assert row["communication"] == pytest.approx(SECONDS[str(name)])
    assert baseline(run) == "gloo"
    assert {check.reference for check in checks(run)} == {"tcp-pull"}


def test_amounts_are_per_epoch_over_all_ranks(make_run: RunMaker) -> None:
    run = load_run(make_run(SECONDS, full_graph=True))
    assert traffic(run).loc["pinch", "wire_bytes"] == 2000
    costs = counted(run)
    assert list(costs.index) == list(SECONDS)
    assert costs.loc["pinch"].to_dict() == {
        "crossings": 68,
        "page_faults": 8,
        "redundant_bytes": 20,
        "syscalls": 60,
    }
    assert pd.isna(costs.loc["gloo", "redundant_bytes"])


def test_answer_speaks_of_communication(make_run: RunMaker) -> None:
    text = " ".join(answer(load_run(make_run(SECONDS, full_graph=True))))
    assert (
        "pinch was fastest: its median epoch took 1.2 s, that with gloo 1.4 s (1.17×), tcp-pull 1.6"
        " s (1.33×)" in text
    )
    assert (
        "Against the best socket baseline, gloo, an epoch with pinch was 1.17× as fast and its"
        " communication 2.00×" in text
    )
    assert "An epoch's communication put 0.00 MB on the wire" in text
    assert "all-reduce" not in text


def test_report_has_partition_and_crossings(make_run: RunMaker) -> None:
    html = make_report(make_run(SECONDS, full_graph=True))[0].read_text()
    assert "1,234 edges cut (25.0 %), replication factor 1.50" in html
    assert "<td>page faults</td>" in html
    assert "<td>none</td>" in html  # gloo does not count redundant bytes
    assert "<td>all-reduce, " in html
    assert "train on the whole graph from the same weights" in html
