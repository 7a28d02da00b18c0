"""Workloads of other packages: found by name or entry point, read, run and reported, without an
edit elsewhere.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.report import make_report
from testbed.core.errors import SpecError
from testbed.results import load_run
from testbed.run import run_scenario
from testbed.scenario import Scenario, parse_scenario

FOLDER = Path(__file__).parents[1] / "support" / "summing"
NAME = "tests.support.summing:WORKLOAD"


def summing(**tables: dict[str, Any]) -> Scenario:
    return parse_scenario(
        {"scenario": {"name": "sums", "workload": NAME}, "fabric": {"hosts": 3}, **tables}
    )


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("cache")
def test_another_packages_workload_runs_and_is_reported(tmp_path: Path) -> None:
    scenario = summing(summing={"backends": ["xdp-ring", "tcp-ring"], "sums": 5, "timeout": 20.0})
    table = {**scenario.model_dump(mode="json"), "faults": ["drop p=0.01"]}
    run = load_run(
        run_scenario(
            parse_scenario(table),
            tmp_path / "run",
            quiet=True,
            command=["testbed", "run", "sums.toml"],
        )
    )
    assert (run.workload, run.backends, run.manifest["elements"]) == (
        NAME,
        ["xdp-ring", "tcp-ring"],
        1000,
    )
    for backend in run.backends:
        rows = run.frame[(run.frame["backend"] == backend) & (run.frame["rank"] == 1)]
        assert sorted(rows["epoch"].dropna().unique()) == [0, 1, 2]
        last = rows[rows["epoch"] == 2].set_index("metric")["value"]
        assert (last["wrong_numbers"], last["right_sums"], last["steps"]) == (0, 5, 5)
        assert last["wire_bytes"] > 0
        parts = ("drawing", "checking", "quantize", "communicate", "wait", "dequantize", "other")
        assert sum(last[f"{part}_time"] for part in parts) == pytest.approx(last["epoch_time"])
        assert last["straggler_time"] + last["exchange_time"] == pytest.approx(
            last["communication_time"]
        )
    assert set(run.metric("faults_fired")["backend"]) == {"xdp-ring", "tcp-ring"}

    report, checks = make_report(run.path)
    html = report.read_text()
    assert checks == []
    assert "1,000 numbers summed at a time" in html
    assert "<td>right sums</td>" in html
    assert "<td>15</td>" in html  # in one epoch of three ranks
    assert "<td>drawing, " in html
    assert "The same training" not in html
    assert not (run.path / "figures" / "loss.png").exists()


def test_its_schema_is_its_own() -> None:
    scenario = summing(summing={"rounds": 7})
    assert (scenario.epochs, scenario.backends, scenario.needs("gloo")) == (7, ("gloo",), "sockets")
    assert set(scenario.model_dump()) == {
        "scenario",
        "fabric",
        "telemetry",
        "faults",
        "programs",
        "simulation",
        "summing",
    }
    for tables, text in (
        ({"summing": {"rounds": 0}}, "scenario: summing.rounds = 0: must be 1 to 100"),
        (
            {"summing": {"backends": ["udp"]}},
            'scenario: summing.backends[0] = "udp": must be xdp-ring, tcp-ring, gloo, mpi or'
            " module:Class",
        ),
        (
            {"model": {}},
            "scenario: table [model]: belongs to workload ddp, gnn or sampled, not to"
            f" {NAME}: leave it out",
        ),
    ):
        with pytest.raises(SpecError) as caught:
            summing(**tables)
        assert str(caught.value) == text


def test_it_refuses_a_scenario_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"^summing\.sums = 1000: must be at most 2\^24 elements in all$"
    ):
        run_scenario(summing(summing={"sums": 1000, "elements": 1 << 20}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none", 'scenario.workload = "none": must be ddp'),
        ("no.such:THING", "workload no.such:THING: cannot be loaded: No module named 'no'"),
        (
            "tests.support.summing:NONE",
            "cannot be loaded: module 'tests.support.summing' has no attribute 'NONE'",
        ),
        (
            "tests.support.summing:Annotated",
            "workload tests.support.summing:Annotated: must be a Workload, not",
        ),
    ],
)
def test_objects_that_are_no_workloads_are_refused(name: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_scenario(
            {"scenario": {"name": "s", "workload": name}, "dataset": {"name": "synthetic"}}
        )
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


INSTALLED = """
import json, sys
from testbed.scenario import parse_scenario
from testbed.workloads.registry import WORKLOADS
scenario = parse_scenario({"scenario": {"name": "s"}, "summing": {"sums": 2}})
print(json.dumps([list(WORKLOADS), scenario.scenario.workload, scenario.workload.session, type(scenario).__module__]))
"""  # noqa: E501


def test_an_installed_package_has_entry_points(tmp_path: Path) -> None:
    """A scenario without a name gets its workload from the table that it has."""
    shutil.copytree(FOLDER, tmp_path / "summing")
    about = tmp_path / "summing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: summing\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[testbed.workloads]\nsums = summing:WORKLOAD\n")
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["ddp", "gnn", "dnn", "module", "sampled", "sums"],
        "sums",
        "summing.session:Summing",
        "summing",
    ]
