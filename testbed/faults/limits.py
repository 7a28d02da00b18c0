"""Limits: the rate of a host's link, and the queue before it. Pure.

Where frames pass the stack, a token bucket filter (``tbf``, net/sched/sch_tbf.c) shapes them:
*down* at the switch's port towards the host, *up* at the host's own ``eth0``. A queue needs a place
where frames leave, and the switch's port has none for those that come in; a real host queues at its
own card, too, so that its TCP feels the queue fill.

Frames that XDP redirects meet no qdisc. For those the fault programs keep a token bucket (``struct
fault_limit`` of ``bpf/include/impair.h``): what it holds passes at once, what is beyond it is
dropped. That polices, where ``tbf`` shapes. A frame that is dropped on its way down has used its
sender's rate up, as on a wire.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from testbed.core.errors import SpecError
from testbed.faults.events import Hosts
from testbed.faults.units import parse_bytes, parse_rate
from testbed.kernel.abi import Struct
from testbed.plan import MIN_MTU, FabricPlan, HostPlan

__all__ = ["Direction", "Limit", "bucket_table", "each_limited", "tbf_options"]

T = TypeVar("T")

Direction = Literal["up", "down"]

LEAST_RATE = 64e3
MOST_RATE = 30e9  # tc's tables count bytes in 32 bits
MOST_QUEUE = 64 << 20
_ETHERNET = 14
_BURST = 1e-3  # seconds: what tbf may send at once, so that its timer need not fire for every frame


def _text(parse: Callable[[str], T]) -> BeforeValidator:
    """Read a value with ``parse``; any error quotes the field's description."""

    def read(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError
        try:
            return parse(value)
        except SpecError:
            raise ValueError from None

    return BeforeValidator(read)


class Limit(BaseModel):
    """The rate at which hosts send (``up``), are sent to (``down``), or each of both, at most.

    The description of a field is what it allows; errors quote it.

    :param hosts: Their names; each has a limit of its own.
    :param rate: Bits per second, Ethernet headers included.
    :param queue: Bytes that may wait, or under XDP: that may come at once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    action: Literal["limit"] = "limit"
    hosts: Hosts = Field(description="hosts such as h2, several by comma, each once")
    direction: Literal["up", "down", "both"] = Field("both", description="up, down or both")
    rate: Annotated[float, _text(parse_rate)] = Field(
        ge=LEAST_RATE,
        le=MOST_RATE,
        description="a rate with a unit, such as 100mbit (whole bits), from 64kbit to 30gbit",
    )
    queue: Annotated[int, _text(parse_bytes)] = Field(
        65536,
        ge=MIN_MTU,
        le=MOST_QUEUE,
        description=(
            "a size with a unit, such as 64KiB (whole bytes), of a frame at least and 64MiB at most"
        ),
    )

    @property
    def directions(self) -> tuple[Direction, ...]:
        """One or two."""
        return ("up", "down") if self.direction == "both" else (self.direction,)


def tbf_options(limit: Limit, mtu: int) -> tuple[str, ...]:
    """Return the words behind ``tc qdisc add dev DEV root``.

    :param mtu: Of the link, bytes.
    """
    burst = max(2 * (mtu + _ETHERNET), int(limit.rate / 8 * _BURST))
    return ("tbf", "rate", f"{limit.rate:.0f}bit", "burst", f"{burst}b", "limit", f"{limit.queue}b")


def bucket_table(limits: Sequence[Limit], plan: FabricPlan) -> dict[int, bytes]:
    """Return the elements of the fault programs' map ``limits``: 2 * rank for what a host sends, 1
    more for what it is sent.

    The bucket of a receiver is in the switch of the sender.

    :raises SpecError: As :func:`each_limited`, or ``down`` in a fabric where senders are at several
        switches.
    """
    table = {}
    for limit, host, direction in each_limited(limits, plan):
        if direction == "down" and len({other.switch for other in plan.hosts}) > 1:
            raise SpecError(
                f"limit of {host.name}: direction = {limit.direction}: must be up, since under XDP"
                " senders at different switches would not share the rate"
            )
        burst = round(limit.queue * 8e9 / limit.rate)
        table[2 * host.rank + (direction == "down")] = bytes(
            Struct("fault_limit", rate=round(limit.rate), burst=burst)
        )
    return table


def each_limited(
    limits: Sequence[Limit], plan: FabricPlan
) -> Iterator[tuple[Limit, HostPlan, Direction]]:
    """Yield what is limited, one direction of a host's link at a time.

    :raises SpecError: A host is not there, has two limits of one direction, or its queue has no
        room for a frame.
    """
    seen = set()
    for limit in limits:
        for name in limit.hosts:
            host = plan.host(name)
            for direction in limit.directions:
                if (name, direction) in seen:
                    raise SpecError(
                        f"limit of {name}: direction = {direction}: there are two: must be one per"
                        " direction"
                    )
                seen.add((name, direction))
                if limit.queue < plan.mtu + _ETHERNET:
                    frame = plan.mtu + _ETHERNET
                    raise SpecError(
                        f"limit of {name}: queue = {limit.queue} B: must be at least a frame,"
                        f" {frame} B"
                    )
                yield limit, host, direction
