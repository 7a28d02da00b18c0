"""What hosts, links and switches cost in time. Times are in seconds, rates in bits per second."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ETHERNET_OVERHEAD", "Hardware", "HostCosts", "LinkModel", "SwitchModel"]

ETHERNET_OVERHEAD = 24
"""Bytes that a frame occupies on a wire besides those from the Ethernet header on: preamble and
delimiter 8, check sequence 4, gap 12 (IEEE 802.3).
"""


@dataclass(frozen=True)
class HostCosts:
    """What a host's CPUs spend.

    :param frame: Seconds that a program or the stack takes for a frame.
    :param byte: Seconds for each byte of its payload, which is summed or copied.
    :param wakeup: Seconds from an event to a sleeping process or an idle CPU that runs.
    :param syscall: Seconds of a system call without its data.
    :param prepare: Seconds for each byte of a tensor that is quantized, or dequantized.
    :param cores: CPUs of a host: one runs its programs, another its process, if it has two.
    :param shared: All hosts share these CPUs, as network namespaces of one machine do.
    """

    frame: float = 0.0
    byte: float = 0.0
    wakeup: float = 0.0
    syscall: float = 0.0
    prepare: float = 0.0
    cores: int = 2
    shared: bool = False


@dataclass(frozen=True)
class LinkModel:
    """One direction of a link, and the queue in front of it.

    :param rate: Bits per second.
    :param delay: Propagation, seconds.
    :param queue: Bytes that the queue holds, including the frame that is being sent; a frame that
        does not fit is dropped (tail drop).
    :param overhead: Bytes that each frame takes besides its own.
    """

    rate: float = 10e9
    delay: float = 0.0
    queue: float = float("inf")
    overhead: int = ETHERNET_OVERHEAD

    def seconds(self, length: int) -> float:
        """How long a frame of ``length`` bytes, from the Ethernet header on, occupies the link."""
        return (length + self.overhead) * 8 / self.rate


@dataclass(frozen=True)
class SwitchModel:
    """A store-and-forward switch with output queues.

    :param delay: Seconds from a frame's arrival to its output queue.
    :param buffer: Bytes that all of its output queues share.
    """

    delay: float = 0.0
    buffer: float = float("inf")


@dataclass(frozen=True)
class Hardware:
    """All models of a simulation.

    :param source: Where the figures are from.
    """

    host: HostCosts = field(default_factory=HostCosts)
    link: LinkModel = field(default_factory=LinkModel)
    switch: SwitchModel = field(default_factory=SwitchModel)
    source: str = "given"
