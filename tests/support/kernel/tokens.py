"""Ranks of an exchange by tokens: their programs in the kernel, and the reference model beside
each.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple

import numpy as np

from testbed.kernel import XDP_DROP, XDP_REDIRECT, BpfObject
from testbed.kernel.abi import Struct, dtype
from testbed.protocol.pinch.packet import NOBODY, Packet
from testbed.protocol.token.memory import COUNTERS, FLAGS, Config, Slot, pairs_of
from testbed.protocol.token.process import Process
from testbed.protocol.token.rank import Rank
from testbed.protocol.wire import Endpoint, Frame, decode, encode, net_peer

__all__ = ["ROOM", "SHAPES", "Member", "Ringing", "bytes_of", "configs", "endpoint", "parse"]

ROOM = 8  # words
RANKS = 3  # at most
COOKIE, GROUP, TAG = 0x1234_5678_9ABC_DEF0, 7, 0x5A5A
WORDS = ("ready", "next", "returned", "stalled")
CONTROL = ("open", "entered", "waits", "gone", "late", "ended", "foreign", *WORDS)
LINK = 1  # an interface that there always is; nothing is sent
PEER = ("heard", "news", "answers", "at", "waits", "tokens")
SHAPES = {
    "two": ([[0, 3], [2, 0]], 1),
    "one way": ([[0, 4], [1, 0]], 1),
    "three": ([[0, 2, 1], [3, 0, 0], [1, 0, 0]], 1),
    "a doorbell": ([[0, 9, 2], [5, 0, 0], [1, 0, 0]], 2),
}
"""Frames of each rank for each other one; and how many for each that returns."""
ENDS = ("link", "doorbell")


def endpoint(rank: int) -> Endpoint:
    return Endpoint(f"02:00:0a:00:00:{rank + 1:02x}", f"10.0.0.{rank + 1}")


def configs(shape: list[list[int]], stride: int) -> Iterator[Config]:
    for rank in range(len(shape)):
        pairs = pairs_of((row[rank], away) for row, away in zip(shape, shape[rank], strict=True))
        yield Config(COOKIE, rank, len(shape), GROUP, TAG, ROOM, pairs, window=2, stride=stride)


def parse(data: bytes) -> Packet | None:
    """A frame as the model sees it; None: one that the program does not take for ours."""
    frame = decode(data)
    if frame is None or not len(frame.payload):
        return None
    ranks = {endpoint(rank).ip: rank for rank in range(RANKS)}
    ends = (ranks.get(end.ip, NOBODY) for end in (frame.source, frame.destination))
    return Packet(*ends, *astuple(frame.header), body=tuple(frame.payload.tolist()))


def bytes_of(packet: Packet, trailer: bytes = b"") -> bytes:
    """The bytes of a frame, the rest of its buffer included."""
    ends = (
        Endpoint("00:00:00:00:00:00", "0.0.0.0") if rank == NOBODY else endpoint(rank)
        for rank in (packet.source, packet.destination)
    )
    words = np.array(packet.body, np.uint64)
    return encode(Frame(packet.header, words, *ends, trailer), whole=True)


class Ringing(Process):
    """A process whose doorbell's program is compared with the reference model."""

    def __init__(self, member: "Member") -> None:
        super().__init__(member.rank)
        self.member = member

    def emit(self, blank: Packet) -> Packet | None:
        if self.rank.config.stride == 1:
            return super().emit(blank)
        self.member.write()
        return self.member.ring(bytes_of(blank))


class Member:
    """One rank: its program in the kernel, and the reference model."""

    def __init__(self, config: Config, stack: ExitStack, cpu: int) -> None:
        self.rank = Rank(config, cpu=cpu)
        self.process = Ringing(self)
        made = Struct(
            "token_config",
            cookie=COOKIE,
            rank=config.rank,
            ranks=config.ranks,
            group=GROUP,
            tag=TAG,
            room=8 * ROOM,
            slots=config.slots,
            outs=config.outs,
            partners=len(config.partners),
            largest=8 * ROOM if config.outs else 0,
            link=LINK,
            window=config.window,
            stride=config.stride,
        )
        for other in range(config.ranks):
            for name, value in config.pairs[other]._asdict().items():
                made.pairs[other][name] = value
            made.peers[other] = net_peer(endpoint(config.rank), endpoint(other))
        sizes = {
            "token_outs": 2 * config.outs,
            "token_order": 2 * config.outs,
            "token_slots": 2 * config.slots,
            "token_payloads": 2 * config.outs,
            "token_landing": 2 * config.slots,
        }
        buffers = {"token_payloads": 8 * ROOM, "token_landing": 8 * ROOM}
        loaded = stack.enter_context(BpfObject("tokens", made, sizes, buffers))
        maps = loaded.maps
        self.program, self.doorbell = (loaded.programs[f"token_{end}"] for end in ENDS)
        self.counters = maps["token_counters"]
        self.control = Struct(maps["token_control"].view(dtype("token_control")))
        self.outs = maps["token_outs"].view(dtype("token_out")).reshape(-1)
        self.slots = maps["token_slots"].view(dtype("token_slot")).reshape(-1)
        self.peers = maps["token_peers"].view(dtype("token_peer")).reshape(-1)
        self.payloads = maps["token_payloads"].view().reshape(-1, ROOM)
        self.landing = maps["token_landing"].view().reshape(-1, ROOM)
        self.order = maps["token_order"].view().reshape(-1)

    def begin(self, seq: int) -> None:
        """Forget everything, and open an exchange."""
        self.rank.__init__(self.rank.config, cpu=self.rank.cpu)  # type: ignore[misc]
        self.process.seq = 0
        self.counters.update(0, bytes(len(self.counters.lookup(0))))
        for table in (self.outs, self.slots, self.peers):
            table[:] = np.zeros(1, table.dtype)
        self.process.open(seq)
        self.write()

    def counted(self) -> dict[str, int]:
        """All counters, summed over CPUs."""
        table = np.frombuffer(self.counters.lookup(0), np.uint64).reshape(-1, len(COUNTERS))
        return dict(zip(COUNTERS, table.sum(axis=0).tolist(), strict=True))

    def ring(self, data: bytes) -> Packet | None:
        """Let both take an empty frame at the doorbell, and compare what they make of it."""
        packet = parse(data)
        if packet is None:  # the dispatcher drops it
            return None
        run, filled = self.doorbell.test_run(data), self.rank.on_doorbell(packet)
        assert run.retval == (XDP_DROP if filled is None else XDP_REDIRECT)
        if filled is not None:
            cut = not filled.flags & FLAGS.RETURN
            assert run.data == bytes_of(filled, b"" if cut else decode(data).trailer)
        self.assert_same()
        return filled

    def write(self) -> None:
        """What the process has done becomes the kernel's memory."""
        rank = self.rank
        for name in CONTROL:
            setattr(self.control, name, getattr(rank, name))
        self.control.complete = rank.complete
        for index, out in enumerate(rank.outs):
            entry = self.outs[index]
            for name in ("check", "seq", "receiver", "number", "frames", "flags", "acked", "token"):
                entry[name] = getattr(out, name)
            entry["bytes"], entry["payload"] = 8 * len(out.data), index
            self.payloads[index, : len(out.data)] = out.data
        for parity, order in enumerate(rank.orders):
            self.order[parity * rank.config.outs :][: len(order)] = order
        for index, slot in enumerate(rank.slots):
            self.slots[index]["claim"] = slot.claim
        for index, peer in enumerate(rank.peers):
            self.peers[index]["landed"], self.peers[index]["frames"] = peer.landed, peer.frames
            self.peers[index]["tokens"] = peer.tokens

    def read(self) -> None:
        """What frames have changed in the kernel's memory becomes the model's."""
        rank = self.rank
        rank.complete = self.control.complete.tolist()
        for index in range(len(rank.slots)):
            entry = self.slots[index]
            data = tuple(self.landing[index, : int(entry["bytes"]) // 8].tolist())
            values = (int(entry[name]) for name in ("claim", "check", "flags"))
            rank.slots[index] = Slot(*values, data)
        for index, peer in enumerate(rank.peers):
            landed, frames = (self.peers[index][name].tolist() for name in ("landed", "frames"))
            rank.peers[index] = peer._replace(landed=tuple(landed), frames=tuple(frames))

    def assert_same(self) -> None:
        """Compare all that the program and the model have changed."""
        rank = self.rank
        for name in CONTROL:
            assert getattr(self.control, name) == getattr(rank, name), name
        assert self.control.complete.tolist() == rank.complete
        assert self.outs["acked"][: len(rank.outs)].tolist() == [out.acked for out in rank.outs]
        for index, slot in enumerate(rank.slots):
            entry = self.slots[index]
            found = int(entry["claim"]), int(entry["check"]), int(entry["flags"])
            assert found == (slot.claim, slot.check, slot.flags)
            assert self.landing[index, : len(slot.data)].tolist() == list(slot.data)
            assert entry["bytes"] == 8 * len(slot.data)
        for index, peer in enumerate(rank.peers):
            entry = self.peers[index]
            assert (tuple(entry["landed"]), tuple(entry["frames"])) == (peer.landed, peer.frames)
            for name in PEER:
                assert entry[name] == getattr(peer, name), name
        counted = self.counted()
        del counted["sent_bytes"]
        assert counted == {name: rank.counters[name] for name in counted}
