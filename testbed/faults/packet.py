"""A frame's identity, which alone determines its fate. ``struct fault_packet``."""

from typing import Final, NamedTuple

from testbed.kernel.abi import constant
from testbed.protocol.wire import Kind, PinchKind

__all__ = ["FOREIGN", "KINDS", "Packet", "kind_name"]

FOREIGN: Final = constant("FAULT_FOREIGN")
"""Added to the IPv4 protocol's number, this is the kind of a frame other than the ring's."""

#: Kinds by the names that rules call them by.
KINDS: Final = {
    kind.name.lower(): int(kind) for kind in (*Kind, *PinchKind) if kind < Kind.DOORBELL
} | {
    "tcp": FOREIGN | constant("NET_PROTOCOL_TCP"),
    "udp": FOREIGN | constant("NET_PROTOCOL_UDP"),
    "icmp": FOREIGN | constant("NET_PROTOCOL_ICMP"),
}


class Packet(NamedTuple):
    """A frame's identity.

    :param sender: Rank of the host that sent it (:class:`testbed.plan.HostPlan`).
    :param receiver: Rank of the host that it is for.
    :param kind: For a ring frame, :class:`testbed.protocol.wire.Kind`; for others, 0x80 plus the
        IPv4 protocol's number.
    :param seq: For a ring frame, the collective; for others, the number of the flow among those of
        its sender and receiver, in order of appearance, from 0.
    :param chunk: For a ring frame, the chunk; for others, the index of the packet in its flow, from
        0.
    """

    sender: int
    receiver: int
    kind: int
    group: int = 0
    seq: int = 0
    chunk: int = 0
    hop: int = 0
    attempt: int = 0


def kind_name(kind: int) -> str:
    """The name of a kind in rules, or its number in hexadecimal."""
    return next((name for name, number in KINDS.items() if number == kind), f"{kind:#04x}")
