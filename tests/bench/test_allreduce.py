"""The bench as a command, on real fabrics."""

import json
import os

import pytest

from testbed.bench.allreduce import Options
from testbed.core.errors import SpecError
from testbed.kernel.syscalls import SyscallCounter
from testbed.plan import plan_fabric
from tests.support.command import call_testbed, run_testbed
from tests.support.tiers import broad


def make_options(**changes):
    return Options(
        **{
            "plan": plan_fabric(),
            "backends": ["gloo"],
            "sizes": [4],
            "iterations": 1,
            "warmup": 0,
            "check": True,
            **changes,
        }
    )


def test_turns_share_the_iterations():
    assert make_options(iterations=1).turns == [1]
    assert make_options(iterations=5).turns == [1] * 5
    assert make_options(iterations=22).turns == [4, 4, 5, 4, 5]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"iterations": 0}, "-n: 0: must be 1 to 1000000 iterations"),
        ({"sizes": [4, 1 << 33]}, "-e: 8G: must be at most 8589934588 bytes, 2^31 - 1 elements"),
        (
            {"backends": ["nccl"]},
            "backend 'nccl' does not exist: must be one of xdp-ring, tcp-ring, gloo, mpi, or"
            " module:Class",
        ),
    ],
)
def test_refusals(changes, text):
    with pytest.raises(SpecError) as caught:
        make_options(**changes)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["-d", "bfloat16"],
            "-d: 'bfloat16': must be one of float, double, half, int32, int64",
        ),
        (
            ["-d", "int32", "--op", "avg", "--backends", "gloo"],
            "--op: avg: must be one of sum, min, max with -d int32",
        ),
        (
            ["-o", "min"],
            "-o: min: is the file of the results here, and must have another name; --op min is how"
            " values are reduced",
        ),
    ],
)
def test_refusal_by_the_command(arguments, text):
    done = call_testbed("bench", "allreduce", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {text}\n")


@pytest.mark.kernel
def test_system_calls_are_counted_exactly():
    with SyscallCounter() as counter:
        before = counter.read()
        assert counter.read() == before
        for _ in range(1000):
            os.getppid()
        assert counter.read() - before == 1000


@pytest.mark.net
@pytest.mark.parametrize(
    ("command", "op", "redop"),
    broad(
        [
            ("allreduce", "avg", "avg"),
            ("reducescatter", "avg", "avg"),
            ("allgather", "sum", "none"),
            ("bcast", "sum", "none"),
        ]
    ),
)
def test_collectives_end_to_end(tmp_path, command, op, redop):
    path = tmp_path / "out.json"
    terms = f"--hosts 3 --mtu 1400 -b 64K -e 64K -n 3 -w 1 --op {op} --out-of-place --out {path}"
    done = run_testbed("bench", command, *terms.split())
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    assert result["environment"]["mtu"] == 1400
    assert result["environment"]["mpi"].startswith("Open MPI")
    rows = result["rows"]
    assert [row["backend"] for row in rows] == ["xdp-ring", "tcp-ring", "gloo", "mpi"]
    blocks = command in ("reducescatter", "allgather")
    size, count = (65532, 5461) if blocks else (65536, 16384)
    for row in rows:
        assert (row["size_bytes"], row["count"], row["redop"]) == (size, count, redop)
        assert row["wrong"] == row["out_of_place"]["wrong"] == 0
        assert 0 < row["time_us"]["min"] <= row["time_us"]["median"] <= row["time_us"]["p99"]
        assert row["out_of_place"]["time_us"]["median"] > 0
        assert row["syscalls_per_rank"] > 0
        # N - 1 hops of each value, in lanes of half its width; twice in an all-reduce
        assert row["wire_bytes"] > size * (2 if command == "allreduce" else 1)
    lines = done.stdout.splitlines()
    assert "# Against the best socket baseline, medians of 3:" in lines
    header = next(line for line in lines if line.startswith("#") and " algbw " in line)
    assert header.count("#wrong") == 2
    assert {len(line) for line in lines if line.startswith("  ")} == {len(header)}


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.parametrize(
    ("command", "backends", "datatype", "op", "width"),
    [
        ("allreduce", "tcp-ring,gloo,mpi", "double", "avg", 8),
        ("allreduce", "gloo", "half", "sum", 2),
        ("reducescatter", "tcp-ring,gloo,mpi", "int32", "sum", 4),
        ("allgather", "xdp-ring,tcp-ring,gloo,mpi", "half", "sum", 2),
        ("bcast", "xdp-ring,tcp-ring,gloo,mpi", "int64", "sum", 8),
    ],
)
def test_other_types_end_to_end(tmp_path, command, backends, datatype, op, width):
    path = tmp_path / "out.json"
    terms = f"--hosts 3 --backends {backends} -b 60004 -e 60004 -n 2 -w 1 -d {datatype} --op {op}"
    done = run_testbed("bench", command, *terms.split(), "--out", str(path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["backend"] for row in rows] == backends.split(",")
    blocks = 3 if command in ("reducescatter", "allgather") else 1
    for row in rows:
        assert (row["type"], row["wrong"]) == (datatype, 0)
        assert row["size_bytes"] == 60004 // (max(width, 4) * blocks) * max(width, 4) * blocks
        assert row["count"] == row["size_bytes"] // width // blocks


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--op", "max"], "--op: max: must be one of sum, avg with xdp-ring; --backends"),
        (["-d", "int32"], "-d: int32: must be float with xdp-ring; --backends"),
        (
            ["-d", "half", "--backends", "gloo,mpi"],
            "-d: half: must be one of float, double, int32, int64 with mpi; --backends",
        ),
    ],
)
def test_refusal_of_what_a_backend_cannot_reduce(arguments, text):
    done = call_testbed("bench", "allreduce", "--hosts", "2", "-b", "4", "-e", "4", *arguments)
    assert (done.returncode, done.stderr) == (2, f"error: {text} chooses others\n")


@pytest.mark.net
@pytest.mark.deep
def test_sockets_are_measured_with_small_packets_too(tmp_path):
    """Over links that carry larger ones; without TSO, frames show it."""
    path = tmp_path / "out.json"
    terms = (
        f"--hosts 2 --backends tcp-ring --mtu 9000 --offload off -b 64K -e 64K -n 3 --out {path}"
    )
    done = run_testbed("bench", "allreduce", *terms.split())
    assert done.returncode == 0, done.stderr
    large, small = json.loads(path.read_text())["rows"]
    assert [row["backend"] for row in (large, small)] == ["tcp-ring", "tcp-ring@1500"]
    assert small["wire_bytes"] <= small["packets"] * (1500 + 14)
    assert large["wire_bytes"] > large["packets"] * (1500 + 14)
    assert all(row["wrong"] == 0 and row["copy_us"] > 0 for row in (large, small))
    assert "# Over the time in which all ranks at once copy the tensor:" in done.stdout


def test_help_gives_ranges():
    text = " ".join(call_testbed("bench", "allreduce", "--help").stdout.replace("│", " ").split())
    for allowed in (
        "1 to 32",
        "576 to 65535",
        "more than 3506",
        "1 to 256",
        "at least 2",
        "1 to 1000000",
    ):
        assert allowed in text
