"""Notebooks run from top to bottom on the recorded runs, and on others."""

from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

from analysis.loading import load
from tests.support.tiers import broad

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "analysis" / "notebooks"
EXAMPLES = ROOT / "analysis" / "examples"
NAMES = ("ring", "gnn", "faults")


@pytest.mark.parametrize("name", broad(NAMES))
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTEBOOK_RUNS", str(EXAMPLES / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=100, resources=folder).execute()
    shown = [
        output
        for cell in book.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(shown) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_pairs_without_outputs(name: str) -> None:
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    text = jupytext.read(NOTEBOOKS / f"{name}.py")
    assert [cell.source for cell in book.cells] == [cell.source for cell in text.cells]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)


def test_recorded_runs_are_small() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    assert set(load(EXAMPLES / "*")["run"]) == set(NAMES)
