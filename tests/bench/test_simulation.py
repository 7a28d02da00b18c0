"""The simulation's bench as a command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.core.errors import SpecError
from testbed.sim.calibration import read_calibration
from tests.support.command import run_testbed

COSTS = {
    "frame": 1e-6,
    "byte": 1e-10,
    "wakeup": 2e-6,
    "syscall": 2e-7,
    "prepare": 1e-10,
    "cores": 2,
    "points": [],
    "provenance": {"cpu": "Z80", "time": "today", "git_commit": "abc"},
}


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", "sim", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("extra", [(), ("--exact",)])
def test_the_result_says_how_it_was_made(extra: tuple[str, ...]) -> None:
    arguments = ["--topology", "fat-tree", "--hosts", "8", "--size", "64K", "--json", *extra]
    found = json.loads(bench(*arguments))
    assert found["engine"] == "simulation"
    assert found["model"] == ("frames" if extra else "trains")
    assert "7050SX" in found["hardware"]["source"]
    assert found["simulated_seconds"] > 2 * 7 / 8 * 65536 * 8 / 10e9
    assert found["events"] > 0
    assert found["peak_memory_bytes"] > 1 << 20
    assert 0 < found["busy"]["links"]["mean"] <= found["busy"]["links"]["most"] <= 1


def test_costs_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    arguments = ["--hosts", "4", "--size", "64K", "--hardware", str(path), "--json"]
    found = json.loads(bench(*arguments))
    assert found["hardware"]["source"] == "testbed calibrate: Z80, today, abc"
    path.write_text(json.dumps({**COSTS, "frame": 4e-6}))
    slower = json.loads(bench(*arguments))
    assert slower["simulated_seconds"] > 2 * found["simulated_seconds"]


def test_the_costs_of_a_cpu_are_not_its_number(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**COSTS, "cores": 2}))
    arguments = ["--hosts", "64", "--size", "1M", "--json"]
    shared = json.loads(bench(*arguments, "--hardware", str(path)))
    own = json.loads(bench(*arguments, "--hardware", "25g", "--costs", str(path)))
    preset = json.loads(bench(*arguments, "--hardware", "25g"))
    assert (shared["hardware"]["cpus"], shared["hardware"]["cpus_are_shared"]) == (2, True)
    assert (own["hardware"]["cpus"], own["hardware"]["cpus_are_shared"]) == (2, False)
    assert own["hardware"]["source"].startswith("link: 25 Gb/s Ethernet, 10 m; switch: Arista")
    assert own["hardware"]["source"].endswith("; host: testbed calibrate: Z80, today, abc")
    # 64 hosts on two CPUs wait for each other, and 64 with two each do not.
    assert shared["simulated_seconds"] > 10 * own["simulated_seconds"]
    assert own["simulated_seconds"] != preset["simulated_seconds"]
    lines = bench(*arguments[:-1], "--hardware", str(path)).splitlines()
    assert lines[1].startswith("hosts       share the 2 CPUs of the machine that was calibrated")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON, as testbed calibrate writes it"),
        ("[]", "must be an object, as testbed calibrate writes it"),
        (json.dumps({**COSTS, "frame": -1.0}), "frame = -1.0: must be 0 to 1"),
        (json.dumps({**COSTS, "cores": 0}), "cores = 0: must be 1 to 4096"),
        (json.dumps({**COSTS, "more": 1}), "more"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_calibration(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.net
@pytest.mark.deep
def test_a_machine_is_calibrated(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    done = run_testbed("calibrate", "--out", str(path), "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout
    found = read_calibration(path)
    assert min(found.frame + 1408 * found.byte, found.wakeup, found.syscall, found.prepare) > 0
    assert found.cores >= 1
    assert found.provenance.keys() >= {"time", "cpu", "kernel", "git_commit"}
    for point in found.points:
        assert point["simulated_seconds"] > 0 < point["measured_seconds"]


def test_lines_for_people() -> None:
    lines = bench("--hosts", "16", "--size", "1M", "--hardware", "100g").splitlines()
    assert lines[0] == "simulation, trains: fat-tree, 16 hosts, 1M, 100g"
    assert [line.split()[0] for line in lines[1:]] == [
        "all-reduce",
        "links",
        "cpus",
        "events",
        "memory",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--hardware", "40g"],
            "--hardware: '40g': must be 10g, 25g, 100g, or a file of testbed calibrate",
        ),
        (["--costs", "none.json"], "--costs: 'none.json': must be a file of testbed calibrate"),
        (
            ["--hardware", "a.json", "--costs", "b.json"],
            "--costs: 'b.json': must not be given, as --hardware is no preset, and has costs of its"
            " own",
        ),
        (["--size", "0"], "--size: 0: must be at least 4 bytes, a float32"),
        (["--train", "65537"], "--train: 65537: must be 0 to 65536 frames"),
        (["--hosts", "300", "--exact"], "hosts: 300: must be 2 to 255 where frames are simulated"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["bench", "sim", "--size", "64K", *arguments])
    assert isinstance(result.exception, SpecError)
    assert str(result.exception) == text
