"""Parsing of all numbers that a user writes, in flags, lists, sizes and faults. Pure.

Python's own `int` and `float` accept more than a user means: ``1_0``, digits of other scripts,
``nan``, ``1e309`` as infinity. And `int` raises a different error for a number with thousands of
digits (sys.set_int_max_str_digits).
"""

import math
import re
from dataclasses import dataclass

from testbed.core.errors import SpecError

__all__ = ["Real", "Whole", "cut", "format_size", "read_real", "read_whole", "shown", "why"]

MOST_DIGITS = 64
_WHOLE = re.compile(rf"[+-]?[0-9]{{1,{MOST_DIGITS}}}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_LONGEST = 80  # characters of a value that an error shows


def read_whole(text: str) -> int | None:
    """Return a whole number written in decimal digits; None if the text is not one, or has more
    than 64 digits.
    """
    return int(text) if _WHOLE.fullmatch(text) else None


def read_real(text: str) -> float | None:
    """Return a number such as ``-0.5``, ``.5`` or ``1e-3``; None if the text is not one, or is too
    large for a double.
    """
    value = float(text) if _REAL.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def cut(text: str) -> str:
    """Return the text of a value for an error; a long one is cut off."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def why(error: Exception) -> str:
    """Return an error's text on one line; its type's name, if it has none."""
    return cut(" ".join(str(error).split()) or type(error).__name__)


def shown(value: object) -> str:
    """Return a value as text for an error: strings are quoted."""
    return cut(repr(value))


def format_size(size: int) -> str:
    """Write a size with the largest suffix that divides it, in the syntax of
    `testbed.bench.sizes.parse_size`.
    """
    for suffix, power in (("G", 30), ("M", 20), ("K", 10)):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{suffix}"
    return str(size)


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `least` to `most`; without bounds if the caller checks the range."""

    least: int = 1 - 10**MOST_DIGITS
    most: int = 10**MOST_DIGITS - 1

    def __call__(self, value: str | int) -> int:
        """Return the number that a text stands for.

        :raises SpecError: It is not one of these; the text has the value and what it must be, but
            not the option's name.
        """
        number = value if isinstance(value, int) else read_whole(value)
        if number is None or not self.least <= number <= self.most:
            raise SpecError(f"{shown(value)}: must be {self._allowed('a whole number')}")
        return number

    def several(self, text: str, flag: str) -> list[int]:
        """Return the numbers between commas.

        :param flag: The option that the text was given to, for the error.
        :raises SpecError: One is none of these.
        """
        numbers = [read_whole(word.strip()) for word in text.split(",")]
        found = [
            number for number in numbers if number is not None and self.least <= number <= self.most
        ]
        if len(found) < len(numbers):
            raise SpecError(
                f"{flag}: {shown(text)}: must be {self._allowed('whole numbers')}, comma-separated"
            )
        return found

    def _allowed(self, noun: str) -> str:
        return noun if self == Whole() else f"{noun} from {self.least} to {self.most}"


@dataclass(frozen=True)
class Real:
    """Finite numbers from `least` to `most`; without bounds if the caller checks the range."""

    least: float = -math.inf
    most: float = math.inf

    def __call__(self, value: str | float) -> float:
        """Return the number that a text stands for; see `Whole`."""
        number = read_real(value) if isinstance(value, str) else value
        if number is None or not self.least <= number <= self.most:
            raise SpecError(f"{shown(value)}: must be {self._allowed('a finite number')}")
        return float(number)

    def several(self, text: str, flag: str) -> list[float]:
        """Return the numbers between commas; see `Whole.several`."""
        numbers = [read_real(word.strip()) for word in text.split(",")]
        found = [
            number for number in numbers if number is not None and self.least <= number <= self.most
        ]
        if len(found) < len(numbers):
            raise SpecError(
                f"{flag}: {shown(text)}: must be {self._allowed('finite numbers')}, comma-separated"
            )
        return found

    def _allowed(self, noun: str) -> str:
        return noun if self == Real() else f"{noun} from {self.least:g} to {self.most:g}"
