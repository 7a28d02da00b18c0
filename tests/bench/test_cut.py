"""An exchange of a partitioned graph: options, text; and the command on a real fabric."""

import json

import pytest

from testbed.bench.cut import Row, check_choices, header_lines, row_line, summary_lines
from testbed.bench.exchange_session import Measured
from testbed.comm.collective import Counters
from testbed.core.errors import SpecError
from tests.support.command import run_testbed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cora", "metis", [64]), "--dataset: 'cora': must be one of debian, synthetic"),
        (
            ("debian", "best", [64]),
            "--partitioner: 'best': must be one of hash, range, metis, metis-balanced, fennel",
        ),
        (("debian", "hash", []), "--dims: 0: must be 1 to 512"),
        (("debian", "hash", [64, 513]), "--dims: 513: must be 1 to 512"),
    ],
)
def test_choices_are_checked(arguments, text):
    with pytest.raises(SpecError) as error:
        check_choices(*arguments)
    assert str(error.value) == text


GOLDEN = """
# exchange     dim     rows     edges       min    median       p99 #wrong  packets        wire retrans syscalls   syscalls
#                                          (ms)      (ms)      (ms)                         (B)         (sender) (receiver)
  pinch         64    31177     93958     4.000     4.000     4.000      0     1446     4310000       0        2          2
  tcp-push      64    31177     93958     8.000     8.000     8.000      0       20        2000       3        -          -
# Against the best over sockets, medians of 1:
#   dim  64   2.00x  pinch 4.000 ms, tcp-push 8.000 ms  tie: of one measurement
"""  # noqa: E501


def test_text():
    rows = [
        Row(64, 31177, 93958, measured)
        for measured in (
            Measured("pinch", (4e-3,), (1e-3,), 0, Counters(1446, 4310000, 0), 2.0, 2.0),
            Measured("tcp-push", (8e-3,), (1e-3,), 0, Counters(20, 2000, 3), None, None),
        )
    ]
    lines = header_lines()[2:] + [row_line(row) for row in rows] + summary_lines(rows)
    assert "\n".join(lines) == GOLDEN.strip("\n")


@pytest.mark.net
@pytest.mark.deep
def test_a_small_graph_end_to_end(tmp_path):
    result = tmp_path / "out.json"
    done = run_testbed(
        "bench",
        "exchange",
        *("--dataset", "synthetic", "--partitioner", "hash", "--hosts", "2", "--dims", "4"),
        *("--exchanges", "pinch,tcp-push", "-n", "2", "-w", "1", "--out", str(result)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(result.read_text())["rows"]
    assert [row["exchange"] for row in rows] == ["pinch", "tcp-push"]
    assert all(row["wrong"] == 0 and row["edges"] >= row["rows"] > 0 for row in rows)
