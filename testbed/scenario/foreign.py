"""Scenarios that come from elsewhere: they name no code and no files. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

from testbed.core.errors import SpecError
from testbed.core.numbers import shown
from testbed.core.registry import registered_only
from testbed.core.tables import FileName
from testbed.scenario.load import override, parse_scenario
from testbed.workloads.scenario import Scenario

__all__ = ["foreign_scenario", "without_none"]

_TRUST: Final = "add --trust if you know where the archive comes from"
_CODE: Final = f"names code, which would be executed; {_TRUST}"


def foreign_scenario(
    table: Any,
    settings: Sequence[str],
    source: str,
    trust: bool = False,
    files: bool = False,
) -> Scenario:
    """Validate the scenario of an archive.

    Code is whatever a registry would import because no package has registered it; the registries
    themselves refuse it.

    :param table: As a manifest has it.
    :param settings: Overrides, as of `load_scenario`; what they name is the user's own.
    :param source: Named at the start of errors.
    :param trust: It may name code of this machine and programs to load.
    :param files: It may name files.
    :raises SpecError: It is wrong, or names code or files.
    """
    if not isinstance(table, dict):
        raise SpecError(f"{source}: its scenario is not a table")
    own = override({}, settings)
    try:
        bare = without_none(dict(table))
    except RecursionError:
        raise SpecError(f"{source}: its scenario is nested too deeply") from None
    if bare.get("programs") and not trust:
        raise SpecError(f"{source}: programs: would be loaded into the kernel; {_TRUST}")
    names = {text.partition(",")[0] for text in _strings(own)}
    with nullcontext() if trust else registered_only(_CODE, names):
        scenario = parse_scenario(override(bare, settings), source)
    for place, value in () if files else FileName.within(scenario):
        name, _, key = place.partition(".")
        if key not in own.get(name, ()):
            raise SpecError(
                f"{source}: {place} = {shown(value)}: names files of another machine; give your"
                f" own: --set {place}=PATH"
            )
    return scenario


def without_none(value: Any) -> Any:
    """Return nested tables without the keys that are None, which TOML has no word for."""
    if isinstance(value, dict):
        return {key: without_none(each) for key, each in value.items() if each is not None}
    return [without_none(each) for each in value] if isinstance(value, list) else value


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in nested tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
