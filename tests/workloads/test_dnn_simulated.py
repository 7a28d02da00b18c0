"""The training of deep networks in the simulator."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.loading import load, origin
from analysis.report import make_report
from testbed.cli import app
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.faults.rule_table import NO_RULES, compile_rules
from testbed.faults.spec import parse_fault, rules_of
from testbed.host import estimates
from testbed.plan import plan_fabric
from testbed.results import Run, load_run
from testbed.run import check, run_scenario
from testbed.scenario import Scenario, parse_scenario
from testbed.sim.group import Wanted, make_group
from testbed.sim.presets import PRESETS
from tests.support.workloads.networks import SMALL

NETWORK = "tests.support.workloads.networks:SMALL"
PLAN = plan_fabric()
NO_VALUES = lambda rank: np.zeros(0, np.float32)  # noqa: E731
ENGINE = {"name": "s", "engine": "simulation"}


def scenario(hosts: int = 4, faults: list[str] | None = None, **keys: object) -> Scenario:
    table = {"model": NETWORK, "backends": ["xdp-ring"], "epochs": 2, "steps": 2, **keys}
    fabric = {"hosts": hosts}
    return parse_scenario(
        {"scenario": ENGINE, "fabric": fabric, "dnn": table, "faults": faults or []}
    )


def run(made: Scenario, place: Path) -> Run:
    return load_run(run_scenario(made, place, quiet=True))


def value(found: Run, metric: str, backend: str = "xdp-ring") -> float:
    rows = found.metric(metric)
    return float(rows.loc[rows["backend"] == backend, "value"].iloc[0])


@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_takes_its_computing_and_what_that_does_not_hide(
    tmp_path: Path, overlap: bool
) -> None:
    made = scenario(compute=0.003, overlap=overlap)
    found = run(made, tmp_path / "run")
    first, second = (bucket.end - bucket.start for bucket in made.dnn.buckets)  # type: ignore[attr-defined]
    wanted = Wanted(made.fabric.plan(), PRESETS["10g"], made.system, first)  # type: ignore[arg-type]
    group = make_group("xdp-ring", wanted)
    one, other = (group.all_reduce(size, 0.0, NO_VALUES).seconds for size in (first, second))
    # Of the work, 3,500 of 4,500 parts are done when the first bucket is complete.
    begins = 0.002 * 3500 / 4500 if overlap else 0.002
    step = 0.001 + max(0.002, begins + one) + other
    assert value(found, "epoch_time") == pytest.approx(2 * step)
    assert value(found, "communication_time") == pytest.approx(2 * (one + other))
    assert value(found, "exposed_time") == pytest.approx(2 * (step - 0.003))
    assert value(found, "straggler_time") == 0


def test_computing_hides_buckets_that_are_complete_early(tmp_path: Path) -> None:
    keys = {"model": "resnet50", "lanes": "int16", "epochs": 1, "steps": 1, "compute": 10.0}
    beside, after = (
        run(scenario(overlap=overlap, **keys), tmp_path / str(overlap)) for overlap in (True, False)
    )
    assert value(after, "exposed_time") == pytest.approx(value(after, "communication_time"))
    assert value(beside, "exposed_time") < 0.5 * value(after, "exposed_time")


def test_segments_are_reduced_one_after_the_other() -> None:
    for faults in (NO_RULES, compile_rules(rules_of([parse_fault("drop p=0")]), PLAN)):
        times = []
        for size, segment in ((20_000, 0), (60_000, 80_000)):
            options = CollectiveOptions(segment=segment)
            group = make_group("xdp-ring", Wanted(PLAN, PRESETS["10g"], options, size, faults))
            done = group.all_reduce(size, 0.0, lambda rank, size=size: np.ones(size, np.float32))
            again = group.all_reduce(size, 1.0, lambda rank, size=size: np.ones(size, np.float32))
            times.append(again.seconds)
            assert (again.sent[:, 0] > 0).all()
            assert done.sent.shape == (4, 3)
        assert times[1] == pytest.approx(3 * times[0], rel=0.01)


def test_results_have_the_schema_of_an_emulated_run(tmp_path: Path) -> None:
    made = scenario(backends=["xdp-ring", "tcp-ring"])
    found = run(made, tmp_path / "run")
    assert set(found.frame["engine"]) == {"simulation"}
    assert found.manifest["status"] == "complete"
    assert found.manifest["hardware"]["name"] == "10g"
    assert found.manifest["parameters"] == SMALL.parameters
    # 2 backends, 2 epochs, 4 ranks; each rank sends 2 * 3/4 of its lanes twice.
    assert len(found.metric("epoch_time")) == len(found.metric("wire_bytes")) == 16
    assert value(found, "wire_bytes") > 2 * 1.5 * 4 * SMALL.parameters
    assert value(found, "steps") == 2
    html = make_report(found.path)[0].read_text()
    assert "Simulated, hardware 10g" in html
    assert "holds their noise" not in html
    assert "machine was busy" not in html
    assert (found.path / "figures" / "epoch_time.png").exists()
    assert origin(found.frame, "Linux 6.1").startswith("simulated · 4 hosts · hardware 10g · seed")
    assert set(load(found.path)["engine"]) == {"simulation"}


@pytest.mark.deep
def test_faults_are_those_of_the_seed(tmp_path: Path) -> None:
    made = scenario(2, ["drop p=0.02 kind=reduce,result"], lanes="int16", timeout=30.0)
    one, same = (run(made, tmp_path / name) for name in ("one", "same"))
    pd.testing.assert_frame_equal(one.frame, same.frame)
    logs = [pd.read_parquet(each.path / "faults.parquet") for each in (one, same)]
    pd.testing.assert_frame_equal(*logs)
    assert len(logs[0]) == one.metric("faults_fired")["value"].sum() > 0
    assert set(logs[0]["action"]) == {"drop"}
    frames = [
        Counter(rows[["sender", "kind", "chunk", "hop"]].itertuples(index=False))
        for _, rows in logs[0].groupby("epoch")
    ]
    assert frames[0] != frames[1]
    assert one.metric("retransmissions")["value"].sum() >= len(logs[0])


def test_a_fabric_may_be_larger_than_one_that_is_built(tmp_path: Path) -> None:
    found = run(scenario(hosts=128, epochs=1, steps=1), tmp_path / "run")
    assert found.metric("epoch_time")["rank"].nunique() == 128


def test_what_cannot_be_simulated_is_refused(tmp_path: Path) -> None:
    table = {
        "scenario": ENGINE,
        "fabric": {"hosts": 40},
        "dnn": {"model": NETWORK, "backends": ["xdp-ring", "gloo"]},
        "telemetry": {"enabled": True},
        "faults": ["drop p=0.1", "kill host=h2 at=1s"],
    }
    with pytest.raises(SpecError) as caught:
        check(parse_scenario(table))
    assert str(caught.value).splitlines() == [
        "dnn.backends: gloo cannot be simulated: must be xdp-ring or tcp-ring",
        "faults[1]: 'kill host=h2 at=1s' cannot be simulated: must be a rule on packets with"
        " backend = engine",
        "fabric.hosts = 40: must be at most 32 with faults, as many as a frame's identity tells"
        " apart",
        "telemetry.enabled = true: must be false, since nothing runs that could be sampled",
    ]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (
            {"scenario": ENGINE, "dataset": {"name": "synthetic"}},
            'scenario.engine = "simulation": workload ddp cannot be simulated: must be emulation,'
            " or the workload dnn",
        ),
        (
            {"scenario": ENGINE, "dnn": {"model": NETWORK, "backends": ["xdp-ring"]}}
            | {"simulation": {"hardware": "40g"}},
            "simulation.hardware: '40g': must be 10g, 25g, 100g, or a file of testbed calibrate",
        ),
        (
            {"scenario": ENGINE, "dnn": {"model": NETWORK, "backends": ["xdp-ring"]}}
            | {"fabric": {"hosts": 1}},
            "fabric.hosts = 1: must be at least 2 to be simulated",
        ),
    ],
)
def test_bad_input_is_one_line(table: dict[str, object], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(parse_scenario(table))
    assert str(caught.value) == text


def test_only_a_simulated_fabric_may_be_large() -> None:
    fabric = {"hosts": 9000}
    for engine, most in (("emulation", 32), ("simulation", 8192)):
        named = {"name": "s", "engine": engine}
        with pytest.raises(SpecError) as caught:
            parse_scenario({"scenario": named, "fabric": fabric, "dnn": {}})
        assert str(caught.value) == f"scenario: fabric.hosts = 9000: must be 1 to {most}"


def test_memory_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "free_memory", lambda: 1 << 24)
    with pytest.raises(SpecError, match=r"^fabric.hosts = 4, dnn.model = .*: needs about"):
        check(scenario(faults=["drop p=0.1"]))
    check(scenario())


def test_hardware_is_beside_the_scenario(tmp_path: Path) -> None:
    made = parse_scenario({"scenario": ENGINE, "simulation": {"hardware": "costs.json"}, "dnn": {}})
    assert made.located(tmp_path).simulation.named == str(tmp_path / "costs.json")


def test_the_command_needs_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path, out = tmp_path / "s.toml", tmp_path / "out"
    path.write_text(f'[scenario]\nname = "s"\n[dnn]\nmodel = "{NETWORK}"\nepochs = 1\nsteps = 1\n')
    words = ["run", str(path), "--out", str(out), "--set", "scenario.engine=simulation"]
    backends = ["--set", 'dnn.backends=["xdp-ring", "tcp-ring"]']
    done = CliRunner().invoke(app, [*words, *backends])
    assert done.exit_code == 0, done.output
    assert "xdp-ring" in done.output
    assert f"next: .venv/bin/testbed run {path} --set scenario.engine=simulation" in done.output


@pytest.mark.net
@pytest.mark.deep
def test_both_engines_lose_and_repeat_the_same_frames_of_a_scenario(tmp_path: Path) -> None:
    tables = {
        "fabric": {"hosts": 4},
        "dnn": {
            "model": NETWORK,
            "backends": ["xdp-ring"],
            "compute": 0.0,
            "epochs": 2,
            "steps": 1,
            "lanes": "int16",
            "window": 1,
            "reproducible": True,
        },
        "faults": ["drop p=0.02 kind=reduce,result", "drop p=0.2 kind=nack"],
    }
    lost = {}
    for engine in ("emulation", "simulation"):
        made = parse_scenario({"scenario": {"name": "s", "engine": engine}, **tables})
        found = run(made, tmp_path / engine)
        log = pd.read_parquet(found.path / "faults.parquet")
        data = log.loc[log["kind"].isin(["reduce", "result"])]
        lost[engine] = Counter(
            data[
                ["epoch", "sender", "receiver", "kind", "seq", "chunk", "hop", "attempt"]
            ].itertuples(index=False, name=None)
        )
    assert sum(lost["simulation"].values()) > 50
    assert lost["simulation"] == lost["emulation"]
