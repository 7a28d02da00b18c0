"""Faults as text: ``drop p=0.01 link=h1->h2``, with times like 200ms, rates like 100mbit, sizes
like 64KiB.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from testbed.core.errors import SpecError
from testbed.core.numbers import read_real, read_whole, shown

__all__ = [
    "bytes_text",
    "parse_bytes",
    "parse_rate",
    "parse_seconds",
    "rate_text",
    "seconds_text",
    "split_words",
]

# Each unit in terms of the smallest one: nanoseconds, bits per second (tc(8), in powers of ten),
# bytes.
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "kib": 1 << 10, "mib": 1 << 20}

_QUANTITY = re.compile(
    r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([a-z]+)", re.IGNORECASE
)  # a time, rate or size does not have more digits


def split_words(text: str) -> tuple[str, dict[str, int | float | str]]:
    """Split a fault into its action and its keys.

    :param text: ``<action> <key>=<value> ...``; values that look like numbers become numbers,
        others strings.
    :raises SpecError: There is no action, a word is not ``key=value``, or a key occurs twice.
    """
    action, *words = text.split() or [""]
    if not action or "=" in action:
        raise SpecError(
            f"fault {text!r}: the first word must be the action, as in: drop p=0.01 link=h1->h2"
        )
    keys: dict[str, int | float | str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise SpecError(f"fault {text!r}: {word!r} is not key=value")
        if key in keys:
            raise SpecError(f"fault {text!r}: {key} is given twice")
        keys[key] = _literal(value)
    return action, keys


def parse_seconds(text: str) -> float:
    """Seconds, of ``"200ms"``.

    :raises SpecError: It is not a number with one of the units ns, us, ms, s, min, or not a whole
        number of nanoseconds.
    """
    return _parse(text, _TIMES, "a time", "200ms", "nanoseconds") / 10**9


def parse_rate(text: str) -> float:
    """Bits per second, of ``"100mbit"``.

    :raises SpecError: It is not a number with one of the units bit, kbit, mbit, gbit (powers of
        1000), or not a whole number of bits.
    """
    return float(_parse(text, _RATES, "a rate", "100mbit", "bits"))


def parse_bytes(text: str) -> int:
    """Bytes, of ``"64KiB"``.

    :raises SpecError: It is not a number with one of the units B, kB, MB, KiB, MiB, or not a whole
        number of bytes.
    """
    return _parse(text, _BYTES, "a size", "64KiB", "bytes")


def seconds_text(value: float) -> str:
    """Write seconds so that :func:`parse_seconds` reads the same value, such as ``200ms``.

    A value that is not a whole number of nanoseconds stays a plain number, which events read as
    seconds.
    """
    least = round(value * 10**9)
    return _text(least, _TIMES, ("ns", "us", "ms", "s")) if least / 10**9 == value else repr(value)


def rate_text(value: float) -> str:
    """Write bits per second so that :func:`parse_rate` reads the same value, such as
    ``100mbit``.
    """
    return _text(round(value), _RATES, tuple(_RATES))


def bytes_text(value: int) -> str:
    """Write bytes as a whole number, so that :func:`parse_bytes` reads the same value, such as
    ``64KiB``.
    """
    units = {"B": 1, "kB": 10**3, "KiB": 1 << 10, "MB": 10**6, "MiB": 1 << 20}
    name = (
        max((name for name, scale in units.items() if value % scale == 0), key=units.__getitem__)
        if value
        else "B"
    )
    return f"{value // units[name]}{name}"


def _text(amount: int, units: Mapping[str, int], names: tuple[str, ...]) -> str:
    """Write an amount of the smallest unit in the largest unit that it reaches; zero in the largest
    of all.
    """
    name = next((name for name in reversed(names) if not amount or amount >= units[name]), names[0])
    whole, rest = divmod(amount, units[name])
    digits = (
        f"{rest:0{len(str(units[name])) - 1}d}".rstrip("0") if rest else ""
    )  # these units are powers of ten
    return f"{whole}{'.' if digits else ''}{digits}{name}"


def _parse(text: object, units: Mapping[str, int], noun: str, example: str, least: str) -> int:
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in units:
        raise SpecError(
            f"{shown(text)} is not {noun}: must be a number with one of the units"
            f" {', '.join(units)}, such as {example}"
        )
    amount = Fraction(match[1]) * units[match[2].lower()]
    if amount.denominator != 1:
        raise SpecError(
            f"{shown(text)} is not {noun}: must be a whole number of {least}, such as {example}"
        )
    return amount.numerator


def _literal(value: str) -> int | float | str:
    for read in (read_whole, read_real):
        if (number := read(value)) is not None:
            return number
    return value
