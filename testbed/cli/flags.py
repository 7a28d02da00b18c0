"""Flags generated from models: one for each key, with the model's default, bounds and help text.

A verb takes a model as one parameter, already validated::

    @app.command()
    @flags.expand
    def up(fabric: Annotated[FabricOptions, flags.Of()] = FabricOptions()) -> None: ...
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo

from testbed.cli import options
from testbed.core.tables import Table, allowed, checked, choices

__all__ = ["Of", "expand", "flag"]


@dataclass(frozen=True)
class Of:
    """In the annotation of a verb's parameter, which is a model: its keys become flags, and the
    parameter's default provides theirs.

    :param omit: Keys without a flag.
    :param names: Flags that are called otherwise than their keys, as pairs of a key and its flag's
        name.
    """

    omit: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()

    def name(self, key: str) -> str:
        """Return a key's name as a parameter of the verb."""
        return dict(self.names).get(key, key)


def flag(key: str) -> str:
    """Return the flag of a key."""
    return f"--{key.replace('_', '-')}"


def expand(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb that takes the flags of the models in a verb's parameters (`Of`), and calls the
    verb with the models.

    :raises SpecError: From the returned verb, and from its ``check``, which only looks at values:
        one is wrong; the text names the flag, the value and what it must be.
    """
    signature = inspect.signature(verb, eval_str=True)
    models: dict[str, tuple[Table, dict[str, str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        found = [
            each
            for each in getattr(parameter.annotation, "__metadata__", ())
            if isinstance(each, Of)
        ]
        if not found:
            parameters.append(parameter)
            continue
        default: Table = parameter.default
        fields = type(default).model_fields
        names = {key: found[0].name(key) for key in fields if key not in found[0].omit}
        models[name] = default, names
        parameters += [
            _parameter(called, fields[key], _own(default, key)) for key, called in names.items()
        ]

    def make(given: dict[str, Any]) -> dict[str, Table]:
        made = {}
        for name, (default, names) in models.items():
            values = {
                **{key: _own(default, key) for key in type(default).model_fields},
                **{key: given.pop(called) for key, called in names.items()},
            }
            made[name] = checked(type(default), values, _place_writer(names))
        return made

    @functools.wraps(verb)
    def expanded(**given: Any) -> None:
        made = make(given)
        verb(**given, **made)

    expanded.check = lambda given: make(dict(given))  # type: ignore[attr-defined]
    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _own(default: Table, key: str) -> Any:
    """A key's value; None, where the table chooses that by itself, so that it may choose another
    with other options.
    """
    value = getattr(default, key)
    chosen = type(default).model_fields[key].default is None
    return None if chosen and value == getattr(type(default)(), key) else value


def _place_writer(names: dict[str, str]) -> Callable[[Sequence[str | int]], str]:
    """Return what writes the start of an error: the flag of the key that it is about."""
    return lambda place: f"{flag(names.get(str(place[0]), str(place[0])))}:"


def _parameter(key: str, field: FieldInfo, default: Any) -> inspect.Parameter:
    kind, optional = _kind(field.annotation)
    text = field.description or key
    names = choices(field)
    if range_ := None if names and all(name in text for name in names) else allowed(field):
        text += f" ({range_})"
    text = f"{text[:1].upper()}{text[1:]}."
    parser = {int: options.WHOLE, float: options.REAL}.get(kind)
    option = typer.Option(flag(key), parser=parser, help=text)
    value = kind | None if optional else kind
    annotation = Annotated[value, option]  # type: ignore[valid-type]  # made at run time
    return inspect.Parameter(
        key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
    )


def _kind(annotation: Any) -> tuple[Any, bool]:
    """Return the type of a flag's value, and whether it is optional."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (kind,) = (part for part in typing.get_args(annotation) if part is not type(None))
        return _kind(kind)[0], True
    return (str if typing.get_origin(annotation) is Literal else annotation), False
