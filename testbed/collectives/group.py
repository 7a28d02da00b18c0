"""Who takes part in a collective, and on what terms: `Member` and `GroupSpec`."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from testbed.errors import SpecError
from testbed.kernel.abi import constant
from testbed.protocol.wire import MAX_RANKS, Endpoint

__all__ = [
    "MAX_GAP",
    "MAX_GROUP_ID",
    "MAX_RANKS",
    "MAX_WINDOW",
    "Affinity",
    "GroupSpec",
    "Lanes",
    "Member",
    "OnOverflow",
    "RecoveryFrom",
    "make_groups",
]

Lanes = Literal["int16", "int32"]
OnOverflow = Literal["error", "saturate"]
Affinity = Literal["none", "rank"]
RecoveryFrom = Literal["origin", "upstream"]

MAX_WINDOW = 256
MAX_GAP = 4096
MAX_YIELDS = 10_000
MAX_GROUP_ID = constant("RING_MAX_GROUPS") - 1  # socket transports listen on a base port plus the group's id
MTU_RANGE = (576, 9000)  # RFC 791's least datagram; the largest jumbo frame in common use


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


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What one rank has to know to open a transport; equal on all ranks but for `rank`. Picklable.

    :param group_id: Tells groups that exist at once apart, 0..4095.
    :param cookie: 64-bit number drawn when the group forms: frames and connections that do not carry it are foreign.
    :param rank: The rank that this copy is for.
    :param members: All members, in rank order.
    :param lanes: Integer type of a quantized value (transports that do not quantize ignore it).
    :param mtu: Bytes of the IP packet that the links carry.
    :param capacity: Most float32 elements in one collective.
    :param window: Frames in flight that each owner keeps (in-kernel transports).
    :param recovery: Whom a rank asks for what it lacks (in-kernel transports): ``origin``, the chunk's owner, who sends the
        result, or sends the chunk round again; or ``upstream``, the rank before it, who sends again what it has sent: its
        input, a partial sum that it keeps, or the result.
    :param gap: Later frames of the same lane that must have come before the kernel asks for a missing one; 0: only the timer
        does.
    :param timeout: Seconds a collective may go without an answer before it ends with `CollectiveError`.
    :param on_overflow: What a value outside the quantization range does: an error, or clamp and count.
    :param affinity: ``rank`` pins each rank's process to CPU ``rank % cpus``; ``none`` pins nothing.
    :param yields: Times that a wait gives way to other processes before it sleeps (in-kernel all-reduces): sleep and
        interrupt cost more than a small collective takes, where all ranks come at once.
    :param rendezvous: Directory that all ranks can write (the run's), for transports that meet through files.
    :raises SpecError: A field is outside of what is allowed here.
    """

    group_id: int
    cookie: int
    rank: int
    members: tuple[Member, ...]
    lanes: Lanes = "int32"
    mtu: int = 1500
    capacity: int = 16 << 20
    window: int = 8
    recovery: RecoveryFrom = "upstream"
    gap: int = 1
    timeout: float = 10.0
    on_overflow: OnOverflow = "error"
    affinity: Affinity = "none"
    yields: int = 64
    rendezvous: str = ""

    def __post_init__(self) -> None:
        def require(held: bool, key: str, allowed: str) -> None:
            if not held:
                raise SpecError(f"group: {key} = {getattr(self, key)!r}: allowed is {allowed}")

        if not 1 <= len(self.members) <= MAX_RANKS:
            raise SpecError(f"group: {len(self.members)} members: allowed is 1..{MAX_RANKS}")
        if [member.rank for member in self.members] != list(range(len(self.members))):
            raise SpecError(f"group: members have ranks {[m.rank for m in self.members]}: allowed is 0..n-1 in order")
        if len({member.ip for member in self.members}) != len(self.members):
            raise SpecError("group: two members share an IP address")
        require(0 <= self.rank < len(self.members), "rank", f"0..{len(self.members) - 1}")
        require(0 <= self.group_id <= MAX_GROUP_ID, "group_id", f"0..{MAX_GROUP_ID}")
        require(0 <= self.cookie < 1 << 64, "cookie", "an unsigned 64-bit number")
        require(self.lanes in get_args(Lanes), "lanes", " or ".join(get_args(Lanes)))
        require(MTU_RANGE[0] <= self.mtu <= MTU_RANGE[1], "mtu", "{}..{}".format(*MTU_RANGE))
        require(0 <= self.capacity < 1 << 31, "capacity", "0..2^31-1 elements")
        require(1 <= self.window <= MAX_WINDOW, "window", f"1..{MAX_WINDOW} frames")
        require(self.recovery in get_args(RecoveryFrom), "recovery", " or ".join(get_args(RecoveryFrom)))
        require(0 <= self.gap <= MAX_GAP, "gap", f"0..{MAX_GAP} frames")
        require(0 <= self.yields <= MAX_YIELDS, "yields", f"0..{MAX_YIELDS}")
        require(0 < self.timeout <= 3600, "timeout", "more than 0, at most 3600 seconds")
        require(self.on_overflow in get_args(OnOverflow), "on_overflow", " or ".join(get_args(OnOverflow)))
        require(self.affinity in get_args(Affinity), "affinity", " or ".join(get_args(Affinity)))

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


def make_groups(hosts: Sequence[Any], *, group_id: int = 0, **options: Any) -> tuple[GroupSpec, ...]:
    """Make one `GroupSpec` a rank for a group of hosts.

    The cookie is drawn anew by every call, and not from a seed: generations begin with 1 in every group, so with the same
    cookie the frames of an earlier one would be good ones. Nothing that is measured depends on it.

    :param hosts: The group's hosts in rank order (`HostPlan`, or anything with `name`, `ip` and `mac`).
    :param options: Further fields of `GroupSpec`.
    :returns: The specs in rank order.
    :raises SpecError: As `GroupSpec`.
    """
    members = tuple(Member(rank, host.name, host.ip, host.mac) for rank, host in enumerate(hosts))
    first = GroupSpec(group_id, secrets.randbits(64), 0, members, **options)
    return tuple(replace(first, rank=member.rank) for member in members)
