"""Full-graph training end to end: hosts, exchanges, training, results, report; compared with one
process that has the whole graph.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.report import make_report
from testbed.core.errors import SpecError
from testbed.exchange.interface import PHASES
from testbed.gnn.full.channel import Channel
from testbed.gnn.full.part import make_part
from testbed.gnn.full.train import FULL_PHASES, FullTrainer
from testbed.gnn.graph import GraphData
from testbed.results import Run, load_run
from testbed.run import run_scenario
from testbed.scenario import Scenario, parse_scenario

pytestmark = pytest.mark.usefixtures("cache")

HOSTS = 3


def tiny(**changes: dict[str, Any]) -> Scenario:
    table: dict[str, Any] = {
        "scenario": {"name": "tiny"},
        "fabric": {"hosts": HOSTS},
        "exchange": {"backends": ["tcp-push"], "timeout": 20.0, "turn": 2},
        "dataset": {"name": "synthetic", "scale": 8, "classes": 4, "feature_dim": 16},
        "model": {"name": "gcn", "hidden": 8},
        "training": {"epochs": 5, "learning_rate": 0.02},
    }
    return parse_scenario(
        {key: {**table.get(key, {}), **changes.get(key, {})} for key in table | changes}
    )


def single_process(scenario: Scenario) -> tuple[list[float], float]:
    """Train in this process; return the loss of each epoch, and the test accuracy after the last
    one.
    """
    graph = GraphData.load(scenario.dataset.prepare())
    part = make_part(graph, np.zeros(graph.num_vertices, np.int32), 0, 1)
    trainer = FullTrainer(
        part, graph.num_classes, scenario.model, scenario.training, scenario.scenario.seed
    )
    results = [trainer.epoch(Channel(), epoch) for epoch in range(scenario.training.epochs)]
    return [result.loss for result in results], results[-1].test_correct / results[-1].test_total


def values(run: Run, metric: str, backend: str) -> list[float]:
    rows = run.metric(metric)
    return rows[(rows["backend"] == backend) & rows["rank"].isna()]["value"].tolist()


@pytest.mark.net
@pytest.mark.deep
def test_every_exchange_trains_like_one_process(tmp_path: Path) -> None:
    """For 20 epochs: the loss within 1e-3 in each, the test accuracy within half a point."""
    exchange = {"backends": ["pinch", "tcp-pull", "tcp-push", "gloo"], "turn": 10}
    scenario = tiny(exchange=exchange, dataset={"scale": 10}, training={"epochs": 20})
    run = load_run(
        run_scenario(
            scenario, tmp_path / "run", quiet=True, command=["testbed", "run", "tiny.toml"]
        )
    )
    losses, accuracy = single_process(scenario)
    assert run.workload == "gnn"
    assert run.backends == ["pinch", "tcp-pull", "tcp-push", "gloo"]
    for backend in run.backends:
        assert len(values(run, "loss", backend)) == 20
        np.testing.assert_allclose(values(run, "loss", backend), losses, atol=1e-3)
        assert values(run, "test_accuracy", backend) == [pytest.approx(accuracy, abs=0.005)]
        assert 0 < values(run, "edge_cut_share", backend)[0] < 1
        rows = run.frame[(run.frame["backend"] == backend) & (run.frame["rank"] == 1)]
        last = rows[rows["epoch"] == 19].set_index("metric")["value"]
        assert sum(last[f"{part}_time"] for part in FULL_PHASES) == pytest.approx(
            last["epoch_time"]
        )
        assert last["straggler_time"] + last["exchange_time"] == pytest.approx(
            last["communication_time"]
        )
        assert (
            0
            < sum(last[f"{phase}_time"] for phase in PHASES)
            <= last["communication_time"]
            < last["epoch_time"]
        )
        assert last["packets"] > 0
        counted = rows[rows["epoch"].isna()].set_index("metric")["value"]
        assert counted["syscalls"] > 0
        assert counted["crossings"] == counted["syscalls"] + counted["page_faults"]

    report, checks = make_report(run.path)
    assert report.exists()
    assert checks
    assert all(check.passed for check in checks)


@pytest.mark.net
def test_a_vertex_cut_trains_like_one_process(tmp_path: Path) -> None:
    exchange = {"backends": ["pinch"], "policy": "cvc"}
    scenario = tiny(fabric={"hosts": 2}, exchange=exchange, training={"epochs": 2})
    run = load_run(run_scenario(scenario, tmp_path / "run", quiet=True))
    losses, _ = single_process(scenario)
    for backend in run.backends:
        np.testing.assert_allclose(values(run, "loss", backend), losses, atol=1e-3)
        assert values(run, "replication_factor", backend)[0] > 1
    report, _ = make_report(run.path)
    assert "cvc" in report.read_text()


@pytest.mark.parametrize(("key", "value"), [("bound", 0.1), ("halo", "cover")])
def test_a_vertex_cut_exchanges_whole_rows(key: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        tiny(exchange={"policy": "cvc", key: value})
    assert str(caught.value) == (
        f"scenario: exchange.{key}: must be left out with exchange.policy, a vertex cut"
    )


@pytest.mark.net
@pytest.mark.deep
def test_faults_hit_every_turn(tmp_path: Path) -> None:
    table = tiny(exchange={"backends": ["pinch", "tcp-push"]}, training={"epochs": 3}).model_dump(
        mode="json"
    )
    scenario = parse_scenario({**table, "faults": ["drop p=0.02", "pause hosts=h2 for=0.05"]})
    run = load_run(run_scenario(scenario, tmp_path / "run", quiet=True))
    fired = run.metric("faults_fired")
    for backend in run.backends:
        np.testing.assert_allclose(
            values(run, "loss", backend), single_process(scenario)[0], atol=1e-5
        )
        assert set(fired[fired["backend"] == backend]["epoch"]) == {
            0,
            2,
        }  # the first epoch of each turn


@pytest.mark.net
@pytest.mark.deep
def test_vertices_that_stay_as_they_are_are_not_sent_again(tmp_path: Path) -> None:
    """Without dropout, features do not change, nor do the gradients of vertices far from the
    training set.
    """
    exchange = {"backends": ["pinch"], "bound": 0.0, "staleness": 100, "turn": 5}
    scenario = tiny(exchange=exchange, model={"hidden": 32, "dropout": 0.0})
    run = load_run(run_scenario(scenario, tmp_path / "run", quiet=True))
    np.testing.assert_allclose(values(run, "loss", "pinch"), single_process(scenario)[0], atol=1e-5)
    hits = run.metric("cache_hits").groupby("epoch")["value"].sum()
    assert (hits[1:] > hits[0]).all()  # in the first epoch only zeros need not be sent
    assert (run.metric("bytes_saved")["unit"] == "B").all()


def test_embeddings_that_are_too_long(tmp_path: Path) -> None:
    scenario = tiny(model={"hidden": 1024, "layers": 3})
    with pytest.raises(
        SpecError,
        match=r"^model\.hidden = 1024: embeddings of 1024 elements travel: must be at most 512$",
    ):
        run_scenario(scenario, tmp_path / "run", quiet=True)


def test_a_graph_that_cannot_be_partitioned_is_refused(tmp_path: Path) -> None:
    scenario = tiny(
        fabric={"hosts": 12},
        dataset={"scale": 4, "train_fraction": 0.8},
        exchange={"partitioner": "hash"},
    )
    with pytest.raises(
        SpecError, match=r"^partitioner hash: part \d+ of 12 has no vertex of 16: use fewer parts"
    ):
        run_scenario(scenario, tmp_path / "run", quiet=True)
