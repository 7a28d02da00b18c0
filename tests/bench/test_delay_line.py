"""The delay line's bench as a command."""

import json
import subprocess
from pathlib import Path

import pytest

from testbed.bench import delay_line
from testbed.core.errors import SpecError
from testbed.faults.delay_counters import DelayCounters
from testbed.kernel.abi import Struct
from tests.support.command import run_testbed


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_testbed("bench", "delay-line", *arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 1, 0, 0), "--rates: '': must be 1 to 10000000 frames per second"),
        (([10, 0], 1, 0, 0), "--rates: '10,0': must be 1 to 10000000 frames per second"),
        (([10], 0, 0, 0), "--seconds: 0: must be more than 0, at most 3600"),
        (([10], 1, 61.0, 0), "--delay: 61 s: must be at most 60 s"),
        (([10], 1, 0.001, 0.002), "--jitter: 0.002: must be 0 up to the delay, 0.001 s"),
    ],
)
def test_refusals(arguments: tuple[list[int], float, float, float], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        next(delay_line.measure(*arguments))
    assert str(caught.value) == text


def test_a_row() -> None:
    memory = Struct("delay_line", sent=10, received=12, closed=2)
    memory.lateness[20] = 10  # 24 or 25 ns
    row = delay_line.Row(100, 12, 0.12, DelayCounters.read(memory, overrun=0))
    assert delay_line.row_line(row).split() == ["100", "100", "12", "2", "0", *["0.0"] * 5]
    result = row.to_dict()
    assert (result["sent"], result["closed"]) == (10, 2)
    assert result["lateness"] == dict.fromkeys(
        ("p50", "p90", "p99", "p99.9", "p100"), pytest.approx(25e-9)
    )
    assert len(delay_line.header_line()) == len(delay_line.row_line(row))


@pytest.mark.net
@pytest.mark.alone
def test_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "line.json"
    done = bench("--rates", "500,5000", "--seconds", "0.2", "--out", str(path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [(row["rate"], row["offered"], row["sent"]) for row in rows] == [
        (500, 100, 100),
        (5000, 1000, 1000),
    ]
    assert all(row["overrun"] == row["full"] == 0 for row in rows)
    assert all(
        0 < row["lateness"]["p50"] <= row["lateness"]["p99"] <= row["lateness"]["p100"]
        for row in rows
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["#", "500", "5000"]
