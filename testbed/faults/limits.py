"""Limits: the rate of a host's link, and the queue before it. Pure.

Where frames pass through the stack, a token bucket filter (``tbf``, net/sched/sch_tbf.c) shapes
them: *down* at the switch's port towards the host, *up* at the host's own ``eth0``. A queue needs
an egress, which the switch's port does not have for incoming frames; a real host also queues at its
own card, so that its TCP notices the queue filling.

Frames that XDP redirects bypass qdiscs. For those the fault programs have a token bucket (``struct
fault_limit`` of ``bpf/shared/fault_abi.h``): frames within it pass at once, others are dropped. So
it polices, whereas ``tbf`` shapes. A frame that is dropped on its way down has used up its sender's
rate, as on a wire.
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
_BURST = (
    1e-3  # seconds: what tbf may send in one burst, so that its timer need not fire for every frame
)


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
    """The maximum rate at which hosts send (``up``), receive (``down``), or each of both.

    The description of a field says what it must be; errors quote it.

    :param hosts: Their names; each has a limit of its own.
    :param rate: Bits per second, Ethernet headers included.
    :param queue: Bytes that may wait; under XDP, the largest burst.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    action: Literal["limit"] = "limit"
    hosts: Hosts = Field(description="hosts such as h2, separated by commas, each once")
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
    """Return the arguments after ``tc qdisc add dev DEV root``.

    :param mtu: MTU of the link, bytes.
    """
    burst = max(2 * (mtu + _ETHERNET), int(limit.rate / 8 * _BURST))
    return ("tbf", "rate", f"{limit.rate:.0f}bit", "burst", f"{burst}b", "limit", f"{limit.queue}b")


def bucket_table(limits: Sequence[Limit], plan: FabricPlan) -> dict[int, bytes]:
    """Return the elements of the fault programs' map ``limits``: 2 * rank for what a host sends, 2
    * rank + 1 for what it receives.

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
    """Yield the limits, one direction of a host's link at a time.

    :raises SpecError: A host does not exist, has two limits of one direction, or its queue has no
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
