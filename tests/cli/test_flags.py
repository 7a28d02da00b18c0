"""Flags generated from models: each has its key's default, bounds and help, and errors name it."""

from typing import Annotated, Any

import pytest
import typer
from pydantic import Field, model_validator
from typer.testing import CliRunner

from testbed.cli import app, flags
from testbed.cli.bench_exchange import TERMS
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.core.tables import Table
from testbed.exchange.options import ExchangeOptions
from testbed.plan import FabricOptions, SimulatedFabricOptions

MODELS: dict[str, tuple[tuple[type[Table], ...], set[str]]] = {
    "bench allreduce": ((FabricOptions, CollectiveOptions), set()),
    "bench faults": ((FabricOptions, CollectiveOptions), {"recovery"}),
    "bench broadcast": ((FabricOptions, ExchangeOptions), {"hosts", "bound", "staleness"}),
    "bench aggregate": ((FabricOptions, ExchangeOptions), {"bound", "staleness"}),
    "bench exchange": ((FabricOptions, ExchangeOptions), {"bound", "staleness"}),
    "bench sim": (
        (SimulatedFabricOptions, CollectiveOptions),
        {
            "timeout",
            "connect_timeout",
            "affinity",
            "recovery",
            "reorder_threshold",
            "reproducible",
            "on_overflow",
            "segment",
        },
    ),
    "up": ((FabricOptions,), set()),
}
"""The models whose keys are flags of a command, and the keys that are not, because the command
varies them itself.
"""


class Sizes(Table):
    """An option that no other model has."""

    wide_open: int | None = Field(default=None, ge=2, le=5, description="how wide")
    share: float = Field(default=0.5, gt=0, lt=1, description="how much")
    way: Annotated[str, Field(pattern="^[lr]$", description="where to")] = "l"


def verb(seen: list[Any]) -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @flags.expand
    def work(
        first: int = 1,
        sizes: Annotated[Sizes, flags.Of(omit=("way",))] = Sizes(share=0.25, way="r"),  # noqa: B008
    ) -> None:
        """Do it."""
        seen.append((first, sizes))

    return made


def test_a_verb_gets_the_model() -> None:
    seen: list[Any] = []
    for arguments in ([], ["--first", "2", "--wide-open", "3", "--share", ".75"]):
        assert CliRunner().invoke(verb(seen), arguments).exit_code == 0
    assert seen == [(1, Sizes(share=0.25, way="r")), (2, Sizes(wide_open=3, share=0.75, way="r"))]


def test_help_texts_are_the_models() -> None:
    shown = " ".join(
        CliRunner().invoke(verb([]), ["--help"], env={"COLUMNS": "200"}).stdout.split()
    )
    assert "--wide-open <int> How wide (2 to 5)." in shown
    assert "--share <float> How much (more than 0, less than 1). [default: 0.25]" in shown
    assert "--way" not in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--wide-open", "6"], "--wide-open: 6: must be 2 to 5"),
        (["--share", "1"], "--share: 1.0: must be more than 0, less than 1"),
        (
            ["--share", "1", "--wide-open", "1"],
            "--wide-open: 1: must be 2 to 5\n--share: 1.0: must be more than 0, less than 1",
        ),
    ],
)
def test_invalid_values_are_refused(arguments: list[str], text: str) -> None:
    seen: list[Any] = []
    result = CliRunner().invoke(verb(seen), arguments)
    assert isinstance(result.exception, SpecError)
    assert (str(result.exception), seen) == (text, [])


@pytest.mark.parametrize("path", MODELS)
def test_each_key_of_a_model_is_a_flag_with_help(path: str) -> None:
    command: Any = typer.main.get_command(app)
    for name in path.split():
        command = command.commands[name]
    models, omitted = MODELS[path]
    helps = {name: option.help for option in command.params for name in option.opts}
    keys = {key for model in models for key in model.model_fields}
    assert all(helps[flags.flag(key)] for key in keys - omitted)
    assert helps.keys().isdisjoint(map(flags.flag, omitted))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--lanes", "int8"], '--lanes: "int8": must be int16 or int32; did you mean int32?'),
        (["--window", "257"], "--window: 257: must be 1 to 256"),
        (["--recovery", "owner"], '--recovery: "owner": must be origin or upstream'),
        (["--reorder-threshold", "4097"], "--reorder-threshold: 4097: must be 0 to 4096"),
        (["--affinity", "core"], '--affinity: "core": must be none, rank or one'),
        (["--mtu", "100"], "--mtu: 100: must be 576 to 65535"),
        (["--offload", "no"], '--offload: "no": must be on or off'),
        (
            ["--topology", "mesh"],
            '--topology: "mesh": must be star, ring, leaf-spine, fat-tree or module:Class',
        ),
    ],
)
def test_options_of_a_bench_are_refused_by_their_flags(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["bench", "allreduce", *arguments])
    assert isinstance(result.exception, SpecError)
    assert str(result.exception) == text


class Way(Table):
    """A table that chooses one key by another, unless it is given."""

    way: str | None = None
    speed: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, given: Any) -> Any:
        way = given.get("way") or "left"
        return {"way": way, "speed": given.get("speed") or ("slow" if way == "left" else "fast")}


def test_what_a_table_chooses_by_itself_it_chooses_anew_with_other_flags() -> None:
    made, seen = typer.Typer(), list[Way]()

    @made.command()
    @flags.expand
    def work(way: Annotated[Way, flags.Of()] = Way()) -> None:  # noqa: B008
        """Do it."""
        seen.append(way)

    for arguments in ([], ["--way", "right"], ["--way", "right", "--speed", "slow"]):
        assert CliRunner().invoke(made, arguments).exit_code == 0
    assert [(each.way, each.speed) for each in seen] == [
        ("left", "slow"),
        ("right", "fast"),
        ("right", "slow"),
    ]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--broadcast", "tc"], ("tc", "kernel", None)),
        (["--sums", "packed"], ("tc", "kernel", None)),
        (["--aggregate", "kernel"], ("tokens", "kernel", "int16")),
        (["--dtype", "float32"], ("tokens", "process", "float32")),
    ],
)
def test_the_ways_of_pinch_have_flags(arguments: list[str], found: tuple[str, ...]) -> None:
    made, seen = typer.Typer(), list[ExchangeOptions]()

    @made.command()
    @flags.expand
    def work(terms: Annotated[ExchangeOptions, flags.Of()] = TERMS) -> None:
        """Do it."""
        seen.append(terms)

    done = CliRunner().invoke(made, arguments)
    assert done.exit_code == 0, done.output
    assert (seen[0].broadcast, seen[0].aggregate, seen[0].dtype) == found
    assert seen[0].affinity == TERMS.affinity
