"""A small scenario end to end: hosts, workers, training, results, report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.report import make_report
from testbed.core.errors import SpecError, TestbedError
from testbed.results import Run, load_run
from testbed.run import run_scenario
from testbed.scenario import Scenario, parse_scenario

pytestmark = pytest.mark.usefixtures("cache")

PHASES = ("quantize", "communicate", "wait", "dequantize")


def tiny(**changes: dict[str, Any]) -> Scenario:
    table: dict[str, Any] = {
        "scenario": {"name": "tiny", "trials": 1},
        "fabric": {"hosts": 3},
        "collective": {"backends": ["tcp-ring"], "timeout": 20.0},
        "dataset": {"name": "synthetic", "scale": 8, "classes": 4, "feature_dim": 16},
        "model": {"hidden": 16, "fanout": [4, 3]},
        "training": {"epochs": 2, "batch_size": 16, "learning_rate": 0.02},
    }
    return parse_scenario({key: {**value, **changes.get(key, {})} for key, value in table.items()})


def values(run: Run, metric: str, backend: str) -> list[float]:
    rows = run.metric(metric)
    return rows[(rows["backend"] == backend) & rows["rank"].isna()]["value"].tolist()


@pytest.mark.net
@pytest.mark.deep
def test_backends_train_the_same_model(tmp_path: Path) -> None:
    scenario = tiny(collective={"backends": ["xdp-ring", "tcp-ring"]})
    out = run_scenario(
        scenario, tmp_path / "run", quiet=True, command=["testbed", "run", "tiny.toml"]
    )
    run = load_run(out)

    assert run.manifest["status"] == "complete"
    assert run.backends == ["xdp-ring", "tcp-ring"]
    assert not (out / "faults.parquet").exists()
    assert run.metric("faults_fired").empty
    # Lanes of 32 bits are finer than float32's own rounding: curves coincide far within the
    # tolerance.
    np.testing.assert_allclose(
        values(run, "loss", "xdp-ring"), values(run, "loss", "tcp-ring"), rtol=1e-3
    )
    losses = values(run, "loss", "tcp-ring")
    assert len(losses) == 2
    assert losses[1] < losses[0]

    for backend in run.backends:
        rows = run.frame[(run.frame["backend"] == backend) & (run.frame["rank"] == 1)]
        last = rows[rows["epoch"] == 1].set_index("metric")["value"]
        assert last["steps"] == 4  # 154 training vertices on 3 ranks, 16 per batch
        assert last["packets"] > 0
        assert (
            last["wire_bytes"] > 4 * run.manifest["parameters"]
        )  # a ring sends 2(N-1)/N of the data
        assert 0 < sum(last[f"{phase}_time"] for phase in PHASES) <= last["communication_time"]
        assert last["straggler_time"] + last["exchange_time"] == pytest.approx(
            last["communication_time"]
        )
        assert last["communication_time"] < last["epoch_time"]

    report, checks = make_report(out)
    assert report.exists()
    assert [check.what for check in checks] == ["loss", "test accuracy"]
    assert all(check.passed for check in checks)


@pytest.mark.net
@pytest.mark.deep
def test_failed_run_says_so_in_its_manifest(tmp_path: Path) -> None:
    scenario = tiny(
        training={"optimizer": "sgd", "learning_rate": 100.0, "epochs": 50},
        dataset={"noise": 100.0},
    )
    with pytest.raises(TestbedError, match="the loss of rank"):
        run_scenario(scenario, tmp_path / "run", quiet=True)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "learning_rate = 100.0 may be too large" in manifest["error"]
    measured = pd.read_parquet(tmp_path / "run" / "results.parquet")
    assert measured[measured["metric"] == "epoch_time"]["epoch"].tolist() == [
        0,
        0,
        0,
    ]  # of three ranks
    with pytest.raises(SpecError, match="its status is failed"):
        load_run(tmp_path / "run")


def test_more_hosts_than_training_vertices(tmp_path: Path) -> None:
    scenario = tiny(fabric={"hosts": 8}, dataset={"scale": 4, "train_fraction": 0.25})
    with pytest.raises(
        SpecError, match=r"fabric\.hosts = 8: must be at most the size of the training set, 4"
    ):
        run_scenario(scenario, tmp_path / "run", quiet=True)


def test_folder_is_checked_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(SpecError, match="holds files that are no run's"):
        run_scenario(tiny(), tmp_path, quiet=True)
