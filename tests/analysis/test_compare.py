"""Runs side by side, and reports of runs that ended early."""

import json
import shutil
from pathlib import Path

import pytest

from analysis import breakdown, load
from analysis.compare import compare, differences
from analysis.report import make_report
from analysis.style import number
from testbed.core.errors import SpecError, StorageError
from testbed.results import RunFolder, load_run


@pytest.fixture
def two(make_run, tmp_path: Path) -> list[Path]:
    path = make_run()
    other = tmp_path / "other"
    shutil.copytree(path, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["scenario"]["fabric"]["mtu"] = 9000
    manifest["kernel"] = "Linux 6.2"
    (other / "manifest.json").write_text(json.dumps(manifest))
    return [path, other]


def test_differences_are_those_of_scenario_and_machine(two: list[Path]) -> None:
    found = differences([load_run(path) for path in two])
    assert found == {"fabric.mtu": [1500, 9000], "kernel": ["Linux 6.1", "Linux 6.2"]}


def test_a_comparison_answers_and_says_what_differs(two: list[Path], tmp_path: Path) -> None:
    html = compare(two, tmp_path / "c.html").read_text()
    assert html.index("The fastest epoch") < html.index("What differs") < html.index("fabric.mtu")
    assert "medians of 3. Not to be told apart: run, other." in html
    assert "<td>1500</td><td>9000</td>" in html
    assert html.count("data:image/png;base64,") == 1
    assert "<td>epoch, s</td><td>1.2</td><td>1.4</td><td>1.8</td>" in html


@pytest.fixture
def sweep(make_run, tmp_path: Path) -> Path:
    """Two runs, of networks of different sizes, and a trial that has failed."""
    folder, path = tmp_path / "sweep", make_run()
    grid = {"model.hidden": [16, 64]}
    for nth, value in enumerate(grid["model.hidden"]):
        trial = folder / "trials" / f"{nth:04d}-0"
        shutil.copytree(path, trial)
        manifest = json.loads((trial / "manifest.json").read_text())
        manifest["scenario"]["model"]["hidden"] = value
        manifest["load_average"] = 9.0 * nth
        (trial / "manifest.json").write_text(json.dumps(manifest))
        (trial / "trial.json").write_text(json.dumps({"seconds": 1.0, "error": None}))
    failed = folder / "trials" / "0002-0"
    failed.mkdir()
    (failed / "manifest.json").write_text("{}")
    (failed / "trial.json").write_text(json.dumps({"seconds": 1.0, "error": "no answer"}))
    grid["model.hidden"].append(128)
    plan = {"scenario": "s.toml", "bench": None, "trials": 1, "grid": grid}
    (folder / "sweep.json").write_text(json.dumps(plan))
    return folder


def test_runs_of_a_sweep_are_named_and_unlike_work_is_not_compared(
    sweep: Path, tmp_path: Path
) -> None:
    html = compare([sweep], tmp_path / "c.html").read_text()
    assert (
        "These runs do different work (model.hidden differs), so that only backends of one run are"
        " compared." in html
    )
    for hidden in (16, 64):
        assert f"model.hidden = {hidden}: xdp-ring was fastest: its median epoch took 1.2 s" in html
    assert "The fastest epoch" not in html
    assert "model.hidden = 64: Caution: the machine was busy" in html
    bars = breakdown(load(sweep), of="epoch").data["run"]
    assert len(set(bars)) == len(bars) == 6
    assert bars[0].startswith("model.hidden = 16: ")


def test_a_run_is_not_compared_with_itself(two: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="each run may be named once"):
        compare([two[0], two[0]], tmp_path / "c.html")
    with pytest.raises(StorageError, match=r"none/c.html: cannot be written: No such file"):
        compare(two, tmp_path / "none" / "c.html")


def test_an_interrupted_run_is_reported_with_a_caution(make_run) -> None:
    path = make_run()
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    report, checks = make_report(path)
    assert checks == []
    html = report.read_text()
    assert "this run did not finish (its status is interrupted)" in html
    assert html.index("this run did not finish") < html.index("xdp-ring was fastest")


def test_a_run_that_failed_before_its_first_epoch_is_one_line(make_run) -> None:
    path = make_run({"gloo": 0.4, "tcp-ring": 0.6})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "status": "failed"}))
    frame = load_run(path, finished=False).frame
    rest = frame[frame["epoch"].isna()]
    RunFolder.existing(path).write("results.parquet", rest.to_parquet)
    for made in (lambda: make_report(path), lambda: breakdown(load(path), of="epoch")):
        with pytest.raises(SpecError, match="no epoch was measured before the run ended: it is"):
            made()


def test_a_folder_that_cannot_be_written_is_one_line(make_run) -> None:
    path = make_run()
    (path / "figures").write_text("in the way")
    with pytest.raises(StorageError, match=r"figures: cannot be written: File exists$"):
        make_report(path)


@pytest.mark.deep
def test_times_of_a_short_epoch_are_in_ms(make_run) -> None:
    path = make_run()
    run = load_run(path)
    run.frame.loc[run.frame["unit"] == "s", "value"] *= 0.01
    RunFolder.existing(path).write("results.parquet", lambda place: run.frame.to_parquet(place))
    html = make_report(path)[0].read_text()
    assert "<td>epoch, ms</td><td>12</td><td>14</td><td>18</td>" in html
    assert "<td>forward, ms</td><td>5</td><td>5</td><td>5</td>" in html


def test_numbers_have_three_digits() -> None:
    values = [1234.5, 0.0123, 12.34, float("nan")]
    assert [number(value) for value in values] == ["1,234", "0.0123", "12.3", "none"]
