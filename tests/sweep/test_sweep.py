"""Sweeps: the grid, going on after any end, failing cells, and bad input."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.loading import load
from testbed.core.errors import SpecError
from testbed.results import Table
from testbed.sweep import Cell, Ledger, Sweep, Trial, load_sweep, play
from testbed.sweep.grid import flatten, make_cells, order
from testbed.sweep.ledger import Done, identity
from testbed.sweep.player import clock, facts_of, gather, remaining
from testbed.sweep.scenario_trials import ScenarioTrials
from tests.support.command import call_testbed, run_testbed
from tests.support.sweep import counting
from tests.support.sweep.counting import Counting

SCENARIOS = Path(__file__).parents[2] / "scenarios"
HEAD = '[sweep]\nname = "s"\n'
SWEEP = """
[sweep]
name = "counts"
scenario = "none.toml"
trials = 2

[grid]
size = [1, 2, 3]
way = ["up", "down"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "counts.toml"
    place.write_text(SWEEP)
    return place


def run(sweep: Sweep, player: Counting, out: Path, retry: bool = False) -> Ledger:
    with Ledger(out, facts_of(sweep, player)) as ledger:
        play(sweep, player, ledger, lambda text: None, retry)
        gather(sweep, player, ledger)
    return ledger


def test_cells_are_all_combinations() -> None:
    cells = make_cells({"a": [1, 2], "b": ["x", "y", "z"]})
    assert [tuple(cell.values.values()) for cell in cells] == [
        (1, "x"),
        (1, "y"),
        (1, "z"),
        (2, "x"),
        (2, "y"),
        (2, "z"),
    ]
    assert str(cells[5]) == 'a = 2, b = "z"'


def test_nested_tables_and_quoted_keys_are_the_same() -> None:
    given = {"fabric": {"hosts": [2]}, "dnn.compute": [0.1], "faults": [[], ["drop p=0.1"]]}
    assert dict(flatten(given)) == {
        "fabric.hosts": [2],
        "dnn.compute": [0.1],
        "faults": [[], ["drop p=0.1"]],
    }


def test_variants_are_a_key_of_the_grid(tmp_path: Path) -> None:
    place = tmp_path / "s.toml"
    place.write_text(
        f'{HEAD}bench = "allreduce"\n[common]\nwindow = 8\nmtu = 1500\n[grid]\nhosts = [2, 4]\n'
        "[variants]\nplain = {}\njumbo = { mtu = 9000 }\n"
    )
    sweep = load_sweep(place)
    assert [dict(cell.values) for cell in sweep.cells] == [
        {"hosts": hosts, "variant": name} for hosts in (2, 4) for name in ("plain", "jumbo")
    ]
    assert [sweep.settings(cell)["mtu"] for cell in sweep.cells] == [1500, 9000, 1500, 9000]
    assert "variant" not in sweep.settings(sweep.cells[0])
    facts = facts_of(sweep, Counting(sweep, tmp_path / "log"))
    place.write_text(place.read_text().replace("9000", "3000"))
    other = facts_of(load_sweep(place), Counting(sweep, tmp_path / "log"))
    assert identity(facts) != identity(other)


def test_order_is_random_and_repeatable() -> None:
    cells = make_cells({"a": list(range(20))})
    one, same, other = (order(cells, 3, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(trial.name for trial in one) == sorted(trial.name for trial in other)
    assert len({trial.name for trial in one}) == 60


def test_each_trial_is_run_once(path: Path, tmp_path: Path) -> None:
    sweep = load_sweep(path)
    player = Counting(sweep, tmp_path / "log")
    run(sweep, player, tmp_path / "out")
    assert len(player.begun) == len(set(player.begun)) == 12
    run(sweep, player, tmp_path / "out")
    assert len(player.begun) == 12
    frame = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert list(frame.columns) == ["trial", "value", "cell", "size", "way"]
    assert len(frame) == 12
    assert (frame["value"] == 10 * frame["size"]).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_it_goes_on_after_a_signal(path: Path, tmp_path: Path, error) -> None:
    def stop(begun: int) -> None:
        if begun == 5:
            raise error

    sweep, log, out = load_sweep(path), tmp_path / "log", tmp_path / "out"
    with pytest.raises(error):
        run(sweep, Counting(sweep, log, stops=stop), out)
    player = Counting(sweep, log)
    torn = player.begun[4]
    run(sweep, player, out)
    assert len(player.begun) == 13
    assert [name for name in set(player.begun) if player.begun.count(name) == 2] == [torn]


def test_it_goes_on_after_a_kill(path: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = [sys.executable, "-m", counting.__name__, str(path), str(out), str(log)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    sweep = load_sweep(path)
    player = Counting(sweep, log)
    before = player.begun
    assert (out / "trials" / before[2] / "half").exists()
    run(sweep, player, out)
    assert len(player.begun) == 13
    assert player.begun[3:].count(before[2]) == 1
    assert not set(before[:2]) & set(player.begun[3:])


def test_failing_cells_are_recorded_and_others_run(path: Path, tmp_path: Path) -> None:
    sweep, out = load_sweep(path), tmp_path / "out"
    player = Counting(sweep, tmp_path / "log", fails=(2,))
    run(sweep, player, out)
    assert len(player.begun) == 12
    failed = json.loads((out / "failed.json").read_text())
    assert [each["cell"]["size"] for each in failed] == [2] * 4
    assert {each["error"] for each in failed} == {"no answer"}
    assert set(pd.read_parquet(out / "results.parquet")["size"]) == {1, 3}
    run(sweep, player, out)
    assert len(player.begun) == 12
    player.fails = ()
    run(sweep, player, out, retry=True)
    assert len(player.begun) == 16
    assert json.loads((out / "failed.json").read_text()) == []


def test_more_trials_may_be_added(path: Path, tmp_path: Path) -> None:
    sweep, log = load_sweep(path), tmp_path / "log"
    run(sweep, Counting(sweep, log), tmp_path / "out")
    path.write_text(SWEEP.replace("trials = 2", "trials = 3"))
    sweep = load_sweep(path)
    player = Counting(sweep, log)
    run(sweep, player, tmp_path / "out")
    assert len(player.begun) == len(set(player.begun)) == 18


def test_a_folder_has_one_sweep(path: Path, tmp_path: Path) -> None:
    sweep, out = load_sweep(path), tmp_path / "out"
    player = Counting(sweep, tmp_path / "log")
    with (
        Ledger(out, facts_of(sweep, player)),
        pytest.raises(SpecError, match="another sweep is at work there"),
        Ledger(out, facts_of(sweep, player)),
    ):
        pass
    path.write_text(SWEEP.replace("[1, 2, 3]", "[1, 2]"))
    other = load_sweep(path)
    with pytest.raises(SpecError) as caught:
        Ledger.read(out, facts_of(other, player))
    text = f"--out {out}: holds another sweep, counts of {path}: choose another folder"
    assert str(caught.value) == text
    (out / "notes.txt").touch()
    (out / "sweep.json").unlink()
    with pytest.raises(SpecError, match=r"holds files that are no sweep's: choose another folder$"):
        Ledger.read(out, facts_of(sweep, player))


def test_the_time_left_is_by_what_has_been_timed(path: Path, tmp_path: Path) -> None:
    sweep = load_sweep(path)
    player = Counting(sweep, tmp_path / "log")
    one, two, three = (Cell(number, {"size": number}) for number in (1, 2, 3))
    pending = [Trial(one, 1), Trial(three, 0)]
    assert remaining(player, pending, {}) == 1 + 3
    assert remaining(player, pending, {"0001-0": Done(10.0)}) == 10 + 30
    assert remaining(player, [Trial(three, 0)], {"0001-0": Done(10.0)}) == 10
    assert remaining(player, [], {"0001-0": Done(10.0)}) == 0
    assert remaining(player, [Trial(two, 0)], {"0002-1": Done(1.0, "failed")}) == 2
    assert [clock(value) for value in (50, 600, 9000)] == [
        "about 50 s",
        "about 10 min",
        "about 2.5 h",
    ]


def test_trials_have_their_own_seeds(tmp_path: Path) -> None:
    place = tmp_path / "s.toml"
    scenario = SCENARIOS / "ddp_synthetic.toml"
    place.write_text(
        f'[sweep]\nname = "s"\nscenario = "{scenario}"\n'
        '[common]\ntraining.epochs = 1\n[grid]\nfaults = [[], ["drop p=0.01"]]\n'
    )
    sweep = load_sweep(place)
    player = ScenarioTrials(sweep, [])
    made = player.scenario(sweep.cells[1], 2)
    assert (made.scenario.seed, made.training.epochs, len(made.faults)) == (3, 1, 1)
    columns = Table(made.model_dump(mode="json")).parameters
    assert (columns["scenario.seed"], columns["faults"]) == (3, '["drop p=0.01"]')


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            f'{HEAD}scenario = "S"\n[grid]\nfabric.hots = [2]',
            "{path}: fabric.hots = 2: unknown key fabric.hots: must be ",
        ),
        (
            f'{HEAD}bench = "allreduce"\n[grid]\nhots = [2]',
            "{path}: unknown key grid.hots: must be hosts, ",
        ),
        (
            f'{HEAD}bench = "allreduce"\n[grid]\nhosts = ["two"]',
            "'two': must be a whole number",
        ),
        (
            f'{HEAD}bench = "reduce"\n[grid]\nhosts = [2]',
            '{path}: sweep.bench = "reduce": must be aggregate, allgather, allreduce',
        ),
        (
            f'{HEAD}scenario = "S"\n[grid]',
            "{path}: grid: must have one or more keys, such as fabric.hosts = [2, 4]",
        ),
        (
            f'{HEAD}scenario = "S"\n',
            "{path}: grid: must have one or more keys, such as fabric.hosts",
        ),
        (
            f'{HEAD}bench = "allreduce"\n[grid]\nmtu = [1500]\n[variants.jumbo]\nmtu = 9000',
            "{path}: variants.jumbo.mtu: is in the grid as well: leave one of them out",
        ),
        (
            f'{HEAD}bench = "allreduce"\n[grid]\nvariant = [1]\n[variants.jumbo]\nmtu = 9000',
            "{path}: grid.variant: is the key of [variants]: leave it out",
        ),
        (
            f'{HEAD}bench = "allreduce"\n[variants.jumbo]\nmtus = 9000',
            "{path}: unknown key variants.jumbo.mtus: must be ",
        ),
        (
            f'{HEAD}scenario = "S"\n[grid]\nfabric.hosts = []',
            "{path}: grid.fabric.hosts: must be an array of one or more values",
        ),
        (
            f'{HEAD}scenario = "S"\n[grid]\nfabric.hosts = [2, 500]',
            "{path}: fabric.hosts = 500: fabric.hosts = 500: must be ",
        ),
        (f"{HEAD}[grid]\nfabric.hosts = [2]", "{path}: sweep.scenario: must be there, or bench"),
        (
            f'{HEAD}scenario = "S"\n[common]\nfabric.hosts = 2\n[grid]\nfabric.hosts = [2]',
            "{path}: common.fabric.hosts: is in the grid as well: leave one of them out",
        ),
        (
            f'{HEAD}scenario = "none.toml"\n[grid]\nfabric.hosts = [2]',
            "none.toml: cannot be read: No such file or directory",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, text: str, error: str) -> None:
    place = tmp_path / "s.toml"
    place.write_text(text.replace('"S"', f'"{SCENARIOS / "ddp_synthetic.toml"}"'))
    done = call_testbed("sweep", str(place), "--dry-run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert error.format(path=place) in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("place", sorted((SCENARIOS / "sweeps").glob("*.toml")), ids=str)
def test_our_own_sweeps_are_valid(place: Path) -> None:
    done = call_testbed("sweep", str(place), "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["trials"] == len(plan["cells"]) * plan["trials_a_cell"] == plan["pending"]
    assert plan["guessed"]


@pytest.mark.net
@pytest.mark.usefixtures("cache")
@pytest.mark.deep
def test_a_sweep_of_a_scenario(tmp_path: Path) -> None:
    place = tmp_path / "s.toml"
    place.write_text(
        f'[sweep]\nname = "s"\nscenario = "{SCENARIOS / "dnn_resnet50.toml"}"\n'
        '[common]\ndnn.model = "tests.support.workloads.networks:SMALL"\ndnn.epochs = 1\n'
        'dnn.backends = ["tcp-ring"]\ndnn.compute = 0\nfabric.switch = "bridge"\n'
        "[grid]\nfabric.hosts = [2, 3]\n"
    )
    command = ["sweep", str(place), "--out", str(tmp_path / "out"), "--json"]
    done = run_testbed(*command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == 2
    frame = pd.read_parquet(tmp_path / "out" / "results.parquet")
    ranks = frame[frame["metric"] == "epoch_time"].groupby("fabric.hosts")["rank"].nunique()
    assert ranks.to_dict() == {2: 2, 3: 3}
    stamp = (tmp_path / "out" / "trials" / "0000-0" / "trial.json").stat().st_mtime_ns
    assert run_testbed(*command).returncode == 0
    assert (tmp_path / "out" / "trials" / "0000-0" / "trial.json").stat().st_mtime_ns == stamp


@pytest.mark.net
@pytest.mark.alone
def test_a_sweep_of_a_bench_with_telemetry(tmp_path: Path) -> None:
    """Samples and counts are lists that no table holds, and stay in the trials' own files."""
    place = tmp_path / "s.toml"
    place.write_text(
        '[sweep]\nname = "s"\nbench = "allreduce"\n[common]\nbackends = ["tcp-ring"]\n'
        'telemetry = true\nmin_bytes = "64K"\nmax_bytes = "64K"\niters = 40\n[grid]\nhosts = [2]\n'
    )
    done = run_testbed("sweep", str(place), "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    frame = pd.read_parquet(tmp_path / "out" / "results.parquet")
    (row,) = json.loads((tmp_path / "out" / "trials" / "0000-0" / "bench.json").read_text())["rows"]
    if "telemetry" not in row:
        pytest.skip("BCC cannot compile here")
    assert frame["telemetry.overhead_pairs"].tolist() == [20]
    assert row["telemetry"]["samples"]
    assert row["telemetry"]["counts"]
    metrics = set(load(tmp_path / "out")["metric"])
    assert {"network_share", "unclassified_share", "telemetry_overhead"} <= metrics
