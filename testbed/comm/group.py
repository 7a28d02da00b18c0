"""The members and options of a group: `Member` and `GroupSpec`."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from testbed.comm.options import CollectiveOptions, Lanes, RecoveryFrom
from testbed.core.errors import SpecError
from testbed.core.tables import explain, findings, path_of
from testbed.kernel.abi import constant
from testbed.plan import MAX_HOSTS, MAX_MTU, MIN_MTU
from testbed.protocol.wire import Endpoint

__all__ = ["MAX_GROUP_ID", "GroupSpec", "Lanes", "Member", "RecoveryFrom", "make_groups"]

MAX_GROUP_ID = (
    constant("RING_MAX_GROUPS") - 1
)  # socket backends listen on a base port plus the group's id


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a group and where it lives.

    :param rank: Its rank in this group, not its host's number in the fabric.
    :param name: Its host's name.
    :param ip: Its host's IPv4 address, dotted.
    :param mac: Its host's MAC address, colon-separated.
    """

    rank: int
    name: str
    ip: str
    mac: str

    @property
    def endpoint(self) -> Endpoint:
        """Its addresses."""
        return Endpoint(self.mac, self.ip)


class GroupSpec(CollectiveOptions):
    """What one rank has to know to open a backend; equal on all ranks except for `rank`. Picklable.

    :param group_id: Distinguishes groups that exist at the same time.
    :param cookie: Random 64-bit number drawn when the group forms: frames and connections without
        it are foreign.
    :param rank: The rank that this copy is for.
    :param members: All members, in rank order.
    :param mtu: Bytes of the IP packet that the links carry.
    :param capacity: Maximum number of float32 elements in one collective.
    :param yields: Times that a wait of an in-kernel all-reduce yields to other processes before it
        sleeps: if all ranks enter at once, sleep and interrupt cost more.
    :param rendezvous: Directory that all ranks can write (the run's), for backends that meet
        through files.
    :raises SpecError: A field is out of range.
    """

    group_id: int = Field(ge=0, le=MAX_GROUP_ID)
    cookie: int = Field(ge=0, lt=1 << 64)
    rank: int
    members: tuple[Member, ...]
    mtu: int = Field(default=1500, ge=MIN_MTU, le=MAX_MTU)
    capacity: int = Field(default=16 << 20, ge=0, lt=1 << 31)
    yields: int = Field(default=256, ge=0, le=10_000)
    rendezvous: str = ""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            lines = (
                explain(each, GroupSpec, lambda place: f"{path_of(place)} =")
                for each in findings(error)
            )
            raise SpecError("\n".join(f"group: {line}" for line in lines)) from None

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        if not 1 <= len(self.members) <= MAX_HOSTS:
            raise ValueError(f"{len(self.members)} members: must be 1..{MAX_HOSTS}")
        if [member.rank for member in self.members] != list(range(len(self.members))):
            raise ValueError(
                f"members have ranks {[m.rank for m in self.members]}: must be 0 to n-1 in order"
            )
        if len({member.ip for member in self.members}) != len(self.members):
            raise ValueError("two members share an IP address")
        if not 0 <= self.rank < len(self.members):
            raise ValueError(f"rank = {self.rank}: must be 0..{len(self.members) - 1}")
        return self

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    @property
    def me(self) -> Member:
        """This rank's member."""
        return self.members[self.rank]

    @property
    def right(self) -> Member:
        """The next member on the ring, to which this rank sends."""
        return self.members[(self.rank + 1) % self.size]

    @property
    def left(self) -> Member:
        """The previous member on the ring, from which this rank receives."""
        return self.members[(self.rank - 1) % self.size]


def make_groups(
    hosts: Sequence[Any], *, group_id: int = 0, **options: Any
) -> tuple[GroupSpec, ...]:
    """Make one `GroupSpec` per rank for a group of hosts.

    Every call draws a new cookie, independent of any seed: sequence numbers start at 1 in every
    group, so with the same cookie the frames of an earlier group would be valid. No measurement
    depends on it.

    :param hosts: The group's hosts in rank order (`HostPlan`, or anything with `name`, `ip` and
        `mac`).
    :param options: Further fields of `GroupSpec`.
    :returns: The specs in rank order.
    :raises SpecError: As in `GroupSpec`.
    """
    members = tuple(Member(rank, host.name, host.ip, host.mac) for rank, host in enumerate(hosts))
    first = GroupSpec(
        group_id=group_id, cookie=secrets.randbits(64), rank=0, members=members, **options
    )
    return tuple(first.model_copy(update={"rank": member.rank}) for member in members)
