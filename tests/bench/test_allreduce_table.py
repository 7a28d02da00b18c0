"""The table of the bench, character by character."""

from testbed.bench.allreduce_table import (
    average_lines,
    bound_lines,
    environment_lines,
    header_lines,
    row_line,
    summary_lines,
)
from testbed.bench.row import Row

NEEDS = {"xdp-ring": "xdp", "tcp-ring": "sockets", "gloo": "sockets"}

GOLDEN = """\
# cpus          2
# load_average  0.25
# backend              size      count   type  redop        min     median        p99   algbw   busbw  #wrong   packets        wire retrans   syscalls
#                       (B) (elements)                     (us)       (us)       (us)  (GB/s)  (GB/s)                           (B)         (per rank)
  xdp-ring            65536      16384  float    sum      100.0      200.0      298.0   0.328   0.492       0       276      401304       0       11.5
  tcp-ring            65536      16384  float    sum      400.0      500.0      599.0   0.131   0.197       3        46      396265       2          -
  gloo                65536      16384  float    sum     5000.0     5000.0     5000.0   0.013   0.020       0       200      413354       0       1200
  tcp-ring             4096       1024  float    sum      400.0      500.0      599.0   0.008   0.012       0        46       39626       0         20
# Against the best socket baseline, medians of 3:
#      64K   2.50x  xdp-ring 200.0 us, tcp-ring 500.0 us  tie: within their spread
# Average bus bandwidth over all sizes (GB/s):
#   xdp-ring      0.492
#   tcp-ring      0.104
#   gloo          0.020
# Over the time in which all ranks at once copy the tensor:
#      64K   4.00x  xdp-ring 200.0 us, copying 50.0 us  tie: within their spread"""  # noqa: E501


def test_golden():
    rows = [
        Row("xdp-ring", 4, 65536, (1e-4, 2e-4, 3e-4), 0, 276, 401304, 0, 11.5, bound=5e-5),
        Row("tcp-ring", 4, 65536, (4e-4, 5e-4, 6.01e-4), 3, 46, 396265, 2, None),
        Row("gloo", 4, 65536, (5e-3,), 0, 200, 413354, 0, 1200.0),
        Row("tcp-ring", 4, 4096, (4e-4, 5e-4, 6.01e-4), 0, 46, 39626, 0, 20.0),
    ]
    lines = environment_lines({"cpus": 2, "load_average": 0.25}) + header_lines()
    lines += [row_line(row) for row in rows] + summary_lines(rows, NEEDS)
    lines += average_lines(rows) + bound_lines(rows)
    assert "\n".join(lines) == GOLDEN


def test_no_summary_without_both_kinds():
    assert summary_lines([Row("gloo", 4, 4, (1.0,), 0, 0, 0, 0, None)], NEEDS) == []
    assert summary_lines([Row("xdp-ring", 4, 4, (1.0,), 0, 0, 0, 0, None)], NEEDS) == []


def test_a_busy_machine_is_mentioned():
    *_, last = environment_lines({"cpus": 2, "load_average": 0.25, "busy": 0.5})
    assert last.startswith("# Caution: the machine was busy when the run began")
    assert "other work took 50% of the time of its 2 processors" in last


def test_no_ratio_where_nothing_was_sent():
    for hosts, size in ((1, 4096), (4, 0)):
        rows = [
            Row(name, hosts, size, (1.0,), 0, 0, 0, 0, None) for name in ("xdp-ring", "tcp-ring")
        ]
        assert summary_lines(rows, NEEDS) == []


def test_the_best_of_both_mtus_is_the_baseline():
    rows = [
        Row("xdp-ring", 4, 4096, (1e-4,), 0, 0, 0, 0, None),
        Row("tcp-ring", 4, 4096, (4e-4,), 0, 0, 0, 0, None),
        Row("tcp-ring@1500", 4, 4096, (3e-4,), 0, 0, 0, 0, None),
    ]
    _, line = summary_lines(rows, NEEDS)
    assert "3.00x" in line
    assert "tcp-ring@1500 300.0 us" in line
