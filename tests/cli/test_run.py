"""``testbed run``: what it says when it cannot begin, and its exit status."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.run import default_folder
from testbed.errors import SpecError
from testbed.spec import parse_scenario

SCENARIO = '[scenario]\nname = "s"\n[dataset]\nname = "synthetic"\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return path


def test_help_has_examples() -> None:
    result = CliRunner().invoke(app, ["run", "--help"])
    assert result.exit_code == 0
    assert "testbed run scenarios/ddp_debian.toml --out runs/demo" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "fabric.host=4"], r"unknown key fabric\.host: .*did you mean hosts\?"),
        (["--set", "fabric.mtu=9000"], r"fabric\.mtu: 9000: allowed is 576 to 3506 with xdp-ring"),
        (["--set", "epochs=2"], r"--set 'epochs=2': allowed is table\.key=value"),
    ],
)
def test_wrong_settings(scenario: Path, tmp_path: Path, arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["run", str(scenario), "--out", str(tmp_path / "out"), *arguments])
    assert isinstance(result.exception, SpecError)
    with pytest.raises(SpecError, match=text):
        raise result.exception
    assert not (tmp_path / "out").exists()


def test_default_folder_is_named_by_scenario_and_time() -> None:
    folder = default_folder(parse_scenario({"scenario": {"name": "abc"}, "dataset": {"name": "synthetic"}}))
    assert folder.parent == Path("runs")
    assert folder.name.startswith("abc-20")
