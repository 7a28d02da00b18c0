"""Memory estimates: upper bounds, close to measurements, and errors if there is less memory."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from testbed.core.errors import SpecError
from testbed.gnn.debian import DebianSpec, parse_packages
from testbed.gnn.planetoid import planetoid_graph
from testbed.gnn.synthetic import SyntheticSpec, crowding, rmat_edges, synthetic_graph
from testbed.host import estimates
from testbed.scenario import Scenario, load_scenario, parse_scenario
from tests.support.command import call_testbed
from tests.support.gnn.planetoid_files import write

GIB = 1 << 30
SCENARIOS = Path(__file__).parents[1] / "scenarios"


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MiB of free memory."""
    monkeypatch.setattr(estimates, "free_memory", lambda: 1 << 20)


def scenario(**tables: Mapping[str, Any]) -> Scenario:
    return parse_scenario({"scenario": {"name": "s"}, "dataset": {"name": "synthetic"}, **tables})


def check(scenario: Scenario) -> None:
    scenario.workload.begin(scenario).check()


def test_a_share_of_what_is_available_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "free_memory", lambda: 10 * GIB)
    estimates.check({"a": 5 * GIB, "b": 3 * GIB}, "x = 1")
    with pytest.raises(SpecError) as refused:
        estimates.check({"a": 1 * GIB, "b": 5 * GIB, "c": 3 * GIB, "d": 2 * GIB}, "x = 1, y = 2")
    assert (
        str(refused.value)
        == "x = 1, y = 2: needs about 11.0 GiB of memory (b 5.0 GiB, c 3.0 GiB, d 2.0 GiB): "
        "must be at most 8.0 GiB, 80% of what is available"
    )


def test_keys_that_are_in_range_but_together_too_large_are_refused(tmp_path: Path) -> None:
    large = {"dataset": {"name": "synthetic", "scale": 22, "edge_factor": 64, "feature_dim": 8192}}
    keys = r"dataset\.scale = 22, dataset\.edge_factor = 64, dataset\.feature_dim = 8192"
    for tables in (large, {**large, "exchange": {}}):
        with pytest.raises(
            SpecError,
            match=keys + r".*: needs about .*must be at most .* GiB, 80% of what is available",
        ):
            check(scenario(**tables))
    assert estimates.Graph(1 << 22, 0, 8192, 0).mapped > 128 * GIB
    with pytest.raises(
        SpecError,
        match=r"needs about 168\.0 GiB of memory \(features 128\.0 GiB, edges 40\.0 GiB\)",
    ):
        synthetic_graph(SyntheticSpec(**large["dataset"]))


@pytest.mark.parametrize(
    "tables",
    [
        {"dataset": {"name": "synthetic", "scale": 22, "edge_factor": 1, "feature_dim": 1024}},
        {"model": {"hidden": 8192, "layers": 6, "fanout": [1] * 6}},
        {"model": {"hidden": 8192, "layers": 6}, "exchange": {}},
        {
            "training": {"batch_size": 1 << 20},
            "model": {"fanout": [64, 64]},
            "dataset": {"name": "synthetic", "scale": 20, "feature_dim": 2048},
        },
        {
            "fabric": {"hosts": 32},
            "dataset": {"name": "synthetic", "scale": 20, "edge_factor": 64},
            "exchange": {},
        },
    ],
)
def test_each_key_counts(tables: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "free_memory", lambda: 10 * GIB)
    with pytest.raises(SpecError, match="needs about"):
        check(scenario(**tables))


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_scenarios_fit_into_a_small_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "free_memory", lambda: 4 * GIB)
    loaded = load_scenario(path)
    if loaded.simulated:
        loaded.workload.simulate(loaded).check()
    else:
        check(loaded)


@pytest.mark.usefixtures("little")
def test_every_graph_is_estimated_before_it_is_made() -> None:
    with pytest.raises(
        SpecError, match=r"dataset\.scale = 10, dataset\.edge_factor = 8, .*: needs about"
    ):
        synthetic_graph(SyntheticSpec(name="synthetic", scale=10))
    packages = io.BytesIO((Path(__file__).parent / "gnn" / "data" / "Packages").read_bytes())
    with pytest.raises(SpecError, match=r"dataset\.feature_dim = 8192: needs about"):
        parse_packages(packages, DebianSpec(name="debian", feature_dim=8192))


def test_sparse_features_of_any_width_are_not_made_dense(tmp_path: Path) -> None:
    def wide(rows: int) -> csr_matrix:
        return csr_matrix(
            (np.ones(rows, np.float32), np.arange(rows), np.arange(rows + 1)), (rows, 1 << 40)
        )

    with pytest.raises(
        SpecError,
        match=r"raw: 8 vertices, 1099511627776 features, 2 labels: needs about 98304\.0 GiB",
    ):
        planetoid_graph(write(tmp_path, x=wide(2), tx=wide(2), allx=wide(5)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["aggregate", "--vertices", str(1 << 26), "--dims", "512", "--degrees", "1"],
            "--dims: 512, --degrees: 1: needs",
        ),
        (
            ["broadcast", "-b", "1G", "-e", "1G", "--receivers", "31"],
            "-e: a message of 1073741824 bytes to 31 hosts: needs",
        ),
        (["allreduce", "-b", "4G", "-e", "4G"], "-e: 4G: must be at most"),
        (["faults", "--size", "4G"], "--size: 4G: must be at most"),
    ],
)
def test_benches_are_refused(arguments: list[str], text: str) -> None:
    done = call_testbed("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: -")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_first_vertices_of_a_drawn_graph_have_most_edges() -> None:
    source, target = rmat_edges(16, 1 << 18, np.random.default_rng(0))
    for ends in (source, target):
        counts = np.bincount(ends, minlength=1 << 16).reshape(-1, estimates.EVALUATION_BATCH).sum(1)
        assert counts.argmax() == 0
        assert counts[0] / len(ends) == pytest.approx(crowding(16), rel=0.02)


ALONE = {"backends": ["gloo"]}  # because one model is kept per backend
MEASURED = """
import json, os, sys
from pathlib import Path
import numpy as np

def status(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

def peak(function):
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here (proc_pid_clear_refs(5))
    before = status("VmRSS")
    function()
    return status("VmHWM") - before

from testbed.host import estimates
from testbed.gnn.graph import GraphData
from testbed.gnn.synthetic import synthetic_graph
from testbed.scenario import parse_scenario

def estimate(scenario, data):
    found = {}
    estimates.check = lambda need, cause: found.update(need)
    scenario.workload.begin(scenario).check(data)
    return found

kind, folder, tables = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
scenario = parse_scenario({"scenario": {"name": "s"}, "fabric": {"hosts": 1 if kind == "data_parallel" else 2}, **tables})
spec = scenario.dataset
if kind == "drawn":
    synthetic_graph(spec.model_copy(update={"scale": 6, "feature_dim": 1}))
    need = estimates.drawn(1 << spec.scale, spec.edge_factor << spec.scale, spec.feature_dim)
    print(sum(need.values()), peak(lambda: synthetic_graph(spec)))
    raise SystemExit
if not os.fork():  # what it leaves to the allocator would hide what is measured
    synthetic_graph(spec).save(folder)
    os._exit(0)
assert os.wait()[1] == 0
small = synthetic_graph(spec.model_copy(update={"scale": 6}))
if kind == "data_parallel":
    from testbed.comm.collective import Counters
    from testbed.gnn.train import Trainer
    from types import SimpleNamespace
    alone = SimpleNamespace(phases=dict.fromkeys(("quantize", "communicate", "wait", "dequantize"), 0.0), counters=Counters,
                            all_reduce=lambda tensor, out: out)
    def train(data):
        trainer = Trainer(data, scenario.model, scenario.training, 0, 1, 1)
        trainer.epoch(alone, 0)
        trainer.test_accuracy()
else:
    from testbed.gnn.full.channel import Channel
    from testbed.gnn.full.part import make_part
    from testbed.gnn.full.train import FullTrainer
    def train(data):
        owners = np.arange(data.num_vertices, dtype=np.int32) % 2
        part = make_part(data, owners, 0, 2)
        FullTrainer(part, data.num_classes, scenario.model, scenario.training, 1).epoch(Channel(), 0)
train(small)
data = GraphData.load(folder)
measured = peak(lambda: train(data))
need = estimate(scenario, data)
apart = {"workers": 0, "exchanges": 0, "partition": 0, "graph": need["graph"] / scenario.fabric.hosts}
need |= {key: value * scenario.fabric.hosts for key, value in apart.items() if key in need}
print(round(sum(need.values()) / scenario.fabric.hosts), measured)
"""  # noqa: E501


@pytest.mark.deep
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the kernel has no CONFIG_PROC_PAGE_MONITOR"
)
@pytest.mark.parametrize(
    ("kind", "tables"),
    [
        ("drawn", {"dataset": {"scale": 16, "edge_factor": 4, "feature_dim": 512}}),
        ("drawn", {"dataset": {"scale": 15, "edge_factor": 32, "feature_dim": 8}}),
        ("data_parallel", {"dataset": {"scale": 15, "feature_dim": 512}, "training": {"steps": 3}}),
        (
            "data_parallel",
            {
                "dataset": {"scale": 14},
                "model": {"hidden": 1024},
                "training": {"batch_size": 512, "steps": 3},
            },
        ),
        ("full_graph", {"dataset": {"scale": 15, "feature_dim": 512}, "exchange": ALONE}),
        (
            "full_graph",
            {
                "dataset": {"scale": 14},
                "model": {"name": "gcn", "hidden": 512, "layers": 3},
                "exchange": ALONE,
            },
        ),
        (
            "full_graph",
            {"dataset": {"scale": 18, "feature_dim": 8}, "model": {"hidden": 8}, "exchange": ALONE},
        ),
    ],
)
def test_estimates_are_near_what_is_measured(
    tmp_path: Path, kind: str, tables: dict[str, dict[str, Any]]
) -> None:
    tables = {**tables, "dataset": {"name": "synthetic", **tables["dataset"]}}
    # Make malloc return memory at once, so that freed memory does not count as used.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_TRIM_THRESHOLD_": "0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    command = [sys.executable, "-c", MEASURED, kind, str(tmp_path / "graph"), json.dumps(tables)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    estimated, measured = map(int, done.stdout.split())
    print(
        f"{kind}: estimated {estimated >> 20} MiB, measured {measured >> 20} MiB,"
        f" {estimated / measured:.2f}"
    )
    assert measured > 32 << 20  # less would be noise
    assert 1 <= estimated / measured <= 3
