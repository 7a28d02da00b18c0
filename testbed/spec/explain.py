"""Pydantic's findings in a scenario file's words: key, value, what is allowed, and the nearest known key."""

import difflib
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from testbed.faults.spec import MODELS as FAULTS
from testbed.numbers import cut
from testbed.spec.scenario import DebianSpec, PlanetoidSpec, Scenario, SyntheticSpec

__all__ = ["explain"]

DATASETS: dict[str, type[BaseModel]] = {
    "debian": DebianSpec,
    "planetoid": PlanetoidSpec,
    "synthetic": SyntheticSpec,
}
NOUNS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
DEEPEST = 3  # levels of a value that an error shows
LONGEST = 256  # bits of a whole number that an error shows in digits; Python refuses to write those of thousands of digits

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def explain(error: ValidationError, source: str) -> str:
    """Say what is wrong, one finding a line, each starting with `source`.

    :param source: The scenario file's path.
    """
    return "\n".join(f"{source}: {line}" for line in _lines(error))


def _lines(error: ValidationError) -> Iterator[str]:
    details = error.errors(include_url=False)
    entries = {detail["loc"][:-1] for detail in details}
    for detail in details:
        # An array with a wrong entry is also counted as too short, as if the entry were not there.
        if not (detail["type"] == "too_short" and detail["loc"] in entries):
            yield _line(detail)


def _line(detail: ErrorDetails) -> str:
    # A tagged union puts its tag into the location: ("dataset", "debian", "feature_dim").
    location = list(detail["loc"])
    model: type[BaseModel] = Scenario
    if len(location) >= 2 and location[0] == "dataset" and location[1] in DATASETS:
        model = DATASETS[str(location.pop(1))]
    elif len(location) >= 2 and location[0] == "faults":
        return _fault_line(detail)
    elif len(location) >= 2:
        model = _table(str(location[0])) or Scenario
    path = _join(location)
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return _unknown(path, str(location[-1]), list(model.model_fields), len(location) == 1)
        case "missing":
            return _missing(path, len(location) == 1)
        case "union_tag_not_found":
            return f"{path}.name is missing: allowed is {_options(list(DATASETS))}"
        case "union_tag_invalid":
            return _wrong(f"{path}.name", context["tag"], _options(list(DATASETS)), list(DATASETS))
        case "literal_error":
            known = _literals(model, location)
            return _wrong(path, value, _options(known), known)
        case "value_error":  # our own validators: their texts start with the key
            return f"{path}.{context['error']}" if path else str(context["error"])
        case "string_pattern_mismatch":
            return _wrong(path, value, f"a string that matches {context['pattern']}")
        case _:
            noun = None if kind == "float_type" and type(value) is int else NOUNS.get(kind)  # one that no double can hold
            allowed = noun or _bounds(model, location) or _lengths(kind, context) or detail["msg"]
            if kind == "finite_number" and "at most" not in allowed:
                allowed += ", finite"
            return _wrong(path, value, allowed)


def _fault_line(detail: ErrorDetails) -> str:
    """Say what is wrong with a fault, whose fields' descriptions say what they allow."""
    index, *rest = detail["loc"][1:]
    path = _join(["faults", index])
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if kind == "union_tag_not_found":
        return f"{path}.action is missing: allowed is {_options(list(FAULTS))}"
    if kind == "union_tag_invalid":
        return _wrong(f"{path}.action", context["tag"], _options(list(FAULTS)), list(FAULTS))
    if not rest:  # neither a table nor words
        allowed = "a table, or words such as drop p=0.01"
        return f"{path}: {context['error']}" if kind == "value_error" else _wrong(path, value, allowed)
    action, *keys = rest
    fields = {field.alias or name: field for name, field in FAULTS[str(action)].model_fields.items()}
    if not keys:  # our own validators: their texts start with the key
        return f"{path}.{context['error']}"
    path = _join(["faults", index, keys[0]])
    if kind == "extra_forbidden":
        return _unknown(path, str(keys[0]), [key for key in fields if key != "action"], is_table=False)
    allowed = fields[str(keys[0])].description or ""
    return f"{path} is missing: allowed is {allowed}" if kind == "missing" else _wrong(path, value, allowed)


def _unknown(path: str, key: str, known: list[str], is_table: bool) -> str:
    noun = "table" if is_table else "key"
    shown = f"[{path}]" if is_table else path
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown {noun} {shown}: allowed is {_options(known)}{hint}"


def _missing(path: str, is_table: bool) -> str:
    return f"table [{path}] is missing" if is_table else f"{path} is missing"


def _wrong(path: str, value: Any, allowed: str, known: list[str] | None = None) -> str:
    near = difflib.get_close_matches(value, known, n=1) if known and isinstance(value, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{path} = {_show(value)}: allowed is {allowed}{hint}"


def _bounds(model: type[BaseModel], location: list[Any]) -> str | None:
    """Return the range that a number key (or entry of an array of numbers) may lie in."""
    field = model.model_fields.get([part for part in location if isinstance(part, str)][-1])
    constraints = list(field.metadata) if field else []
    if field and isinstance(location[-1], int):
        entry = typing.get_args(field.annotation)[0]
        constraints = [c for meta in getattr(entry, "__metadata__", ()) for c in getattr(meta, "metadata", ())]
    found = {type(constraint): constraint for constraint in constraints}
    words = []
    if Gt in found:
        words.append(f"more than {found[Gt].gt}")
    if Ge in found:
        words.append(f"at least {found[Ge].ge}")
    if Lt in found:
        words.append(f"less than {found[Lt].lt}")
    if Le in found:
        words.append(f"at most {found[Le].le}")
    return ", ".join(words) or None


def _lengths(kind: str, context: dict[str, Any]) -> str | None:
    words = {
        "too_short": ("min_length", "{} or more entries"),
        "string_too_long": ("max_length", "a string of at most {} characters"),
    }
    if kind not in words:
        return None
    key, text = words[kind]
    return text.format(context[key])


def _table(name: str) -> type[BaseModel] | None:
    field = Scenario.model_fields.get(name)
    kinds = [field.annotation, *typing.get_args(field.annotation)] if field else []  # a table, or a table or None
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _literals(model: type[BaseModel], location: list[Any]) -> list[str]:
    """Return the values that a Literal key (or entry of an array of Literals) may have."""
    keys = [part for part in location if isinstance(part, str)]
    return [str(value) for value in _values(model.model_fields[keys[-1]].annotation)]


def _values(kind: Any) -> Iterator[Any]:
    if typing.get_origin(kind) is typing.Literal:
        yield from typing.get_args(kind)
    elif typing.get_origin(kind) in (tuple, typing.Union, types.UnionType):
        for part in typing.get_args(kind):
            yield from _values(part)


def _join(location: list[Any]) -> str:
    path = ""
    for part in location:
        if isinstance(part, str):
            part = part if _BARE.fullmatch(part) else cut(json.dumps(part))  # as TOML quotes keys
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _options(values: list[str]) -> str:
    return ", ".join(values[:-1]) + " or " + values[-1] if len(values) > 1 else values[0]


def _show(value: Any, level: int = 0) -> str:
    """Write a value as TOML does, on one line; of a long or deep one, the beginning."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return cut(json.dumps(value, ensure_ascii=False))
        case list() | dict() if level == DEEPEST:
            return "..."
        case list():
            return cut(f"[{', '.join(_show(entry, level + 1) for entry in value)}]")
        case dict():
            entries = (f"{_join([str(key)])} = {_show(entry, level + 1)}" for key, entry in value.items())
            return cut(f"{{{', '.join(entries)}}}")
        case int() if value.bit_length() > LONGEST:
            return f"{'-' * (value < 0)}2^{value.bit_length() - 1} and more"
        case _:
            return cut(str(value))
