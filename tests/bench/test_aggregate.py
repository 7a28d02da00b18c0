"""Aggregation: cases, inputs, text; and the command on a real fabric."""

import json

import numpy as np
import pytest

from testbed.bench.aggregate import (
    Row,
    check_grid,
    header_lines,
    make_case,
    row_line,
    summary_lines,
)
from testbed.bench.exchange_calls import make_rows
from testbed.bench.exchange_session import Measured
from testbed.comm.collective import Counters
from testbed.core.errors import SpecError
from tests.support.command import run_testbed


def bench(*arguments):
    return run_testbed("bench", "aggregate", *arguments)


@pytest.mark.parametrize(
    ("degree", "vertices", "hosts"), [(1, 1, 2), (3, 10, 2), (4, 100, 4), (7, 5, 6)]
)
def test_every_received_vertex_is_added_as_often_as_the_degree_says(degree, vertices, hosts):
    first, *others = make_case(64, degree, vertices, hosts, 0).halos
    assert (first.num_owned, first.num_halo) == (vertices, vertices)
    assert np.array_equal(np.diff(first.indptr), np.full(vertices, degree))
    assert np.array_equal(np.bincount(first.indices), np.full(vertices, degree))
    assert not any(map(len, first.sends))
    counts = [halo.num_owned for halo in others]
    assert sum(counts) == vertices
    assert max(counts) - min(counts) <= 1
    for halo in others:
        assert halo.num_halo == 0
        assert np.array_equal(halo.sends[0], np.arange(halo.num_owned))


def test_inputs_are_whole_numbers_determined_by_position():
    rows = make_rows(3, np.arange(1000), 64)
    assert rows.dtype == np.float32
    assert np.array_equal(rows, np.rint(rows))
    assert set(np.unique(np.abs(rows))) == set(range(1, 101))
    assert abs(rows.mean()) < 1
    chosen = np.array([7, 3, 999])
    assert np.array_equal(make_rows(3, chosen, 64), rows[chosen])
    assert not np.array_equal(make_rows(4, np.arange(1000), 64), rows)
    assert make_rows(3, np.arange(0), 5).shape == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0], [1], 9, 2), "--dims: 0: must be 1 to 512"),
        (([], [1], 9, 2), "--dims: 0: must be 1 to 512"),
        (([513], [1], 9, 2), "--dims: 513: must be 1 to 512"),
        (([4], [1], 2, 4), "--vertices: 2: must be 3 or more, one per sending host"),
        (
            ([4], [0], 8, 2),
            "--degrees: 0: must be 1 to 8388608 with 8 vertices, at most 67108864 additions",
        ),
        (
            ([4], [9], 1 << 24, 2),
            "--degrees: 9: must be 1 to 4 with 16777216 vertices, at most 67108864 additions",
        ),
    ],
)
def test_refusals(arguments, text):
    with pytest.raises(SpecError) as caught:
        check_grid(*arguments)
    assert str(caught.value) == text


GOLDEN = """\
# exchange     dim degree vertices       min    median       p99      rate  arrived    added #wrong  packets        wire retrans syscalls   syscalls
#                                       (ms)      (ms)      (ms) (kvert/s)   (GB/s)   (GB/s)                         (B)         (sender) (receiver)
  pinch         64     16     8192     2.000     4.000     5.960    2048.0    0.524    8.389      0       10        1000       0        2          1
  tcp-push      64     16     8192     8.000     8.000     8.000    1024.0    0.262    4.194      0       20        2000       3        -          -
# Against the best over sockets, medians of 1 to 3:
#   dim  64, degree    16   2.00x  pinch 4.000 ms, tcp-push 8.000 ms  tie: of one measurement"""  # noqa: E501


def test_golden():
    rows = [
        Row(
            64,
            16,
            8192,
            Measured("pinch", (2e-3, 4e-3, 6e-3), (1e-3,) * 3, 0, Counters(30, 3000, 0), 2.0, 1.0),
        ),
        Row(
            64,
            16,
            8192,
            Measured("tcp-push", (8e-3,), (1e-3,), 0, Counters(20, 2000, 3), None, None),
        ),
    ]
    lines = header_lines()[2:] + [row_line(row) for row in rows] + summary_lines(rows)
    assert "\n".join(lines) == GOLDEN
    assert rows[0].to_dict({})["added_gbps"] == pytest.approx(
        8192 * 64 * 4 * 16 / 4e-3 / 1e9, abs=1e-6
    )


@pytest.mark.net
@pytest.mark.deep
def test_sockets_end_to_end(tmp_path):
    result, figure = tmp_path / "out.json", tmp_path / "out.png"
    done = bench(
        "--hosts",
        "3",
        "--exchanges",
        "tcp-push,gloo",
        "--dims",
        "3,64",
        "--degrees",
        "1,5",
        "--vertices",
        "100",
        "-n",
        "2",
        "-w",
        "1",
        "--out",
        str(result),
        "--figure",
        str(figure),
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(result.read_text())["rows"]
    assert [(row["dim"], row["degree"], row["exchange"]) for row in rows] == [
        (dim, degree, name) for dim in (3, 64) for degree in (1, 5) for name in ("tcp-push", "gloo")
    ]
    for row in rows:
        assert row["wrong"] == 0
        assert row["vertices_per_second"] == pytest.approx(
            100 / row["time_us"]["median"] * 1e6, rel=1e-3
        )
        assert row["wire_bytes"] >= 100 * row["dim"] * 4
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert figure.with_suffix(".csv").read_text().count("\n") == len(rows) + 1
