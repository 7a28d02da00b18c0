"""`Table`: values that a user sets in a scenario file, by flags or in code, and the errors for
wrong values.

A model defines its keys once, with defaults, bounds and descriptions; help texts and errors are
generated from them.
"""

import difflib
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
    core_schema,
)

from testbed.core.errors import SpecError
from testbed.core.numbers import cut
from testbed.core.registry import OTHERS, Registry
from testbed.core.renamed import renamed

__all__ = [
    "FileName",
    "Named",
    "Table",
    "Tagged",
    "allowed",
    "checked",
    "choices",
    "explain",
    "findings",
    "options",
    "path_of",
    "show",
    "unknown",
    "wrong",
]

M = TypeVar("M", bound=BaseModel)
Location = Sequence[str | int]

NOUNS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
LENGTHS = {
    "too_short": ("min_length", "{} or more entries"),
    "string_too_long": ("max_length", "a string of at most {} characters"),
}
DEEPEST = 3  # nesting levels of a value that an error shows
# bits of a whole number that an error writes out; Python refuses to write thousands of digits
LONGEST = 256

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Table(BaseModel):
    """A table of values. TOML has types, so values are not converted: ``"4"`` is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def only(self, model: type[BaseModel]) -> dict[str, Any]:
        """Return the values of the keys that another model also has."""
        return {
            key: getattr(self, key) for key in type(self).model_fields if key in model.model_fields
        }


@dataclass(frozen=True)
class Named:
    """In an annotation: a string that must be a name in a registry.

    :param accepts: Which of its objects are accepted; None: all.
    :param arguments: Whether arguments may follow the name, after commas.
    """

    registry: Registry[Any]
    accepts: Callable[[Any], bool] | None = None
    arguments: bool = False

    @property
    def names(self) -> list[str]:
        """The names that are accepted."""
        return [
            name
            for name in self.registry
            if self.accepts is None or self.accepts(self.registry[name])
        ]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check the name after the type; see pydantic."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, given: str) -> str:
        name = given.partition(",")[0] if self.arguments else given
        if name not in self.registry:
            raise PydanticCustomError("unknown_name", "unknown name", {"known": self.names})
        try:
            found = self.registry[name]
        except SpecError as error:
            raise PydanticCustomError("bad_object", "bad object", {"text": str(error)}) from error
        if self.accepts and not self.accepts(found):
            raise PydanticCustomError("unknown_name", "unknown name", {"known": self.names})
        return given


@dataclass(frozen=True)
class FileName:
    """In an annotation: a string that names a file or a folder of the user's.

    :param besides: Strings that name none.
    """

    besides: Collection[str] = ()

    @staticmethod
    def within(table: BaseModel) -> Iterator[tuple[str, str]]:
        """Yield the places and values of all that a table and its tables name, except defaults."""
        for key, field in type(table).model_fields.items():
            value = getattr(table, key)
            if isinstance(value, BaseModel):
                yield from ((f"{key}.{place}", name) for place, name in FileName.within(value))
            for mark in field.metadata:
                named = isinstance(mark, FileName) and isinstance(value, str)
                if named and value != field.default and value not in mark.besides:
                    yield key, value


@dataclass(frozen=True)
class Tagged:
    """In an annotation: a table whose model is the one that a registry has for the table's key
    ``name``.
    """

    registry: Registry[Any]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Convert the value to the registry's model first; see pydantic."""
        return core_schema.no_info_before_validator_function(self._make, handler(source))

    def _make(self, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if "name" not in table:
            raise PydanticCustomError("no_tag", "no tag", {"known": list(self.registry)})
        name = table["name"]
        if not isinstance(name, str) or name not in self.registry:
            raise PydanticCustomError(
                "unknown_tag", "unknown tag", {"tag": name, "known": list(self.registry)}
            )
        try:
            return self.registry[name].model_validate(table)
        except SpecError as error:
            raise PydanticCustomError("bad_object", "bad object", {"text": str(error)}) from error
        except ValidationError as error:  # whose places lack the name
            details = [
                InitErrorDetails(
                    type=_type(each),
                    loc=(name, *each["loc"]),
                    input=each["input"],
                    ctx=each.get("ctx", {}),
                )
                for each in error.errors(include_url=False)
            ]
            raise ValidationError.from_exception_data(error.title, details) from error


def _type(detail: ErrorDetails) -> Any:
    ours = detail["type"] in ("unknown_name", "unknown_tag", "no_tag", "bad_object")
    return (
        PydanticCustomError(detail["type"], detail["msg"], detail.get("ctx"))
        if ours
        else detail["type"]
    )


def checked(model: type[M], values: dict[str, Any], write: Callable[[Location], str]) -> M:
    """Validate values as a model.

    :param write: Writes the start of an error about a place, up to the value.
    :raises SpecError: Values are wrong; the text has one line for each.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SpecError(
            "\n".join(explain(detail, model, write) for detail in findings(error))
        ) from None


def findings(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors without duplicates."""
    details = error.errors(include_url=False)
    entries = {detail["loc"][:-1] for detail in details}
    # An array with a wrong entry is also counted as too short, as if the entry were not there.
    return [
        detail
        for detail in details
        if not (detail["type"] == "too_short" and detail["loc"] in entries)
    ]


def explain(
    detail: ErrorDetails,
    root: type[BaseModel],
    write: Callable[[Location], str] = lambda place: path_of(place) + " =",
) -> str:
    """Describe an error: the key, its value, what it must be, and the nearest valid one.

    :param root: The model that validates.
    :param write: Writes the start of an error about a place, up to the value.
    """
    place, model = _resolve(detail["loc"], root)
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return unknown(place, list(model.model_fields), _holds_tables(model))
        case "missing":
            return (
                f"table [{place[0]}] is missing"
                if _holds_tables(model)
                else f"{path_of(place)} is missing"
            )
        case "no_tag":
            return f"{path_of(place)}.name is missing: must be {options(context['known'])}"
        case "unknown_tag":
            return wrong(
                write([*place, "name"]), context["tag"], options(context["known"]), context["known"]
            )
        case "unknown_name":
            return wrong(
                write(place), value, options([*context["known"], OTHERS]), context["known"]
            )
        case "bad_object":
            return f"{write(place)} {show(value)}: {context['text']}"
        case "value_error":  # our own validators: their texts start with the key
            return f"{path_of(place)}.{context['error']}" if place else str(context["error"])
        case "string_pattern_mismatch":
            return wrong(write(place), value, f"a string that matches {context['pattern']}")
        case "literal_error":
            known = [str(each) for each in _literals(_field(model, place).annotation)]
            return wrong(write(place), value, options(known), known)
        case _:
            noun = (
                None if kind == "float_type" and type(value) is int else NOUNS.get(kind)
            )  # one that no double can hold
            length = LENGTHS[kind][1].format(context[LENGTHS[kind][0]]) if kind in LENGTHS else None
            text = noun or _bounds(model, place) or length or detail["msg"]
            if kind == "finite_number" and not (" to " in text or "at most" in text):
                text += ", finite"
            return wrong(write(place), value, text)


def _resolve(location: Location, root: type[BaseModel]) -> tuple[list[str | int], type[BaseModel]]:
    """Return a place without the names of registries' models, and the model of its last key."""
    place: list[str | int] = []
    model, rest = root, list(location)
    while rest:
        place.append(part := rest.pop(0))
        field = model.model_fields.get(str(part))
        if field is None or not rest:
            break
        tags = [each for each in field.metadata if isinstance(each, Tagged)]
        if tags and isinstance(rest[0], str):
            model = tags[0].registry[str(rest.pop(0))]
        elif inner := next(
            (kind for kind in _parts(field.annotation) if issubclass(kind, BaseModel)), None
        ):
            model = inner
        else:
            break
    return place + rest, model


def _parts(annotation: Any) -> Iterator[type]:
    for kind in (annotation, *typing.get_args(annotation)):  # a table, or a table or None
        if isinstance(kind, type):
            yield kind


def _field(model: type[BaseModel], place: Location) -> FieldInfo:
    return model.model_fields[[part for part in place if isinstance(part, str)][-1]]


def _bounds(model: type[BaseModel], place: Location) -> str | None:
    """Return the range of a number, or of the entries of an array of numbers."""
    names = [part for part in place if isinstance(part, str)]
    if not names or names[-1] not in model.model_fields:
        return None
    field = _field(model, place)
    constraints = list(field.metadata)
    if place and isinstance(place[-1], int):
        entry = typing.get_args(field.annotation)[0]
        constraints = [
            c for meta in getattr(entry, "__metadata__", ()) for c in getattr(meta, "metadata", ())
        ]
    return _range(constraints)


def _range(constraints: Sequence[Any]) -> str | None:
    found = {type(constraint): constraint for constraint in constraints}
    if Ge in found and Le in found:
        return f"{found[Ge].ge} to {found[Le].le}"
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


def allowed(field: FieldInfo) -> str | None:
    """Return what a field allows, for a help text; None if its type says everything."""
    if any(isinstance(constraint, Named) for constraint in field.metadata):
        return options([*choices(field), OTHERS])
    return options(names) if (names := choices(field)) else _range(field.metadata)


def choices(field: FieldInfo) -> list[str]:
    """Return the names that a field allows; empty if it does not take names."""
    for constraint in field.metadata:
        if isinstance(constraint, Named):
            return constraint.names
    return [str(value) for value in _literals(field.annotation)]


def _literals(kind: Any) -> Iterator[Any]:
    if typing.get_origin(kind) is Literal:
        yield from typing.get_args(kind)
    elif typing.get_origin(kind) in (tuple, typing.Union, types.UnionType):
        for part in typing.get_args(kind):
            yield from _literals(part)


def _holds_tables(model: type[BaseModel]) -> bool:
    return any(
        issubclass(kind, BaseModel)
        for field in model.model_fields.values()
        for kind in _parts(field.annotation)
    )


def unknown(place: Location, known: Sequence[str], is_table: bool = False) -> str:
    """Write an error about an unknown key: its present name if it was renamed, or the known
    keys.
    """
    noun, shown = ("table", f"[{path_of(place)}]") if is_table else ("key", path_of(place))
    name = str(place[-1])
    if (now := renamed(name)) in known:
        return f"unknown {noun} {shown}: renamed to {now}"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown {noun} {shown}: must be {options(known)}{hint}"


def wrong(begin: str, value: Any, allowed: str, known: Sequence[str] | None = None) -> str:
    """Write an error: its start, the value, what it must be, and the nearest valid one."""
    near = difflib.get_close_matches(value, known, n=1) if known and isinstance(value, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{begin} {show(value)}: must be {allowed}{hint}"


def path_of(place: Location) -> str:
    """Write a place as TOML does."""
    path = ""
    for part in place:
        if isinstance(part, str):
            part = part if _BARE.fullmatch(part) else cut(json.dumps(part))  # as TOML quotes keys
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def options(values: Sequence[str]) -> str:
    """List values with "or" before the last."""
    return ", ".join(values[:-1]) + " or " + values[-1] if len(values) > 1 else values[0]


def show(value: Any, level: int = 0) -> str:
    """Write a value as TOML does, on one line; a long or deep one is cut off."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return cut(json.dumps(value, ensure_ascii=False))
        case list() | dict() if level == DEEPEST:
            return "..."
        case list():
            return cut(f"[{', '.join(show(entry, level + 1) for entry in value)}]")
        case dict():
            entries = (
                f"{path_of([str(key)])} = {show(entry, level + 1)}" for key, entry in value.items()
            )
            return cut(f"{{{', '.join(entries)}}}")
        case int() if value.bit_length() > LONGEST:
            return f"{'-' * (value < 0)}2^{value.bit_length() - 1} and more"
        case _:
            return cut(str(value))
