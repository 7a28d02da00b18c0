"""Sweeps by Dask: the same results as one after another, workers that die, and resources."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.core.errors import SpecError
from testbed.sweep import Ledger, Place, Player, Sweep, load_sweep, play
from testbed.sweep.cluster import Cluster
from testbed.sweep.player import facts_of, gather
from testbed.sweep.scenario_trials import ScenarioTrials
from tests.support.sweep.workers import Watched, workers

SWEEP = """
[sweep]
name = "watched"
scenario = "none.toml"
trials = 2

[grid]
size = [1, 2, 3]
way = ["up", "down"]
"""
SCENARIO = """
[scenario]
name = "small"
engine = "{engine}"
[dnn]
model = "tests.support.workloads.networks:SMALL"
backends = ["xdp-ring", "tcp-ring"]
compute = 0.001
epochs = 1
steps = 1
"""
SMALL = """
[sweep]
name = "small"
scenario = "small.toml"
seed = {seed}
[grid]
fabric.hosts = [2, 3]
faults = [[], ["drop p=0.02"]]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as made:
        yield made


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    place = tmp_path / "watched.toml"
    place.write_text(SWEEP)
    return load_sweep(place)


def run(sweep: Sweep, player: Player, out: Path, place: Place | None = None) -> Ledger:
    with Ledger(out, facts_of(sweep, player)) as ledger:
        play(sweep, player, ledger, lambda text: None, place=place)
        gather(sweep, player, ledger)
    return ledger


@pytest.mark.deep
def test_workers_have_the_results_of_one_process(tmp_path: Path, cluster: Cluster) -> None:
    (tmp_path / "small.toml").write_text(SCENARIO.format(engine="simulation"))
    frames = []
    for seed, place in ((1, None), (2, cluster)):  # of the order of the trials
        path = tmp_path / f"small-{seed}.toml"
        path.write_text(SMALL.format(seed=seed))
        loaded, out = load_sweep(path), tmp_path / f"out-{seed}"
        ledger = run(loaded, ScenarioTrials(loaded, []), out, place)
        assert [done.error for done in ledger.done.values()] == [None] * 4
        frames.append(pd.read_parquet(out / "results.parquet"))
        assert (out / "trials" / "0001-0" / "faults.parquet").exists()
    pd.testing.assert_frame_equal(*frames)
    assert len(set(frames[0]["cell"])) == 4


def test_a_killed_worker_loses_nothing(tmp_path: Path, sweep: Sweep, cluster: Cluster) -> None:
    player = Watched(tmp_path / "log", dies={2: 1})
    ledger = run(sweep, player, tmp_path / "out", cluster)
    assert [done.error for done in ledger.done.values()] == [None] * 12
    assert len({each["process"] for each in player.notes()}) > 2
    attempts = Counter(each.name.rpartition("-")[0] for each in player.log.glob("*-*-*"))
    # Trials whose size is 2, of cells 2 and 3, have killed a worker once each.
    assert {name for name, count in attempts.items() if count > 1} >= {"0002-0", "0003-1"}
    frame = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert (frame["value"] == 10 * frame["size"]).all()
    assert len(frame) == 12


@pytest.mark.deep
def test_emulated_trials_are_for_workers_with_the_resource(tmp_path: Path, sweep: Sweep) -> None:
    player = Watched(tmp_path / "log", emulated=["up"])
    with workers({}, {"testbed": 1}) as address, Cluster(scheduler=address) as place:
        assert place.at_once == 2
        run(sweep, player, tmp_path / "out", place)
    by_way: dict[str, list[dict[str, Any]]] = {"up": [], "down": []}
    for note in sorted(player.notes(), key=lambda note: note["begun"]):
        by_way[note["way"]].append(note)
    assert len(by_way["up"]) == len(by_way["down"]) == 6
    assert len({note["process"] for note in by_way["up"]}) == 1
    ends = [note["ended"] for note in by_way["up"][:-1]]
    assert all(end <= note["begun"] for end, note in zip(ends, by_way["up"][1:], strict=True))
    assert len({note["process"] for note in player.notes()}) == 2


def test_emulated_trials_need_such_a_worker(tmp_path: Path, sweep: Sweep) -> None:
    player = Watched(tmp_path / "log", emulated=["up"])
    with (
        workers({}) as address,
        Cluster(scheduler=address) as place,
        pytest.raises(SpecError, match=r"no worker has the resource testbed, which emulated"),
    ):
        run(sweep, player, tmp_path / "out", place)
    assert not player.notes()


@pytest.mark.net
@pytest.mark.deep
@pytest.mark.usefixtures("cache")
def test_an_emulated_sweep_runs_on_a_worker(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SCENARIO.format(engine="emulation"))
    path, out = tmp_path / "sweep.toml", tmp_path / "out"
    one = SMALL.format(seed=1).replace('[[], ["drop p=0.02"]]', "[[]]").replace("[2, 3]", "[2]")
    path.write_text(one)
    with workers({}, {"testbed": 1}) as address:
        words = ["sweep", str(path), "--out", str(out), "--scheduler", address]
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    frame = pd.read_parquet(out / "results.parquet")
    assert set(frame["engine"]) == {"emulation"}
    assert set(frame["cell"]) == {0}


@pytest.mark.deep
def test_trials_that_always_kill_their_worker_fail(tmp_path: Path, cluster: Cluster) -> None:
    path = tmp_path / "one.toml"
    path.write_text(SWEEP.replace("[1, 2, 3]", "[7]").replace("trials = 2", "trials = 1"))
    sweep = load_sweep(path)
    ledger = run(sweep, Watched(tmp_path / "log", dies={7: 99}), tmp_path / "out", cluster)
    for done in ledger.done.values():
        assert done.error is not None
        assert done.error.startswith("its worker died: ")


@pytest.mark.parametrize(
    ("engine", "words", "text"),
    [
        (
            "simulation",
            ["--workers", "2", "--scheduler", "tcp://127.0.0.1:1"],
            "--workers: cannot be combined with --scheduler, which has its own",
        ),
        ("simulation", ["--workers", "300"], "--workers 300: must be 0 to 256"),
        (
            "emulation",
            ["--workers", "2"],
            "--workers 2: must be left out if trials are emulated, because these share this"
            " machine's kernel; --scheduler gives them to other machines",
        ),
        (
            "simulation",
            ["--scheduler", "tcp://127.0.0.1:1"],
            "--scheduler tcp://127.0.0.1:1: must be the address of a Dask scheduler, such as"
            " tcp://127.0.0.1:8786: ",
        ),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, engine: str, words: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.sweep.cluster._PATIENCE", 1)
    (tmp_path / "small.toml").write_text(SCENARIO.format(engine=engine))
    path = tmp_path / "sweep.toml"
    path.write_text(SMALL.format(seed=1))
    done = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "out"), *words])
    assert isinstance(done.exception, SpecError)
    assert str(done.exception).startswith(text)
    assert "\n" not in str(done.exception)
