"""The bench of additions in programs: its options, its formula, and the command."""

import json
from pathlib import Path

import pytest

from testbed.bench.additions import KINDS, Row, check, header_line, row_line
from testbed.core.errors import SpecError
from tests.support.command import run_testbed


@pytest.mark.parametrize(
    ("repeat", "trials", "text"),
    [
        (0, 1, "--repeat: 0: must be 1 to 1000000"),
        (1_000_001, 1, "--repeat: 1000001: must be 1 to 1000000"),
        (1, 0, "--trials: 0: must be 1 to 1000"),
        (1, 1001, "--trials: 1001: must be 1 to 1000"),
    ],
)
def test_refusals(repeat: int, trials: int, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(repeat, trials)
    assert str(caught.value) == text


def test_rows() -> None:
    rows = [Row("int16", 512, 276.0, 20.0), Row("float32", 256, 1044.0, 20.0)]
    assert row_line(rows[1], rows).split() == ["float32", "256", "1044", "4.000", "8.0"]
    assert len(header_line()) == len(row_line(rows[0], rows))
    assert Row("int16", 512, 19.0, 20.0).element_ns == 0  # within the noise


@pytest.mark.kernel
def test_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "additions.json"
    done = run_testbed("bench", "additions", "--trials", "1", "--repeat", "100", "-o", str(path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["kind"] for row in rows] == list(KINDS)
    for row in rows:
        assert row["run_ns"] > 0
        assert row["element_ns"] == max(0, row["run_ns"] - row["idle_ns"]) / row["elements"]
