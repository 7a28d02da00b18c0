"""Rules: which frames, with which probability, and what happens to them. One model per action."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from testbed.comm.group import MAX_GROUP_ID
from testbed.core.errors import SpecError
from testbed.core.renamed import renamed
from testbed.faults.identity import KINDS
from testbed.faults.units import parse_seconds
from testbed.kernel.abi import constant, dtype
from testbed.plan import NAME

__all__ = [
    "MAX_COPIES",
    "MAX_RULES",
    "Burst",
    "Corrupt",
    "Delay",
    "Drop",
    "Duplicate",
    "PacketRule",
    "Range",
    "Reorder",
    "Rule",
    "check_number",
    "describe",
]

MAX_RULES = constant("FATE_MAX_RULES")
MAX_BYTE, MAX_SHORT, MAX_WORD = (
    2 ** (8 * dtype("fault_packet")[name].itemsize) - 1 for name in ("hop", "attempt", "chunk")
)
MAX_COPIES = constant("FATE_MAX_COPIES")
MAX_BITS = constant("FATE_MAX_BITS")
MAX_BEHIND = 1024
MAX_DELAY = 60.0
# with FATE_LOOKBACK of bpf/shared/fault_abi.h, one state in 10**9 is drawn anew instead of found
LEAST_MIXING = 0.02

_LINK = re.compile(rf"(\*|{NAME})->(\*|{NAME})")


class Range(NamedTuple):
    """Numbers from ``first`` to ``last``, both included."""

    first: int = 0
    last: int = MAX_WORD


def _links(value: object) -> tuple[tuple[str, str], ...]:
    matches = (
        [_LINK.fullmatch(word) for word in value.split(",")] if isinstance(value, str) else [None]
    )
    links = tuple((match[1], match[2]) for match in matches if match)
    # No frame travels from a host to itself.
    if not all(matches) or any(sender == receiver != "*" for sender, receiver in links):
        raise ValueError
    return links


def _kinds(value: object) -> tuple[str, ...]:
    names = tuple(value.split(",")) if isinstance(value, str) else ()
    if not names or not set(names) <= KINDS.keys():
        raise ValueError
    return names


def _range(value: object, last: int) -> Range:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    match = re.fullmatch(r"([0-9]+)(?:\.\.([0-9]+))?", value) if isinstance(value, str) else None
    if not match:
        raise ValueError
    found = Range(int(match[1]), int(match[2] or match[1]))
    if found.first > found.last or found.last > last:
        raise ValueError
    return found


def _seconds(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError
    try:
        return parse_seconds(value)
    except SpecError:
        raise ValueError from None


Links = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_links)]
Kinds = Annotated[tuple[str, ...], BeforeValidator(_kinds)]
Group = Annotated[Range, BeforeValidator(partial(_range, last=MAX_GROUP_ID))]
Word = Annotated[Range, BeforeValidator(partial(_range, last=MAX_WORD))]
Short = Annotated[Range, BeforeValidator(partial(_range, last=MAX_SHORT))]
Byte = Annotated[Range, BeforeValidator(partial(_range, last=MAX_BYTE))]
Seconds = Annotated[float, BeforeValidator(_seconds)]

_NUMBERS = "a number or a range such as 3..9, up to {}"
_PROBABILITY = "a number from 0 to 1"
_TIME = "a time with a unit, such as 200ms, of whole nanoseconds and at most a minute"


class Rule(BaseModel):
    """The keys that all rules have: which frames they match. A missing key matches every frame.

    The description of a field says what it must be; errors quote it.

    :param link: Sender and receiver, by name; ``*`` is any host.
    :param p: Probability with which a matching frame meets the rule.
    :param backend: What carries the rule out: the fault engine, or, within its limits, the kernel's
        network emulator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    link: Links = Field(
        (("*", "*"),),
        description="links of two hosts such as h1->h2, *->h2 or h1->*, separated by commas",
    )
    kind: Kinds | None = Field(None, description=f"any of {', '.join(KINDS)}, separated by commas")
    group: Group = Field(Range(), description=_NUMBERS.format(MAX_GROUP_ID))
    seq: Word = Field(Range(), description=_NUMBERS.format(MAX_WORD))
    chunk: Word = Field(Range(), description=_NUMBERS.format(MAX_WORD))
    hop: Byte = Field(Range(), description=_NUMBERS.format(MAX_BYTE))
    attempt: Short = Field(Range(), description=_NUMBERS.format(MAX_SHORT))
    p: float = Field(1.0, ge=0, le=1, description=_PROBABILITY)
    backend: Literal["engine", "netem"] = Field("engine", description="engine or netem")


class Drop(Rule):
    """The frame is lost."""

    action: Literal["drop"] = "drop"


class Duplicate(Rule):
    """The frame arrives ``copies`` more times."""

    action: Literal["duplicate"] = "duplicate"
    copies: int = Field(
        1, ge=1, le=MAX_COPIES, description=f"a whole number from 1 to {MAX_COPIES}"
    )


class Corrupt(Rule):
    """Bits after the start of the UDP or TCP header are flipped; checksums stay unchanged."""

    action: Literal["corrupt"] = "corrupt"
    bits: int = Field(1, ge=1, le=MAX_BITS, description=f"a whole number from 1 to {MAX_BITS}")


class Delay(Rule):
    """The frame, and each of its copies, arrives later.

    :param delay: Seconds: the constant; the mean of ``uniform`` and ``normal``; the minimum of
        ``pareto``.
    :param jitter: Seconds: half the width of ``uniform``, the standard deviation of ``normal``,
        what ``pareto`` adds on average.
    """

    action: Literal["delay"] = "delay"
    delay: Seconds = Field(ge=0, le=MAX_DELAY, description=_TIME)
    jitter: Seconds = Field(0.0, ge=0, le=MAX_DELAY, description=_TIME)
    distribution: Literal["constant", "uniform", "normal", "pareto"] | None = Field(
        None, description="constant, uniform, normal or pareto"
    )

    @model_validator(mode="after")
    def _jitter_has_a_shape(self) -> "Delay":
        if self.distribution == "constant" and self.jitter:
            raise ValueError(
                "distribution = constant: must be uniform, normal or pareto with jitter"
            )
        if self.distribution not in (None, "constant") and not self.jitter:
            raise ValueError(f"jitter: is missing, which distribution {self.distribution} needs")
        return self


class Reorder(Rule):
    """The frame lets the ``behind`` next frames of its link pass first, but waits no longer than
    ``within`` seconds.
    """

    action: Literal["reorder"] = "reorder"
    behind: int = Field(
        1, ge=1, le=MAX_BEHIND, description=f"a whole number from 1 to {MAX_BEHIND}"
    )
    within: Seconds = Field(0.1, gt=0, le=MAX_DELAY, description=_TIME)


class Burst(Rule):
    """Losses in bursts (Gilbert, 1960; Elliott, 1963): a stream is good or bad, and a frame of a
    bad one is lost with probability ``p``.

    :param enter: Probability that the stream turns bad from one frame to the next.
    :param leave: Probability that it turns good again: bursts have 1 / leave frames on average.
    """

    action: Literal["burst"] = "burst"
    enter: float = Field(gt=0, lt=1, description="a number between 0 and 1")
    leave: float = Field(gt=0, lt=1, description="a number between 0 and 1")

    @model_validator(mode="after")
    def _states_mix(self) -> "Burst":
        if not LEAST_MIXING <= self.enter + self.leave <= 1:
            raise ValueError(
                f"enter + leave = {self.enter + self.leave:g}: must be {LEAST_MIXING} to 1"
            )
        return self


PacketRule = Annotated[
    Drop | Duplicate | Corrupt | Delay | Reorder | Burst, Field(discriminator="action")
]


def check_number(rules: Sequence[object]) -> None:
    """Check that the programs' table has room for rules.

    :raises SpecError: It does not.
    """
    if len(rules) > MAX_RULES:
        raise SpecError(f"faults: {len(rules)} rules on packets: must be at most {MAX_RULES}")


def describe(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Pydantic's errors about a rule: key, value, and what it must be by its field's description.

    :param model: The rule's model.
    """
    return [_finding(dict(detail), model) for detail in error.errors(include_url=False)]


def _finding(detail: dict[str, Any], model: type[BaseModel]) -> str:
    # The union puts its tag first.
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    key = next((str(part) for part in detail["loc"][1:] if part in fields), None)
    if detail["type"] == "extra_forbidden":
        name, known = str(detail["loc"][-1]), _keys(model)
        if (now := renamed(name)) in known:
            return f"{name} is unknown: renamed to {now}"
        return f"{name} is unknown: must be one of {', '.join(known)}"
    if key is None:  # from a validator of the whole rule, whose text starts with the key
        return str(detail.get("ctx", {}).get("error", detail["msg"]))
    allowed = fields[key].description
    if detail["type"] == "missing":
        return f"{key} is missing: must be {allowed}"
    return f"{key} = {detail['input']}: must be {allowed}"


def _keys(model: type[BaseModel]) -> list[str]:
    """The keys that a fault's text may set, a rule's own first."""
    keys = [field.alias or name for name, field in model.model_fields.items() if name != "action"]
    return sorted(keys, key=lambda key: key in Rule.model_fields)
