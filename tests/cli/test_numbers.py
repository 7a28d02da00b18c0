"""Each numeric option of each verb refuses anything that is not a number, or is out of range,
before anything is built.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from testbed.cli import app
from testbed.core.errors import SpecError
from tests.support.tiers import broad

COMMAND = typer.main.get_command(app)
NO_NUMBERS = [
    "nan",
    "1_0",
    "inf",
    "-inf",
    "1e309",
    "0x10",
    "",
    "9" * (sys.get_int_max_str_digits() + 1),
]
LISTS = {  # options that take a list of numbers, sizes or times, by command
    ("bench", "delay-line"): ("--rates", "--delay", "--jitter"),
    ("bench", "faults"): ("--hosts", "--loss", "--size"),
    ("bench", "allreduce"): ("-b", "-e"),
    ("bench", "broadcast"): ("--receivers", "-b", "-e"),
    ("bench", "sim"): ("--size",),
    ("bench", "aggregate"): ("--dims", "--degrees"),
    ("bench", "exchange"): ("--dims",),
}
SWEEP = Path(__file__).parents[2] / "scenarios" / "sweeps" / "scale.toml"
ENDLESS = "1" + "0" * 30  # a number above every bound
NO_RANGE = {"--step-factor", "--only"}  # options that have no upper bound


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


def numeric() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Each command with each of its numeric options, under all of the option's names."""
    for path, command in commands(COMMAND):
        for option in command.params:
            kind = option.type_descriptor.annotation
            if kind in (int, float, list[int], list[float]) and not option.count:
                yield path, tuple(option.opts)
        for name in LISTS.get(path, ()):
            yield path, (name,)


def words(value: tuple[str, ...]) -> str:
    return " ".join(value)


@pytest.fixture(autouse=True)
def _commands_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making them takes longer than running them."""
    monkeypatch.setattr("typer.testing._get_command", lambda _: COMMAND)


@pytest.fixture(autouse=True)
def _nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_arguments: object) -> None:
        pytest.fail("it would have been built")

    for place in (
        "testbed.host.rights.require_root",
        "testbed.run.background.require_root",
        "testbed.fabric.Fabric.__enter__",
    ):
        monkeypatch.setattr(place, build)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text('[scenario]\nname = "s"\n[dataset]\nname = "synthetic"\n')
    return path


def refuse(path: tuple[str, ...], option: tuple[str, ...], value: str, scenario: Path) -> None:
    """Check that a command refuses a value with one line that names the option, the value and what
    it must be.
    """
    arguments = {
        ("run",): [str(scenario)],
        ("up",): ["--topology", "leaf-spine"],
        ("partition",): ["rmat:8"],
        ("sweep",): [str(SWEEP)],
    }.get(path, [])
    result = CliRunner().invoke(
        app, [*path, *arguments, option[-1], value], env={"COLUMNS": "10000"}
    )
    error = result.exception
    assert isinstance(error, SystemExit | SpecError), (value, result.output)
    assert (error.code if isinstance(error, SystemExit) else error.exit_status) == 2
    text = str(error) if isinstance(error, SpecError) else result.stderr
    names = {*option, *(name.strip("-").replace("-", "_") for name in option)}
    lines = [line for line in text.splitlines() if "must be" in line]
    assert len(lines) == 1, (value, text)
    assert any(name in lines[0] for name in names), (value, text)
    assert value[:40] in lines[0] or f" {float(value):g}:" in lines[0], (value, text)


@pytest.mark.parametrize("values", broad([NO_NUMBERS[:2], NO_NUMBERS[2:]]), ids=["two", "all"])
@pytest.mark.parametrize(("path", "option"), list(numeric()), ids=words)
def test_values_that_are_no_numbers_are_refused(
    path: tuple[str, ...], option: tuple[str, ...], values: list[str], scenario: Path
) -> None:
    for value in values:
        refuse(path, option, value, scenario)


@pytest.mark.parametrize(
    ("path", "option"), [each for each in numeric() if each[1][-1] not in NO_RANGE], ids=words
)
def test_values_out_of_range_are_refused(
    path: tuple[str, ...], option: tuple[str, ...], scenario: Path
) -> None:
    unit = "s" if option[0] in ("--delay", "--jitter") else ""
    for value in (ENDLESS, "-1"):
        refuse(path, option, value + unit, scenario)


def test_options_that_take_numbers_are_found() -> None:
    found = {name for _, option in numeric() for name in option}
    assert {
        "--hosts",
        "--minutes",
        "--iters",
        "-n",
        "--seconds",
        "--fault-seed",
        "--k",
        "--loss",
    } <= found
