"""The cells of a grid, and the order of their trials; pure."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.core.tables import path_of, show

__all__ = ["Cell", "Trial", "flatten", "make_cells", "order"]


@dataclass(frozen=True)
class Cell:
    """One combination of the grid's values.

    :param number: From 0, in the order of the grid, whose last key varies fastest.
    :param values: By key.
    """

    number: int
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{key} = {show(value)}" for key, value in self.values.items())


@dataclass(frozen=True)
class Trial:
    """One run of a cell."""

    cell: Cell
    number: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.cell.number:04d}-{self.number}"

    def __str__(self) -> str:
        return f"{self.cell}, trial {self.number + 1}"


def flatten(table: Mapping[str, Any], within: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables with the path of each: TOML reads ``fabric.hosts = [2, 4]``
    as a key `hosts` of a table `fabric`.
    """
    for key, value in table.items():
        path = (*within, *key.split("."))
        if isinstance(value, Mapping):
            yield from flatten(value, path)
        else:
            yield path_of(path), value


def make_cells(grid: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """Return all combinations."""
    products = itertools.product(*grid.values())
    return [
        Cell(number, dict(zip(grid, values, strict=True))) for number, values in enumerate(products)
    ]


def order(cells: Sequence[Cell], trials: int, seed: int) -> list[Trial]:
    """Return all trials in random order, so that a drift in the machine's speed affects all cells
    alike.
    """
    every = [Trial(cell, number) for cell in cells for number in range(trials)]
    random.Random(seed).shuffle(every)
    return every
