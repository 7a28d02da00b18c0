"""The paper set: its declarations, and what is written of recorded measurements."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import load
from analysis.paper import draw_part, index, load_parts, progress
from testbed.core.errors import SpecError
from testbed.sweep import load_sweep
from tests.support.command import call_testbed

PAPER = Path(__file__).parents[2] / "scenarios" / "paper"
EXAMPLES = Path(__file__).parents[2] / "analysis" / "examples"
PARTS = load_parts(PAPER / "parts.toml")

INSIDE = {"size_bytes", "loss", "time"}
"""What benches vary by themselves."""


@pytest.fixture
def broadcasts(tmp_path: Path) -> Path:
    """The folder of the sweep `receivers` with two of its trials, one of which has failed."""
    sweep = load_sweep(PAPER / "receivers.toml")
    place = tmp_path / "receivers"
    plan = {"scenario": None, "bench": "broadcast", "grid": sweep.grid}
    ends = {"0000-0": None, "0001-0": "no answer", "0002-0": None}
    for name, error in ends.items():
        folder = place / "trials" / name
        folder.mkdir(parents=True)
        (folder / "trial.json").write_text(json.dumps({"seconds": 1.0, "error": error}))
        if error is None:
            receivers = int(sweep.cells[int(name[:4])].values["receivers"])
            rows = [row_of(*each, receivers) for each in (("pinch", 20.0), ("tcp-push", 10.0))]
            content = {
                "environment": {"kernel": "Linux 6.1", "git_commit": "0123456789"},
                "rows": rows,
            }
            (folder / "bench.json").write_text(json.dumps(content))
    (place / "sweep.json").write_text(json.dumps(plan))
    return place


def row_of(exchange: str, us: float, receivers: int) -> dict[str, Any]:
    return {
        "exchange": exchange,
        "receivers": receivers,
        "size_bytes": 1024,
        "time_us": {"min": us / 2, "median": us * receivers, "p99": us * 9},
        "time_percentiles_us": [us * receivers * (50 + share) / 100 for share in range(101)],
        "goodput_gbps": 1.0,
        "seed": 1,
    }


@pytest.mark.parametrize("name", PARTS)
def test_each_part_shows_each_key_of_its_grids(name: str) -> None:
    """A figure that leaves a key out would mix its cells."""
    part = PARTS[name]
    for each in part.figures:
        sweep = load_sweep(PAPER / f"{each.sweep or part.sweeps[0]}.toml")
        keys = {key for key, values in sweep.grid.items() if key != "variant" and len(values) > 1}
        for values in sweep.variants.values():
            keys |= {key for key in values if key.partition(".")[2] in ("hosts", "hidden")}
        assert keys <= {each.by, each.series, *each.where, *INSIDE}, each.name
        assert (each.chart in ("trend", "speedup")) == (each.by is not None)


@pytest.mark.parametrize("place", sorted(PAPER.glob("[!p]*.toml")), ids=lambda place: place.stem)
def test_sweeps_of_parts_are_valid_and_used(place: Path) -> None:
    assert load_sweep(place).table.name == place.stem
    assert place.stem in {each for part in PARTS.values() for each in part.sweeps}


def test_all_parts_together_take_less_than_an_hour(tmp_path: Path) -> None:
    done = call_testbed("paper", "--dry-run", "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == list(PARTS)
    left = done.stdout.splitlines()[-1]
    assert left.startswith("time left: about ")
    assert left.endswith(" min")
    assert int(left.split()[-2]) < 60


def test_a_part_is_drawn_from_what_has_been_measured(broadcasts: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    out.mkdir()
    done = [progress(broadcasts, 4)]
    assert str(done[0]) == "2 of 4 cells, 2 trials, 1 failed"
    text = draw_part("pinch-2", PARTS["pinch-2"], {"receivers": broadcasts}, done, out).read_text()
    assert "- 1 KiB by receivers (time median, µs): pinch 20 to 140, tcp-push 10 to 70." in text
    assert "| 50 % at most | 140 | 70 |" in text
    assert "emulated · 2, 8 hosts · Linux 6.1 · seed 1 · 1 trial" in text
    assert "2 of 4 cells, 2 trials, 1 failed (commit 0123456)" in text
    assert "  - trial 0001-0: no answer" in text
    points = pd.read_csv(out / "pinch-2-receivers.csv").set_index(["receivers", "backend"])
    assert points.loc[(7, "pinch"), "median"] == pytest.approx(140)
    assert (out / "pinch-2-receivers.png").stat().st_size > 1000
    summary = index(PARTS, out).read_text()
    assert (
        "| [pinch-2](pinch-2.md) | Latency of a broadcast, by receivers | 2 of 4 cells" in summary
    )
    assert "| erar-1 | Share of the kernel's network stack" in summary
    assert summary.count("not run yet") == len(PARTS) - 1


def test_epochs_of_a_recorded_run_are_drawn(tmp_path: Path) -> None:
    """The figures of PINCH's epochs, of the recorded run that notebooks show."""
    trial = tmp_path / "epochs" / "trials" / "0001-0"
    shutil.copytree(EXAMPLES / "gnn", trial)
    (trial / "trial.json").write_text('{"seconds": 1.0, "error": null}')
    plan = {"scenario": "gnn", "grid": {"variant": ["hosts-2", "hosts-4"]}}
    (tmp_path / "epochs" / "sweep.json").write_text(json.dumps(plan))
    runs = load(tmp_path / "epochs")
    assert set(runs["variant"]) == {"hosts-4"}
    shown = {key: runs[key].iloc[0] for key in ("fabric.hosts", "model.hidden")}
    for name in ("pinch-1", "pinch-5"):
        figures = [
            each.model_copy(update={"where": {key: shown[key] for key in each.where}})
            for each in PARTS[name].figures
        ]
        part = PARTS[name].model_copy(update={"figures": tuple(figures)})
        done = [progress(tmp_path / "epochs", 6)]
        text = draw_part(name, part, {"epochs": tmp_path / "epochs"}, done, tmp_path).read_text()
        assert text.count("![") == len(figures)
        assert "not shown" not in text


def test_what_has_not_been_measured_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^pinch-2: nothing has been measured yet: "):
        draw_part("pinch-2", PARTS["pinch-2"], {"receivers": tmp_path / "none"}, [], tmp_path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            '[a]\nfigures = [{ chart = "pie" }]',
            r"a: figures\[0\]\.chart = \"pie\": must be trend, ",
        ),
        (
            '[a]\ntitle = "x"\nsweeps = ["s"]\npaper = ""\nlimits = ""\n[[a.figures]]\nname = "f"\n'
            'title = ""\nchart = "trend"\nmetric = "m"\nsweep = "t"',
            r"a\.figures: sweep = t: must be s$",
        ),
    ],
)
def test_wrong_declarations_are_named(tmp_path: Path, text: str, error: str) -> None:
    place = tmp_path / "parts.toml"
    place.write_text(text)
    with pytest.raises(SpecError, match=error):
        load_parts(place)


def test_an_unknown_part_is_one_line() -> None:
    done = call_testbed("paper", "erar-9", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: part erar-9: must be erar-1, ")
    assert len(done.stderr.splitlines()) == 1
