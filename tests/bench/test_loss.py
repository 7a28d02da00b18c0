"""Rows of ``testbed bench faults``: the figures derived from times, counters and the log of
faults.
"""

import csv
import json

import numpy as np
import pytest

from testbed.bench.loss import Options
from testbed.bench.loss_row import Cell, recovery_times
from testbed.bench.loss_table import header_lines, lossless_of, requirement_lines, row_line
from testbed.comm.collective import Counters
from testbed.core.errors import SpecError
from testbed.faults.identity import KINDS
from testbed.faults.log import RECORD
from testbed.faults.rule_table import Action
from testbed.plan import plan_fabric
from tests.support.command import run_testbed


def make_cell(loss=0.0, times=(0.01, 0.02, 0.03), **changes):
    sent = Counters(300, 3000, 6)
    return Cell(
        **{
            "backend": "xdp-ring/origin",
            "hosts": 4,
            "size": 1 << 20,
            "loss": loss,
            "times": times,
            "sent": sent,
            **changes,
        }
    )


def test_cells_compare_with_the_one_without_loss():
    lossless = make_cell()
    lossy = make_cell(0.01, (0.04, 0.04), sent=Counters(240, 2400, 8), recoveries=(1.0, 2.0, 9.0))
    other = make_cell(hosts=8)
    assert lossless_of(lossy, [other, lossy, lossless]) is lossless
    assert lossless_of(lossy, [other]) is None
    assert lossy.ratio(lossless) == 0.5
    assert lossy.extra(lossless) == pytest.approx(0.2)
    row = lossy.to_dict(lossless)
    assert row["goodput_gbps"] == round((1 << 20) / 0.04 * 1e-9, 6)
    assert (row["retransmissions"], row["recovery_us"], row["iterations"]) == (4.0, 2e6, 2)


def test_a_cell_without_an_iteration_says_why():
    cell = make_cell(0.1, (), sent=Counters(), failure="more than the budget of 5 s")
    assert row_line(cell, make_cell()).endswith("  more than the budget of 5 s")
    row = cell.to_dict(make_cell())
    assert row["failure"] == "more than the budget of 5 s"
    assert row["median_us"] is row["goodput_ratio"] is row["extra_bytes"] is row["max_us"] is None


def test_the_requirement_is_judged_where_it_was_measured():
    cells = [make_cell(), make_cell(0.01, (0.025,)), make_cell(0.1, (9.0,))]
    assert requirement_lines(cells)[1:] == [
        "# pass  xdp-ring/origin, 4 hosts, 1M, 1 % loss: 80% of the lossless goodput"
    ]
    cells[1] = make_cell(0.01, (0.04,))
    assert requirement_lines(cells)[1].startswith("# FAIL  xdp-ring/origin")
    assert requirement_lines(cells[2:]) == []


def test_columns_are_as_wide_as_their_names():
    names, units = header_lines()[-2:]
    assert len(units) <= len(names) == len(row_line(make_cell(), None))


def test_recoveries_last_from_the_first_loss_until_the_data_arrive():
    lost, passed = Action.DROP, Action.PASS
    frames = [
        # time, kind, receiver, sequence number, chunk, action
        (100, "result", 1, 5, 0, lost),
        (150, "result", 2, 5, 0, passed),  # another receiver
        (160, "result", 1, 6, 0, passed),  # another collective
        (200, "reduce", 1, 5, 1, passed),  # another chunk
        (300, "result", 1, 5, 0, lost),  # the replacement
        (350, "nack", 1, 5, 0, passed),  # carries no chunk
        (400, "probe", 1, 5, 1, lost),
        (500, "result", 1, 5, 0, passed),
        (600, "result", 1, 5, 0, passed),
        (700, "reduce", 3, 5, 9, lost),  # the log ends before it arrives
    ]
    records = np.zeros(len(frames), RECORD)
    for record, (time, kind, receiver, seq, chunk, action) in zip(records, frames, strict=True):
        record["time"], record["kind"], record["receiver"] = time, KINDS[kind], receiver
        record["seq"], record["chunk"], record["action"] = seq, chunk, action
    assert recovery_times(records) == pytest.approx((400e-9, 200e-9))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"variants": ()},
            (
                "--backends: '': must be one or more of xdp-ring/upstream, xdp-ring/origin,"
                " xdp-ring/timer, tcp-ring, gloo"
            ),
        ),
        (
            {"variants": ("xdp-ring",)},
            (
                "--backends: 'xdp-ring': must be one or more of xdp-ring/upstream,"
                " xdp-ring/origin, xdp-ring/timer, tcp-ring, gloo; xdp-ring as usual is"
                " xdp-ring/upstream"
            ),
        ),
        ({"losses": [0.6]}, "--loss: 60: must be 0 to 50 percent"),
        ({"size": 0}, "--size: 0: must be at least a float32"),
        (
            {"plan": plan_fabric(hosts=1)},
            "--hosts: 1: must be at least 2, as one rank sends nothing that could be lost",
        ),
        ({"iterations": 0}, "-n: 0: must be 1 to 1000000 iterations"),
        ({"budget": 0.5}, "--budget: 0.5: must be 1 to 600 seconds"),
    ],
)
def test_refusals(changes, text):
    with pytest.raises(SpecError) as caught:
        Options(
            **{
                "plan": plan_fabric(),
                "variants": ["tcp-ring"],
                "size": 1024,
                "losses": [0.01],
                **changes,
            }
        )
    assert str(caught.value) == text


def test_the_baseline_without_loss_is_always_measured():
    assert Options(plan_fabric(), ["gloo"], 4, [0.02, 0.01]).rates == [None, 0, 0.01, 0.02]
    assert row_line(make_cell(None), None).split()[3] == "off"
    assert lossless_of(make_cell(0.01), [make_cell(None)]) is None


@pytest.mark.net
@pytest.mark.deep
def test_the_command_measures_and_draws(tmp_path):
    figure, result = tmp_path / "loss.png", tmp_path / "loss.json"
    options = [
        "--size",
        "64K",
        "--loss",
        "5",
        "-n",
        "4",
        "--backends",
        "xdp-ring/origin,xdp-ring/timer,tcp-ring",
    ]
    done = run_testbed("bench", "faults", *options, "--figure", str(figure), "--out", str(result))
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(result.read_text())["rows"]
    assert [row["loss"] for row in rows] == [None] * 3 + [0] * 3 + [0.05] * 3
    for row in rows:
        assert (row["iterations"], row["wrong"], row["failure"]) == (4, 0, None)
        assert row["goodput_ratio"] > 0
        assert (row["lost_frames"] > 0) == (row["loss"] == 0.05)
        assert (row["recovery_us"] is not None) == (
            row["loss"] == 0.05 and row["backend"] != "tcp-ring"
        )
    assert figure.read_bytes().startswith(b"\x89PNG")
    with figure.with_suffix(".csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)


@pytest.mark.net
@pytest.mark.deep
def test_a_cell_that_exceeds_its_budget_is_reported(tmp_path):
    options = [
        "--size",
        "1M",
        "--loss",
        "0",
        "-n",
        "1000000",
        "--backends",
        "tcp-ring",
        "--budget",
        "1",
    ]
    done = run_testbed("bench", "faults", *options, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
    cells = [line for line in done.stdout.splitlines() if line.startswith("  tcp-ring")]
    assert len(cells) == 2
    assert all(line.endswith("more than the budget of 1 s") for line in cells)
