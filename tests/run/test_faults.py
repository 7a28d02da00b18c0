"""Faults of a scenario: in every backend's turns alike, counted, logged and reported."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.report import make_report
from testbed.core.errors import TestbedError
from testbed.results import FAULT_COLUMNS, Run, load_run
from testbed.run import run_scenario
from testbed.scenario import Scenario, parse_scenario

pytestmark = [pytest.mark.net, pytest.mark.usefixtures("cache")]


def faulty(*faults: str, **changes: dict[str, Any]) -> Scenario:
    table: dict[str, Any] = {
        "scenario": {"name": "faulty"},
        "fabric": {"hosts": 3},
        "collective": {"backends": ["xdp-ring", "tcp-ring"], "timeout": 20.0},
        "dataset": {"name": "synthetic", "scale": 8, "classes": 4, "feature_dim": 16},
        "model": {"hidden": 32, "fanout": [4, 3]},
        "training": {"epochs": 2, "batch_size": 16, "learning_rate": 0.02},
    }
    return parse_scenario(
        {key: {**value, **changes.get(key, {})} for key, value in table.items()}
        | {"faults": list(faults)}
    )


def log_of(path: Path) -> pd.DataFrame:
    log = pd.read_parquet(path / "faults.parquet")
    assert list(log.columns) == list(FAULT_COLUMNS)
    return log


def losses(run: Run, backend: str) -> list[float]:
    rows = run.metric("loss")
    found: list[float] = rows[(rows["backend"] == backend) & rows["rank"].isna()]["value"].tolist()
    return found


def test_faults_hit_all_backends_and_change_no_model(tmp_path: Path) -> None:
    faults = (
        "drop p=0.02",
        "pause host=h3 for=20ms",
        "duplicate p=0.05 link=h1->h2",
        "flood switch=s1 for=20ms",
        "kill host=h2 at=300s",
    )
    out = run_scenario(faulty(*faults), tmp_path / "run", quiet=True)
    run, log = load_run(out), log_of(out)
    assert losses(run, "xdp-ring") == pytest.approx(losses(run, "tcp-ring"), rel=1e-3)
    fired = run.metric("faults_fired")
    for backend in run.backends:
        rows = log[log["backend"] == backend]
        # Each fault has fired in the turns of each backend, and the table counts what the log
        # lists.
        assert set(rows["fault"]) == {0, 1, 2, 3}
        for action, where in (("pause", "h3"), ("flood", "s1")):
            happened = rows[rows["action"] == action]
            assert happened["epoch"].tolist() == [0, 1]
            assert happened["hosts"].tolist() == [where] * 2
            assert (happened["duration"] > 0).all()
        frames = rows[~rows["action"].isin(["pause", "flood"])]
        assert fired[fired["backend"] == backend]["value"].sum() == len(frames)
        doubled = frames[frames["action"] == "duplicate"]
        assert set(zip(doubled["sender"], doubled["receiver"], strict=True)) == {("h1", "h2")}
    assert run.metric("fault_log_lost")["value"].sum() == 0
    events = run.metric("fault_events")
    # Per backend and epoch: the kill was scheduled for later.
    assert events["value"].tolist() == [1.0, 1.0, 0.0] * 4
    assert events["fault"].unique().tolist() == [faults[1], faults[3], faults[4]]
    report, checks = make_report(out)
    assert checks
    assert all(check.passed for check in checks)
    assert "<td>drop p=0.02</td>" in report.read_text()
    assert "<td>flood switch=s1 for=20ms</td>" in report.read_text()
    assert (
        "happened in 0 of 2 turns with xdp-ring, 0 of 2 turns with tcp-ring" in report.read_text()
    )


@pytest.mark.deep
def test_the_death_of_a_host_ends_the_run_with_an_error_that_names_it_and_a_log(
    tmp_path: Path,
) -> None:
    scenario = faulty("kill host=h2 at=1ms", "drop p=0.1", training={"epochs": 50})
    with pytest.raises(TestbedError) as death:
        run_scenario(scenario, tmp_path / "run", quiet=True)
    said = "the fault 'kill host=h2 at=1ms' had killed h2"
    text = str(death.value)
    assert text.startswith(
        f"worker h2 was killed by signal 9 before its work was done; {said}; faults were in force,"
        " with frames by link: drop p=0.1: h"
    )
    assert text.endswith(f"; results so far are in {tmp_path / 'run'}")
    assert said in json.loads((tmp_path / "run" / "manifest.json").read_text())["error"]
    log = log_of(tmp_path / "run")
    (kill,) = log[log["action"] == "kill"].to_dict("records")
    assert (kill["hosts"], kill["backend"], kill["epoch"]) == ("h2", "xdp-ring", 0)
    assert pd.isna(kill["duration"])


@pytest.mark.deep
def test_limits_and_partitions_are_counted(tmp_path: Path) -> None:
    limit = "limit host=h1 rate=50mbit queue=2KiB direction=up"
    faults = (limit, "partition sets=h1|h2 for=200ms", "link-down host=h3 for=5ms")
    out = run_scenario(faulty(*faults, training={"epochs": 1}), tmp_path / "run", quiet=True)
    run = load_run(out)
    assert run.metric("fault_frames_limited")["value"].sum() > 0
    assert run.metric("fault_frames_blocked")["value"].sum() > 0
    assert losses(run, "xdp-ring") == pytest.approx(losses(run, "tcp-ring"), rel=1e-3)
