"""Runs from elsewhere: a manifest that lacks something, or has it otherwise, is read or refused in
one line.
"""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import load
from analysis.compare import compare
from analysis.figures import draw_all
from analysis.report import make_report
from testbed.core.errors import SpecError
from testbed.results import load_run

WRONG: tuple[Any, ...] = (None, [], {}, "x", 7)


def mutations(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key, and each of a scenario's tables: left out, and of another type."""
    places = [(key,) for key in manifest]
    places += [("scenario", table) for table in manifest["scenario"]]
    for place in places:
        for wrong in ("left out", *WRONG):
            made = copy.deepcopy(manifest)
            table = made
            for key in place[:-1]:
                table = table[key]
            if wrong == "left out":
                del table[place[-1]]
            else:
                table[place[-1]] = wrong
            yield f"{'.'.join(place)}: {wrong!r}", made


@pytest.mark.parametrize("full_graph", [False, True])
def test_other_manifests_are_read_or_refused(
    make_run: Any, full_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("pinch", "tcp-push") if full_graph else ("xdp-ring", "tcp-ring")
    path = make_run(dict.fromkeys(names, 1.0), telemetry=not full_graph, full_graph=full_graph)
    plots = draw_all(load_run(path))  # they are of the table
    monkeypatch.setattr("analysis.report.draw_all", lambda _: plots)
    place = path / "manifest.json"
    refused = 0
    for what, manifest in mutations(json.loads(place.read_text())):
        place.write_text(json.dumps(manifest))
        said = ""
        try:
            make_report(path)
        except SpecError as error:
            said = str(error)
        except Exception as error:
            raise AssertionError(what) from error
        assert not said or ("manifest.json" in said or path.name in said), what
        assert "\n" not in said, what
        refused += bool(said)
    assert refused > 50


def test_two_runs_of_which_one_is_foreign(make_run: Any, tmp_path: Path) -> None:
    path = make_run()
    other = tmp_path / "other"
    shutil.copytree(path, other)
    (other / "manifest.json").write_text("{}")
    with pytest.raises(SpecError, match=r"manifest\.json: schema = None: must be"):
        compare([path, other], tmp_path / "c.html")


def test_a_pattern_leaves_out_what_has_measured_nothing(
    make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_run()
    empty = path.with_name("empty")
    empty.mkdir()
    shutil.copy(path / "manifest.json", empty)
    assert set(load(path.parent / "*")["run"]) == {path.name}
    assert "empty: left out: the run there has measured nothing" in caplog.text
    with pytest.raises(SpecError, match="is not the folder of a finished run"):
        load(empty)
