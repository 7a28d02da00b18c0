"""Reading a sweep's file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from testbed.core.errors import SpecError
from testbed.core.tables import Table, checked, path_of
from testbed.scenario.load import read_table
from testbed.sweep.grid import Cell, flatten, make_cells

__all__ = ["VARIANT", "Sweep", "SweepTable", "load_sweep"]

MOST = 10_000  # trials
VARIANT = "variant"
"""The key of the grid whose values are the names of variants."""


class SweepTable(Table):
    """``[sweep]``: what is run, and how often."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=60)
    description: str = ""
    scenario: str | None = Field(
        default=None, description="scenario file, relative to the sweep's folder"
    )
    bench: str | None = Field(default=None, description="bench, such as allreduce")
    seed: int = Field(default=1, ge=0, lt=1 << 31)
    trials: int = Field(default=1, ge=1, le=1000)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.scenario is None) == (self.bench is None):
            raise ValueError("scenario: must be there, or bench, and not both")
        return self


class SweepFile(Table):
    """A whole file."""

    sweep: SweepTable
    common: dict[str, Any] = Field(default={}, description="keys that all cells have")
    grid: dict[str, Any] = Field(default={}, description="keys with the values that they take")
    variants: dict[str, dict[str, Any]] = Field(
        default={}, description="by name, keys that are set together: one more key of the grid"
    )


@dataclass(frozen=True)
class Sweep:
    """What is to be run.

    :param path: The file.
    :param common: Values that all cells have, by key.
    :param grid: Values by key; of `variants` their names, as the key ``variant``.
    :param cells: The grid's.
    :param variants: By name, values by key, which may differ from the common ones.
    """

    path: Path
    table: SweepTable
    common: dict[str, Any]
    grid: dict[str, list[Any]]
    cells: list[Cell]
    variants: dict[str, dict[str, Any]]

    def settings(self, cell: Cell) -> dict[str, Any]:
        """Return the values of a cell by key, the common ones included."""
        values = dict(cell.values)
        changed = self.variants[values.pop(VARIANT)] if self.variants else {}
        return {**self.common, **values, **changed}


def load_sweep(path: Path) -> Sweep:
    """Read a sweep's file.

    :raises SpecError: It is no TOML, or keys or values are wrong; the text has a line for each.
    """
    table = read_table(path)
    try:
        found = checked(SweepFile, table, lambda place: f"{path_of(place)} =")
    except SpecError as error:
        raise SpecError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None
    grid = dict(flatten(found.grid))
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SpecError(f"{path}: grid.{key}: must be an array of one or more values")
        if len({repr(value) for value in values}) != len(values):
            raise SpecError(f"{path}: grid.{key}: each value may be there once")
    variants = {name: dict(flatten(values)) for name, values in found.variants.items()}
    for name, values in variants.items():
        if both := sorted(grid.keys() & values.keys()):
            raise SpecError(
                f"{path}: variants.{name}.{both[0]}: is in the grid as well: leave one of them out"
            )
    if variants:
        if VARIANT in grid:
            raise SpecError(f"{path}: grid.{VARIANT}: is the key of [variants]: leave it out")
        grid[VARIANT] = list(variants)
    if not grid:
        raise SpecError(f"{path}: grid: must have one or more keys, such as fabric.hosts = [2, 4]")
    common = dict(flatten(found.common))
    if both := sorted(grid.keys() & common.keys()):
        raise SpecError(f"{path}: common.{both[0]}: is in the grid as well: leave one of them out")
    count = found.sweep.trials
    for values in grid.values():
        count *= len(values)
    if count > MOST:
        raise SpecError(f"{path}: grid: has {count} trials in all: must be at most {MOST}")
    return Sweep(path, found.sweep, common, grid, make_cells(grid), variants)
