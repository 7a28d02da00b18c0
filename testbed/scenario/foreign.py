"""Scenarios that come from elsewhere: they name no code and no files. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from testbed.core.errors import SpecError
from testbed.scenario.load import override, parse_scenario
from testbed.workloads.scenario import Scenario

__all__ = ["foreign_scenario"]

_CODE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:attribute

_TEXTS: Final = frozenset({"scenario.name", "scenario.description"})


def foreign_scenario(
    table: Mapping[str, Any],
    settings: Sequence[str],
    source: str,
    trust: bool = False,
    files: bool = False,
) -> Scenario:
    """Validate the scenario of an archive.

    :param table: As a manifest has it.
    :param settings: Overrides, as of `load_scenario`; what they name is the user's own.
    :param source: Named at the start of errors.
    :param trust: It may name code of this machine and programs to load.
    :param files: It may name files.
    :raises SpecError: It is wrong, or names code or files.
    """
    own = override({}, [each for each in settings if "." in each.partition("=")[0]])
    given = {f"{name}.{key}" for name, keys in own.items() for key in keys}
    bare = without_none(dict(table))
    for place, value in _strings(bare):
        if place in given or place in _TEXTS:
            continue
        if place == "dataset.path" and not files:
            raise SpecError(
                f"{source}: {place} = {value!r}: names files of another machine; give your own:"
                f" --set {place}=PATH"
            )
        if not trust and _CODE.fullmatch(value):
            raise SpecError(
                f"{source}: {place} = {value!r}: names code, which would be executed; add --trust"
                " if you know where the archive comes from"
            )
    if bare.get("programs") and not trust:
        raise SpecError(
            f"{source}: programs: would be loaded into the kernel; add --trust if you know where"
            " the archive comes from"
        )
    return parse_scenario(override(bare, settings), source)


def without_none(value: Any) -> Any:
    """Return nested tables without the keys that are None, which TOML has no word for."""
    if isinstance(value, dict):
        return {key: without_none(each) for key, each in value.items() if each is not None}
    return [without_none(each) for each in value] if isinstance(value, list) else value


def _strings(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """All strings with their places, such as ``dataset.path``; those in lists have the list's."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _strings(each, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, place)
