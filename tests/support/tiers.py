"""Which of a test's parameters `make test` runs; `make test-all` runs all."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

__all__ = ["broad"]


def broad(values: Iterable[Any], quick: int = 1) -> list[ParameterSet]:
    """Mark all but the first few parameters of a test or a fixture ``deep``.

    :param values: As for `pytest.mark.parametrize`; a tuple has a value for each of several
        arguments.
    :param quick: Number of those that stay quick. If several arguments of a test are parametrized
        like this, combinations of their quick values stay quick.
    """
    found = []
    for number, value in enumerate(values):
        if not isinstance(value, ParameterSet):
            value = pytest.param(*(value if isinstance(value, tuple) else (value,)))
        marks = value.marks if number < quick else (*value.marks, pytest.mark.deep)
        found.append(value._replace(marks=marks))
    return found
