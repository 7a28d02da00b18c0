"""The pieces of communication on a report's first page, from invented numbers."""

import html
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.communication import CLOCK, CPU, clock_pieces, cpu_pieces
from analysis.cpu_time import wakeups
from analysis.report import make_report
from analysis.summary import epoch_split
from testbed.results import Table, load_run


def test_waiting_divides_at_the_last_rank(make_run):
    found = clock_pieces(load_run(make_run({"xdp-ring": 0.2, "gloo": 0.8})))
    # Of 0.2 s, 0.04 are waiting, and the last rank enters after 0.05: all of it is for that rank.
    assert found.loc["xdp-ring"].to_dict() == pytest.approx(
        {"last_rank": 0.04, "quantize": 0.02, "communicate": 0.12, "dequantize": 0.02}
        | {"untold": 0}
    )
    # gloo cannot tell waiting from moving data.
    told = {name: value for name, value in found.loc["gloo"].items() if value}
    assert told == pytest.approx(
        {"last_rank": 0.2, "quantize": 0.08, "dequantize": 0.08, "untold": 0.44}
    )


def test_each_rank_waits_for_itself(make_run):
    run = load_run(make_run({"tcp-ring": 0.4}))
    rows = run.frame["rank"] == 3
    run.frame.loc[rows & (run.frame["metric"] == "straggler_time"), "value"] = 0.0  # the last one
    # Three ranks waited 0.08 s, for the last one; that one waited as long, for data.
    found = clock_pieces(run).loc["tcp-ring"]
    assert found[["last_rank", "wait"]].to_dict() == pytest.approx(
        {"last_rank": 0.06, "wait": 0.02}
    )


@pytest.mark.parametrize("full_graph", [False, True])
def test_pieces_add_up_to_communication(make_run, full_graph: bool):
    backends = {"pinch": 0.3, "tcp-push": 0.5} if full_graph else {"xdp-ring": 0.3, "gloo": 0.5}
    run = load_run(make_run(backends, full_graph=full_graph))
    clean, random = run.frame["value"].copy(), np.random.default_rng(7)
    noisy = run.frame["metric"].str.endswith("_time") & run.frame["rank"].notna()
    for _ in range(20):
        factors = random.lognormal(0, 0.5, int(noisy.sum()))
        run.frame["value"] = clean
        run.frame.loc[noisy, "value"] *= factors
        wholes = epoch_split(run)["communication"]
        found = clock_pieces(run)
        assert (found >= -1e-12).all(axis=None)
        # Clocks may exceed the whole by a hundredth; any more, and they are not believed.
        assert found.sum(axis=1).div(wholes).between(1 - 1e-9, 1.01).all()


def test_clocks_that_exceed_the_whole_are_not_its_pieces(make_run):
    run = load_run(make_run({"xdp-ring": 0.2, "tcp-ring": 0.4}))
    waits = (run.frame["metric"] == "wait_time") & (run.frame["backend"] == "tcp-ring")
    run.frame.loc[waits, "value"] += 0.3
    found = clock_pieces(run).loc["tcp-ring"]
    assert found["untold"] == pytest.approx(0.22)
    assert found.sum() == pytest.approx(0.4)


def test_cpu_pieces_are_of_one_rank(make_run):
    run = load_run(make_run(telemetry=True))
    # 0.4 s of all hosts and switches, by four ranks; the machine's own work belongs to none.
    assert cpu_pieces(run).loc["gloo"].to_dict() == pytest.approx(
        {"reduce": 0.02, "stack": 0.075, "scheduler": 0.0025, "unclassified": 0.0025}
    )


def test_wake_ups_are_told_by_rank_and_epoch(make_run):
    def wake(table: Table) -> None:
        for node, number, seconds in (("h1", 300, 0.003), ("h2", 100, 0.005), ("machine", 9, 9.0)):
            labels = {"node": node}
            table.add(0, "gloo", "wakeup_latency.8us", number, "wake-ups", epoch=0, labels=labels)
            table.add(0, "gloo", "wakeup_time.8us", seconds, "s", epoch=0, labels=labels)

    row = wakeups(load_run(make_run(telemetry=True, faults=wake))).loc["gloo"]
    assert row.to_dict() == pytest.approx({"number": 100, "mean": 20e-6})


def test_the_first_page_explains_its_words(reported: Path):
    text = html.unescape((reported / "report.html").read_text())
    page = text.partition("Where the time of an epoch goes")[0]
    run = load_run(reported)
    for table, pieces in ((clock_pieces(run), CLOCK), (cpu_pieces(run), CPU)):
        for name in table.columns:
            assert f"{pieces[name].title}, " in page
            assert pieces[name].meaning in page
        csv = (
            reported
            / "figures"
            / ("communication.csv" if pieces is CLOCK else "communication_cpu.csv")
        )
        assert list(pd.read_csv(csv)) == ["backend", *table.columns]


def test_without_telemetry_the_page_says_what_would_tell_more(make_run):
    page = make_report(make_run({"gloo": 0.8}))[0].read_text()
    assert "<code>--telemetry</code> tells" in page
