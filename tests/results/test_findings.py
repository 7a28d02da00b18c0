"""Findings for the manifest: which are kept, for how long, and which are always tried again."""

import json
from pathlib import Path

import pytest

from testbed import probes
from testbed.probes import PROBES, Finding, Level
from testbed.results.findings import SOFTWARE, findings


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the probes that were tried; Open MPI is missing."""
    names: list[str] = []

    def find(name: str) -> Finding:
        names.append(name)
        return Finding(name, Level.WARN if name == "Open MPI" else Level.OK, "seen")

    monkeypatch.setattr(probes, "find", find)
    return names


def test_software_that_was_found_is_probed_once(tried: list[str], tmp_path: Path) -> None:
    first = findings({"torch": "2"}, tmp_path)
    assert tried == list(PROBES)
    tried.clear()
    assert findings({"torch": "2"}, tmp_path)[0]["name"] == first[0]["name"] == "root"
    assert [name for name in PROBES if name not in tried] == ["BCC", "torch"]
    assert [entry["name"] for entry in first] == list(PROBES)
    assert set(first[0]) == {"name", "level", "detail", "remedy", "blocked", "tried"}
    assert first[0]["tried"].endswith("+00:00")
    assert json.loads(json.dumps(first)) == first


def test_other_versions_are_probed_again(tried: list[str], tmp_path: Path) -> None:
    findings({"torch": "2"}, tmp_path)
    tried.clear()
    findings({"torch": "3"}, tmp_path)
    assert set(SOFTWARE) <= set(tried)


@pytest.mark.parametrize("content", ["", "[]", '{"key": 1}'])
def test_findings_that_cannot_be_read_are_probed_again(
    tried: list[str], tmp_path: Path, content: str
) -> None:
    (tmp_path / "findings.json").write_text(content)
    findings({}, tmp_path)
    assert tried == list(PROBES)


def test_everything_is_probed_if_nothing_can_be_kept(tried: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        findings({}, tmp_path / "file")
    assert tried == 2 * list(PROBES)


def test_software_names_probes() -> None:
    assert set(SOFTWARE) <= PROBES.keys()
