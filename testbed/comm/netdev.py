"""What a host's network device and TCP have sent, read from this process's network namespace."""

from pathlib import Path

from testbed.comm.collective import Counters
from testbed.core.errors import FabricError

__all__ = ["read_counters"]


def read_counters(ifname: str) -> Counters:
    """Read a device's cumulative counters of sent frames, and TCP's of retransmitted segments.

    ``/proc/net`` shows the reader's own network namespace, whatever is mounted on /sys. With TSO, a
    socket buffer that the device takes in one piece counts as one packet with one header.

    :raises FabricError: The namespace has no such device.
    """
    for line in Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == ifname:
            fields = numbers.split()
            return Counters(
                packets=int(fields[9]),
                wire_bytes=int(fields[8]),
                retransmissions=_segments_sent_again(),
            )
    raise FabricError(f"device {ifname!r} does not exist in this network namespace")


def _segments_sent_again() -> int:
    names, values = [
        line.split()
        for line in Path("/proc/self/net/snmp").read_text(encoding="utf-8").splitlines()
        if line[:4] == "Tcp:"
    ]
    return int(values[names.index("RetransSegs")])
