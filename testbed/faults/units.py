"""Faults as words: ``drop p=0.01 link=h1->h2``, with times like 200ms, rates like 100mbit, sizes like 64KiB."""

import re
from collections.abc import Mapping

from testbed.errors import SpecError

__all__ = ["parse_bytes", "parse_rate", "parse_seconds", "split_words"]

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
# tc(8): bits a second, in powers of ten.
_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "kib": 1024.0, "mib": 1048576.0}

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)", re.IGNORECASE)


def split_words(text: str) -> tuple[str, dict[str, int | float | str]]:
    """Split a fault into its action and its keys.

    :param text: ``<action> <key>=<value> ...``; values are numbers where they look like numbers, else strings.
    :raises SpecError: There is no action, a word is no ``key=value``, or a key is there twice.
    """
    action, *words = text.split() or [""]
    if not action or "=" in action:
        raise SpecError(f"fault {text!r}: the first word must be the action, as in: drop p=0.01 link=h1->h2")
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

    :raises SpecError: It is no number with one of the units ns, us, ms, s, min.
    """
    return _parse(text, _SECONDS, "a time", "200ms")


def parse_rate(text: str) -> float:
    """Bits a second, of ``"100mbit"``.

    :raises SpecError: It is no number with one of the units bit, kbit, mbit, gbit (powers of 1000).
    """
    return _parse(text, _RATES, "a rate", "100mbit")


def parse_bytes(text: str) -> int:
    """Bytes, of ``"64KiB"``.

    :raises SpecError: It is no number with one of the units B, kB, MB, KiB, MiB.
    """
    return int(_parse(text, _BYTES, "a size", "64KiB"))


def _parse(text: object, units: Mapping[str, float], noun: str, example: str) -> float:
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in units:
        raise SpecError(
            f"{text!r} is not {noun}: allowed is a number with one of the units {', '.join(units)}, such as {example}"
        )
    return float(match[1]) * units[match[2].lower()]


def _literal(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
