"""Files of packets, read back by scapy."""

import io

from scapy.utils import RawPcapNgReader

from testbed.capture.pcapng import INBOUND, OUTBOUND, Packet, Writer

NOW = 1_700_000_000_123_456_789


def test_what_is_written_is_read():
    file = io.BytesIO()
    writer = Writer(file, [("h1", "eth0 of h1"), ("s1:2", "s1-eth2 of s1")], 64, "testbed")
    sent = [
        Packet(NOW, 0, INBOUND, 5, b"12345"),
        Packet(NOW + 1, 1, OUTBOUND, 100, bytes(range(64))),
    ]
    writer.write(sent)
    writer.end(NOW + 2, {0: 3, 1: 0})
    file.seek(0)
    found = list(RawPcapNgReader(file))
    assert [data for data, _ in found] == [packet.data for packet in sent]
    for (_, seen), packet in zip(found, sent, strict=True):
        assert (seen.tshigh << 32 | seen.tslow, seen.tsresol) == (packet.time, 10**9)
        assert seen.wirelen == packet.length
        assert seen.direction == packet.direction
    assert [seen.ifname for _, seen in found] == [b"h1", b"s1:2"]
