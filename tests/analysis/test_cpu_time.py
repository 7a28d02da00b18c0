"""The breakdown of CPU time, from invented numbers."""

from pathlib import Path

import pytest

from analysis.cpu_time import breakdown, network_shares, overheads
from analysis.report import make_report, overhead
from analysis.summary import epoch_split
from testbed.core.medians import Median, compare
from testbed.results import Table, load_run


def test_cpu_time_of_hosts_and_switches_by_class(reported: Path):
    row = breakdown(load_run(reported)).loc["tcp-ring"].to_dict()
    assert row == pytest.approx(
        {
            ("model", False): 1.0,
            ("program", False): 0.03,
            ("program", True): 0.02,
            ("tcp", False): 0.2,
            ("tcp", True): 0.1,
            ("switch", True): 0.1,
        }
    )


def test_shares_of_the_time_in_collectives(reported: Path):
    row = network_shares(load_run(reported)).loc["gloo"].to_dict()
    expected = {
        "cpu": 0.4,
        "samples": 399,
        "network": 0.75,
        "program": 0.0,
        "kernel": 0.025,
        "user": 0.2,
    }
    assert row == pytest.approx({**expected, "unclassified": 0.025, "softirq": 0.25})


def test_overhead_compares_sampled_epochs_with_those_left_alone(make_run):
    def slow_down(table: Table) -> None:
        table.add(0, "gloo", "epoch_time", 1.8 + 4 * 0.09, "s", rank=4, epoch=1)
        for rank in (4, 5):
            table.add(0, "gloo", "epoch_time", 1.8, "s", rank=rank, epoch=2)

    run = load_run(make_run(telemetry=True, faults=slow_down))
    found = overheads(run)
    assert {name: each.ratio for name, each in found.items()} == pytest.approx(
        {"xdp-ring": 1.0, "tcp-ring": 1.0, "gloo": 1.04}
    )
    assert not any(each.known for each in found.values())  # of a single epoch with samples
    assert overhead(found["gloo"]) == "unknown: one epoch"
    known = compare(Median(1.05, 1, 1.1, 9), Median(1.25, 1.2, 1.3, 9))
    assert overhead(known) == "+19.0 % (+9 to +30 %)"


def test_counted_epochs_have_no_part_in_times(make_run):
    def make_slow(table: Table) -> None:
        for rank in range(4):
            table.add(0, "gloo", "epoch_time", 100.0, "s", rank=rank, epoch=0)

    assert epoch_split(load_run(make_run(telemetry=True, faults=make_slow))).loc["gloo", "high"] < 2


def test_the_breakdown_of_a_whole_epoch_follows_that_of_communication(reported: Path):
    text = (reported / "report.html").read_text()
    pages = [text.index(title) for title in ("Where the time of all-reduce", "Where the CPU time")]
    assert pages == sorted(pages)
    csv = reported / "figures" / "cpu_time.csv"
    assert csv.read_text().startswith("backend,class,softirq,")


def test_a_run_without_telemetry_has_no_breakdown(make_run):
    path = make_run()
    report, _ = make_report(path)
    assert breakdown(load_run(path)).empty
    assert overheads(load_run(path)) == {}
    assert "Where the CPU time goes" not in report.read_text()
