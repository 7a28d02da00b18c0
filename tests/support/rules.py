"""Fault rules as text, such as ``drop p=0.01 link=h1->h2``, one per line."""

from typing import get_args

from pydantic import TypeAdapter, ValidationError

from testbed.core.errors import SpecError
from testbed.faults.rules import PacketRule, describe
from testbed.faults.units import split_words

__all__ = ["parse_rule"]

MODELS = {
    str(model.model_fields["action"].default): model for model in get_args(get_args(PacketRule)[0])
}


def parse_rule(text: str) -> PacketRule:
    """A rule.

    :raises SpecError: With a line per error: key, value, and which values are allowed.
    """
    action, keys = split_words(text)
    if action not in MODELS:
        raise SpecError(
            f"fault {text!r}: action {action!r} is unknown: must be one of {', '.join(MODELS)}"
        )
    try:
        return TypeAdapter(PacketRule).validate_python({"action": action, **keys})
    except ValidationError as error:
        raise SpecError(
            "\n".join(f"fault {text!r}: {line}" for line in describe(error, MODELS[action]))
        ) from None
