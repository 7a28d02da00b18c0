"""A small test matrix: cells in which every pair of values of any two factors occurs at least once.
Pure.

Most failures need two values to meet, seldom three (Kuhn, Wallace, Gallo: Software fault
interactions and implications for software testing, IEEE TSE 30(6), 2004). The method is the greedy
one of AETG (Cohen et al., IEEE TSE 23(7), 1997).
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["pairwise"]

_CANDIDATES = 20  # cells that are drawn for each that is taken

Value = tuple[str, int]  # a factor, and the index of one of its values
Missing = dict[frozenset[Value], None]  # pairs, in order: sets have none


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Draw the cells of a matrix.

    :param factors: Values by factor; at least one each.
    :param seed: The same seed draws the same cells.
    :returns: Cells, each with a value for every factor; those that cover most come first.
    :raises ValueError: A factor has no values.
    """
    for name, values in factors.items():
        if not values:
            raise ValueError(f"pairwise: factor {name!r} has no values: must be one or more")
    if len(factors) < 2:
        return [{name: value} for name, values in factors.items() for value in values]
    choices = {
        name: [(name, index) for index in range(len(values))] for name, values in factors.items()
    }
    pairs = (
        itertools.product(choices[a], choices[b]) for a, b in itertools.combinations(choices, 2)
    )
    missing: Missing = dict.fromkeys(map(frozenset, itertools.chain.from_iterable(pairs)))
    draw = random.Random(seed)
    cells = []
    while missing:
        cell = max(
            (_candidate(choices, missing, draw) for _ in range(_CANDIDATES)),
            key=lambda cell: _gain(cell, missing),
        )
        for pair in itertools.combinations(cell, 2):
            missing.pop(frozenset(pair), None)
        chosen = dict(cell)
        cells.append({name: values[chosen[name]] for name, values in factors.items()})
    return cells


def _candidate(
    choices: Mapping[str, Sequence[Value]], missing: Missing, draw: random.Random
) -> list[Value]:
    """Return a pair that is missing; for each other factor, in a drawn order, the value that covers
    most with those before.
    """
    cell = sorted(draw.choice(list(missing)))
    taken = {name for name, _ in cell}
    for name in draw.sample(list(choices), len(choices)):
        if name not in taken:
            values = draw.sample(choices[name], len(choices[name]))
            cell.append(
                max(
                    values,
                    key=lambda value: sum(frozenset((value, other)) in missing for other in cell),
                )
            )
    return cell


def _gain(cell: Sequence[Value], missing: Missing) -> int:
    return sum(frozenset(pair) in missing for pair in itertools.combinations(cell, 2))
