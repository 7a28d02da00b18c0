"""Ranks of an exchange that take every step twice, in programs and native code and in
`testbed.protocol.pinch.rank`, and compare the two.
"""

import os
import random
from collections.abc import Iterable
from dataclasses import astuple, fields
from socket import AF_PACKET, SOCK_RAW, socket

import numpy as np

from testbed.comm.group import Lanes
from testbed.core.closing import Closing
from testbed.exchange.interface import Aggregation, Processing
from testbed.exchange.options import Adder, SumWidth
from testbed.exchange.pinch.fixed_point import EXPONENTS, LEAST_EXPONENT
from testbed.exchange.pinch.layout import Bundles, RowLayout, bundle
from testbed.exchange.pinch.port import PinchPort
from testbed.exchange.pinch.process import Waited
from testbed.exchange.pinch.vertex_tables import Tables
from testbed.kernel import XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, TestRun
from testbed.kernel.abi import dtype
from testbed.protocol.pinch.memory import Config, Hub, Row, Source
from testbed.protocol.pinch.packet import ANYWHERE, NOBODY, NOT_FINITE, SQ_ENTRIES, U32, Packet
from testbed.protocol.pinch.policy import Policy, Seen
from testbed.protocol.pinch.process import Process
from testbed.protocol.pinch.rank import Next, Rank
from testbed.protocol.sequence import seq_after, word_of
from testbed.protocol.wire import FRAME_BYTES, Endpoint, Frame, PinchKind, decode, encode
from testbed.testing import aggregates
from testbed.testing.graphs import Partitioned
from tests.support.exchange import pinch_reference as reference
from tests.support.kernel.pinch import ETH_P_ALL, Loaded, received

RING = 42  # offset of the header that ring and exchange share
U64 = (1 << 64) - 1
VERDICTS = {
    Next.DROP: XDP_DROP,
    Next.LINK: XDP_TX,
    Next.DOORBELL: XDP_REDIRECT,
    Next.BOTH: XDP_REDIRECT,
    Next.FAN: XDP_REDIRECT,
    Next.CPU: XDP_REDIRECT,
    Next.SEND: XDP_PASS,
}
SAME = (
    "met",
    "unfit",
    "acked",
    "received",
    "owed",
    "queued",
    "served",
    "copies",
    "lowest",
    "highest",
    "partners",
    "nonfinite",
)
SAME += ("gone", "late", "handed", "taken")


class Accumulators:
    """The `Sink` of one rank in plain numpy: what ``pinch_add.h`` does, with the same tables."""

    def __init__(self, tables: Tables, layout: RowLayout, kind: Aggregation, none: int) -> None:
        self.tables, self.layout, self.kind, self.none = tables, layout, kind, none
        self.words = np.zeros((max(len(tables.targets), 1), layout.wide), np.uint64)

    def widen(self, words: np.ndarray) -> np.ndarray:
        """Lanes at twice the width, or two to a word, if sums are packed."""
        bits = self.layout.bits
        lanes = words.view(f"<i{bits // 8}").astype(np.int64).reshape(len(words), -1)
        if self.layout.packed:
            return (lanes[:, 0] + (lanes[:, 1] << 32)).view(np.uint64)
        if bits == 32:
            return lanes.reshape(-1).view(np.uint64)
        pairs = (
            lanes.reshape(-1, 2, 2).transpose(0, 2, 1).reshape(-1, 2)
        )  # the first and third, the second and fourth
        if self.kind == "max":
            return (pairs[:, 0] & U32 | pairs[:, 1] << 32).view(np.uint64)
        return (pairs[:, 0] + (pairs[:, 1] << 32)).view(np.uint64)

    def add(self, words: np.ndarray, part: int, first: int, count: int) -> None:
        wide, offset = self.widen(words), self.layout.sum_words * part
        for edge in self.tables.edges[first : first + count]:
            row = self.words[edge["target"], offset : offset + len(wide)]
            if self.kind == "max":
                dtype = "<i8" if self.layout.bits == 32 else "<i4"
                np.maximum(row.view(dtype), wide.view(dtype), out=row.view(dtype))
            else:
                weight = int(edge["weight"]) & U64 if self.kind == "weighted" else 1
                row += wide * np.uint64(weight)

    def take(self, sender: int, body: tuple[int, ...], rows: int) -> Iterable[Row]:
        words, source = self.layout.words, Source(*self.tables.sources[sender].item())
        data = np.array(body, np.uint64)
        for i in range(rows):
            number = body[i // 2] >> 32 * (i & 1) & U32
            part = body[0] >> 32 if self.layout.parts > 1 else 0
            if number >= source.vertices or part >= self.layout.parts:
                yield Row(bad=True)
                continue
            vertex = self.tables.vertices[source.first + number]
            first, count, hub = (int(vertex[name]) for name in ("first", "count", "hub"))
            start = (rows + 1) // 2 + i * words
            if hub:
                yield Row(
                    hub=Hub(first, count, part, 0, body[start : start + words]), slot=hub - 1 + part
                )
                continue
            self.add(data[start : start + words], part, first, count)
            yield Row(edges=count)

    def add_slice(self, hub: Hub, number: int) -> int:
        first = number * self.tables.slice
        count = min(hub.neighbours - first, self.tables.slice)
        self.add(np.array(hub.body, np.uint64), hub.part, hub.first + first, count)
        return count

    def clear(self) -> None:
        self.words[:] = self.none

    def assert_same(self, port: PinchPort) -> None:
        """Check that the accumulators, added up as the process does it, are these."""
        banks = port.maps.accumulators.reshape(port.placement.banks, -1, self.layout.wide)
        if self.kind != "max":
            found = banks.sum(axis=0, dtype=np.uint64)
        else:
            lanes = "<i8" if self.layout.bits == 32 else "<i4"
            found = np.ascontiguousarray(banks).view(lanes).max(axis=0).view(np.uint64)
        np.testing.assert_array_equal(found, self.words[: banks.shape[1]])


class Landed:
    """The `Sink` of one rank whose process adds up rows: the frames that have landed."""

    def __init__(self, words: int) -> None:
        self.words = words  # of a row
        self.frames: list[tuple[int, int, tuple[int, ...]]] = []

    def take(self, sender: int, body: tuple[int, ...], rows: int) -> Iterable[Row]:
        self.frames.append((sender, rows, body))
        return ()

    def add_slice(self, hub: Hub, number: int) -> int:
        raise AssertionError("there are no hubs")

    def clear(self) -> None:
        self.frames.clear()

    def assert_same(self, port: PinchPort) -> None:
        """Check that exactly these frames are in memory, whatever bank they are in."""
        maps, found = port.maps, []
        slots = maps.landing.reshape(port.placement.banks, -1)[:, : maps.slots * maps.stride]
        for bank, count in zip(slots, maps.landed.ravel().tolist(), strict=True):
            for slot in bank.reshape(maps.slots, maps.stride)[:count]:
                sender, rows = slot[:8].view(np.uint32).tolist()
                words = (rows + 1) // 2 + rows * self.words
                body = slot[8 : 8 + 8 * words].view(np.uint64)
                found.append((sender, rows, tuple(body.tolist())))
        assert sorted(found) == sorted(self.frames)


class Member:
    """One rank: its port, and the reference models of its programs and process."""

    def __init__(self, network: "Compared", index: int) -> None:
        self.network, self.index = network, index
        loaded = network.loaded
        self.port = port = loaded.ports[index]
        layout, tables = loaded.layout, loaded.tables[index]
        none = 0
        if loaded.kind == "max":
            none = 1 << 63 if layout.bits == 32 else 1 << 63 | 1 << 31
        self.sink: Accumulators | Landed = (
            Landed(layout.words)
            if loaded.plain
            else Accumulators(tables, layout, loaded.kind, none)
        )
        self.rank = Rank(
            Config(
                cookie=port.group.cookie,
                rank=index,
                ranks=port.group.size,
                group=port.group.group_id,
                tag=int(port.maps.control.tag),
                words=layout.words,
                rows=layout.rows,
                payload=layout.payload,
                slice=tables.slice,
                capacity=port.maps.capacity,
                sources=tuple(
                    Source(*source) for source in tables.sources[: port.group.size].tolist()
                ),
                home=tuple(port.placement.homes),
                anywhere=port.placement.cpu == ANYWHERE,
                lands=loaded.plain,
            ),
            self.sink,
        )
        self.process = Process(self.rank)
        self.reset()

    def reset(self) -> None:
        """Reset to the state of a rank that has just been loaded."""
        port, shared = self.port, self.port.maps.by_name
        tag = int(port.maps.control.tag)
        left_out = (
            "counters",
            "scratch",
            "events",
            "both",
            "fan",
            "cpus",
            "pending",
            "vertices",
            "edges",
        )
        for name, table in shared.items():
            if not name.startswith(".") and name.removeprefix("pinch_") not in left_out:
                table.view(np.uint8)[:] = 0
        counters = shared["pinch_counters"]
        counters.update(0, bytes(counters.stride * counters.per_cpu))
        port.maps.control.tag, port.maps.control.partners = tag, (1 << port.group.size) - 1
        port.maps.control.window = 1
        port.maps.control.copies, port.maps.control.highest = self.rank.copies, self.rank.highest
        port.maps.consumer[0] = port.maps.producer[0]
        self.network.loaded.numbers(self.index).reset(port.maps.accumulators)
        self.sink.clear()
        port.process.seq = 0

    # What the process does, twice.

    def jump(self, seq: int) -> None:
        """Set the state to that after all exchanges up to a sequence number."""
        self.port.maps.control.progress, self.rank.seq = word_of(seq, 0), seq
        for name, bitmap in (("seen", self.rank.seen), ("acked", self.rank.acks)):
            self.port.maps.by_name[f"pinch_{name}"].view()[:] = np.uint64(word_of(seq, 0))
            bitmap[:] = [word_of(seq, 0)] * len(bitmap)

    def open(self, seq: int) -> None:
        self.port.process.open(seq)
        self.process.open(seq)
        if isinstance(self.sink, Landed):
            self.sink.clear()

    def address(self, bundles: Bundles, lanes: np.ndarray) -> None:
        port, layout = self.port, self.network.loaded.layout
        port.sending.address(bundles)
        bodies = reference.payloads(layout, bundles, lanes)
        to = np.repeat(bundles.to, layout.parts).tolist()
        peers = -(-(port.group.size - 1) // len(set(port.placement.homes)))
        self.rank.window = int(port.maps.control.window)
        self.process.every = max(1, min(8, self.rank.window // (4 * peers)))
        self.process.address(
            [(mask, tuple(body.tolist())) for mask, body in zip(to, bodies, strict=True)]
        )

    def enter(self, exponent: int | None = 0, holds: range = EXPONENTS) -> None:
        said = NOT_FINITE if exponent is None else exponent - LEAST_EXPONENT
        self.port.handshakes.enter(exponent, holds)
        self.kicked(
            [self.process.enter(said, holds[0] - LEAST_EXPONENT, holds[-1] - LEAST_EXPONENT)]
        )

    def send(self, x: np.ndarray, bundles: Bundles, first: int, end: int, factor: float) -> None:
        """Publish the frames of bundles `first` to `end`."""
        port, parts = self.port, self.network.loaded.layout.parts
        kicks = self.process.send(end * parts) if not first else self.process.publish(end * parts)
        port.maps.control.copies = self.rank.copies
        port.process.send_some(x, bundles, first, end, factor)
        self.kicked(kicks)

    def end(self, **why: list[int]) -> None:
        self.port.handshakes.end(**why)
        self.kicked(
            [
                self.process.end(
                    **{name: sum(1 << rank for rank in ranks) for name, ranks in why.items()}
                )
            ]
        )

    def act(self, policy: Policy) -> None:
        """Observe, and do what the policy says; both sides must observe the same."""
        seen, ported = self.process.seen(), self.port.seen()
        for field in fields(Seen):
            if field.name != "lacking":
                assert getattr(seen, field.name) == getattr(ported, field.name), field.name
        for rank in range(self.port.group.size):
            assert seen.lacking(rank) == ported.lacking(rank)
        policy.look(seen)
        actions = policy.act(seen)
        self.port.act(actions)
        self.kicked(self.process.act(actions))

    def kicked(self, kicks: list[Packet]) -> None:
        """Check that both sides have sent the same kicks, and put these in flight."""
        kicked = received(self.network.doorbell)
        expected = sorted(self.bytes_of(kick)[RING:FRAME_BYTES] for kick in kicks)
        assert sorted(data[RING:FRAME_BYTES] for data in kicked) == expected
        for data in kicked:
            self.network.kicks.append(
                (self.index, self.network.chance.choice(self.network.cpus), "pinch_doorbell", data)
            )
        self.assert_same()

    # What programs do, twice.

    def link(self, data: bytes, cpu: int) -> None:
        out, data = self._both("pinch_link", data, cpu, self.rank.on_link)
        if out in (Next.LINK, Next.BOTH):
            self.network.in_flight.append(data)
        if out in (Next.DOORBELL, Next.BOTH):
            self.network.kicks.append((self.index, cpu, "pinch_doorbell", data))
        if out is Next.FAN:
            self.network.kicks += [(self.index, cpu, "pinch_doorbell", data)] * len(
                self.rank.config.fan
            )
        # Programs of CPU maps do not support test runs; the one on the link does the same there.
        if out is Next.CPU:
            self.network.kicks.append((self.index, self.port.placement.cpu, "pinch_link", data))

    def kick(self, data: bytes, cpu: int) -> None:
        out, data = self._both(
            "pinch_doorbell", data, cpu, lambda packet, now: self.rank.on_doorbell(packet)
        )
        if out is Next.DOORBELL:
            self.network.kicks.append((self.index, cpu, "pinch_doorbell", data))
        if out is Next.SEND:
            self.network.kicks.append((self.index, cpu, "pinch_send", data))
        if out is Next.CPU:
            packet = self.parse(data)
            assert packet is not None
            kick = packet.kind == PinchKind.DOORBELL
            to = packet.stream if kick else self.port.placement.cpu
            if to in self.network.cpus:
                self.network.kicks.append(
                    (self.index, to, "pinch_send" if kick else "pinch_doorbell", data)
                )

    def serve(self, data: bytes, cpu: int) -> None:
        """A kick has reached the program that sends."""
        packet, self.rank.cpu = self.parse(data), cpu
        self.network.run(self.index, "pinch_send", data, cpu)
        out = self.rank.on_send(packet, 1) if packet is not None else []
        sent, kicked = received(self.network.wire), received(self.network.doorbell)
        for found, way in ((sent, Next.LINK), (kicked, Next.DOORBELL)):
            expected = [self.bytes_of(each) for where, each in out if where is way]
            assert len(found) == len(expected)
            for got, wanted in zip(found, expected, strict=True):
                begin = RING if way is Next.DOORBELL else 0
                assert got[begin : len(wanted)] == wanted[begin:], (
                    self.parse(got),
                    self.parse(wanted),
                )
        self.network.in_flight += sent
        self.network.kicks += [(self.index, cpu, "pinch_doorbell", each) for each in kicked]
        self.assert_same()

    def _both(self, program, data, cpu, step) -> tuple[Next, bytes]:
        run = self.network.run(self.index, program, data, cpu)
        packet, self.rank.cpu = self.parse(data), cpu
        out, after = step(packet, 1) if packet is not None else (Next.DROP, None)
        assert run.retval == VERDICTS[out], (program, out, packet)
        if after is not None:
            wanted, begin = self.bytes_of(after), 0 if out in (Next.LINK, Next.BOTH) else RING
            assert run.data[begin : len(wanted)] == wanted[begin:], (out, packet, after)
        self.assert_same()
        return out, run.data

    def parse(self, data: bytes) -> Packet | None:
        """A frame as the reference model sees it; None: one that the dispatcher does not hand
        on.
        """
        frame = decode(data)
        if frame is None:
            return None
        ranks = {member.ip: member.rank for member in self.port.group.members}
        source, destination = (
            ranks.get(end.ip, NOBODY) for end in (frame.source, frame.destination)
        )
        return Packet(
            source, destination, *astuple(frame.header), body=tuple(frame.payload.tolist())
        )

    def bytes_of(self, packet: Packet) -> bytes:
        """The bytes of a frame up to the length in its header."""
        members = self.port.group.members
        source, destination = (
            (
                Endpoint(members[rank].mac, members[rank].ip)
                if rank != NOBODY
                else Endpoint("00:00:00:00:00:00", "0.0.0.0")
            )
            for rank in (packet.source, packet.destination)
        )
        own = packet.kind in (PinchKind.DOORBELL, PinchKind.SEND_HANDSHAKES, PinchKind.WORK)
        words = packet.body[: 0 if own else packet.length // 8]
        header = packet.header
        payload = np.array(words, np.uint64)
        if 8 * len(words) < header.length and not own:
            payload = np.array(packet.body, np.uint64)
        return encode(Frame(header, payload, source, destination))

    def assert_same(self) -> None:
        """Check that all maps equal the reference model's memory."""
        port, rank = self.port, self.rank
        control = port.maps.control
        assert control.progress == word_of(rank.seq, rank.ready)
        for name in SAME:
            assert getattr(control, name) == getattr(rank, name), name
        assert (control.end_acked, control.rtt_samples, control.sending) == (
            rank.end_acked,
            rank.rtt_samples,
            0,
        )
        shared = port.maps.by_name
        queues = shared["pinch_sq"].view().reshape(-1, SQ_ENTRIES)
        for number, flow in enumerate(rank.flows):
            record = port.maps.flows[number]
            expected = len(flow.schedule), flow.next, flow.in_flight & U32
            assert record[["total", "next", "in_flight"]].tolist() == expected
            first, pending = int(record["sq_head"]), int(record["sq_tail"]) - int(record["sq_head"])
            assert first == flow.sq_head
            assert queues[number, (first + np.arange(pending)) % SQ_ENTRIES].tolist() == list(
                flow.sq
            )
        for number, frame in enumerate(rank.frames):
            record = port.maps.frames[number]
            assert (record["to"], record["ask"], record["copies"]) == (
                frame.to,
                frame.ask,
                frame.copies,
            )
        records = shared["pinch_sent"].view(dtype("pinch_sent")).reshape(-1, port.maps.capacity)
        for flow, number in np.argwhere(records["seq"]).tolist():
            record, sent = records[flow, number], rank.sent[flow, number]
            expected = sent.seq, sent.serial, sent.stream, sent.attempt
            assert record[["seq", "serial", "stream", "attempt"]].tolist() == expected
        assert np.count_nonzero(records["seq"]) == len(rank.sent)
        for index, peer in enumerate(rank.peers):
            record = port.maps.peers[index]
            for name in ("received", "acked", "heard", "news", "answers", "at", "waits"):
                assert record[name] == getattr(peer, name), (index, name)
            assert (record["ours"].tolist(), record["theirs"].tolist()) == (peer.ours, peer.theirs)
        for name, bitmap in (("seen", rank.seen), ("acked", rank.acks), ("wanted", rank.wanted)):
            assert shared[f"pinch_{name}"].view().ravel().tolist() == bitmap, name
        queue, hubs = (
            shared["pinch_hub_queue"].view().ravel(),
            shared["pinch_hubs"].view(dtype("pinch_hub")).reshape(-1),
        )
        for place, entry in rank.hub_queue.items():
            assert int(queue[place]) == entry
        for slot, hub in rank.hubs.items():
            assert hubs[slot].tolist() == (hub.first, hub.neighbours, hub.part, hub.next)
            assert np.frombuffer(shared["pinch_pending"].lookup(slot), np.uint64)[
                : len(hub.body)
            ].tolist() == list(hub.body)
        counted = port.maps.counters()
        assert {
            name: (count, rank.counters[name])
            for name, count in counted.items()
            if count != rank.counters[name]
        } == {}
        self.sink.assert_same(port)
        assert self.network.loaded.events(self.index) == rank.events
        rank.events.clear()


class Compared(Closing):
    """All ranks of an exchange, and the frames in flight between them.

    :param known: Whether the scale is known beforehand; then ranks only meet those with which they
        share frames.
    """

    def __init__(
        self,
        graph: Partitioned,
        dim: int,
        kind: Aggregation,
        lanes: Lanes,
        processing: Processing,
        mtu: int,
        known: bool = False,
        aggregate: Adder = "kernel",
        sums: SumWidth = "wide",
    ) -> None:
        self.known = known
        self.graph, self.dim, self.kind, self.bits = (
            graph,
            dim,
            kind,
            16 if lanes == "int16" else 32,
        )
        x = np.zeros((len(graph.owner), dim), np.float32)
        self.affinity = os.sched_getaffinity(0)
        self.cpus = sorted(self.affinity)[:2]
        self.loaded = Loaded(
            graph,
            x,
            kind,
            lanes,
            ranks=range(graph.world),
            processing=processing,
            mtu=mtu,
            aggregate=aggregate,
            sums=sums,
        )
        self.wire, self.doorbell = (self._tap(name) for name in ("wire", "doorbell1"))

    def _tap(self, device: str) -> socket:
        tap = socket(AF_PACKET, SOCK_RAW, 0)
        tap.bind((device, ETH_P_ALL))
        return tap

    def begin(self, chance: random.Random, seq: int, exchanges: int) -> None:
        """Reset all ranks, and draw the exchanges ahead of them.

        :param seq: Sequence number of the exchange before the first.
        """
        self.chance, self.in_flight, self.kicks = chance, [], []
        received(self.wire), received(self.doorbell)
        self.members = [Member(self, rank) for rank in range(self.graph.world)]
        self.exchanges = [self._draw(chance) for _ in range(exchanges)]
        for member, halo in zip(self.members, self.graph.halos, strict=True):
            member.jump(seq)
            if self.known:
                ranks = {
                    rank
                    for rank in range(self.graph.world)
                    if len(halo.sends[rank]) or len(halo.sources[rank])
                }
                mask = sum(1 << rank for rank in ranks | {halo.rank})
                member.port.maps.control.partners = member.rank.partners = mask
        self.at = [(0, "open")] * self.graph.world
        self.policies: list[Policy | None] = [None] * self.graph.world

    def _draw(self, chance: random.Random) -> tuple[np.ndarray, list[Bundles], bool]:
        """Draw embeddings of all vertices, which of them are sent, and whether the scale holds."""
        random_ = np.random.default_rng(chance.getrandbits(32))
        x = random_.uniform(-0.999, 0.999, (len(self.graph.owner), self.dim)).astype(np.float32)
        share, chosen = chance.choice((0.0, 0.3, 1.0, 1.0)), []
        for tables in self.loaded.tables:
            some = random_.random(len(tables.outgoing)) < share
            chosen.append(
                bundle(tables.outgoing[some], tables.masks[some], self.loaded.layout.rows)
            )
        return x, chosen, self.known or chance.random() < 0.75

    def run(self, rank: int, program: str, data: bytes, cpu: int) -> TestRun:
        os.sched_setaffinity(0, {cpu})
        return self.loaded.run(rank, program, data)

    def deliver(self, index: int = 0) -> None:
        """Deliver a frame to its destination, on some CPU."""
        data = self.in_flight.pop(index)
        for member in self.members:
            packet = member.parse(data)
            if packet is not None and packet.destination == member.index:
                member.link(data, self.chance.choice(self.cpus))

    def kick(self, index: int = 0) -> None:
        """Let a kick within a host proceed."""
        rank, cpu, program, data = self.kicks.pop(index)
        member = self.members[rank]
        {"pinch_link": member.link, "pinch_doorbell": member.kick, "pinch_send": member.serve}[
            program
        ](data, cpu)

    def step(self, index: int) -> bool:
        """Let a process go on, if it can; return False once it has finished."""
        member, (turn, phase) = self.members[index], self.at[index]
        if turn == len(self.exchanges):
            return False
        x, chosen, holds = self.exchanges[turn]
        bundles, mine = chosen[index], np.ascontiguousarray(x[self.graph.halos[index].owned])
        if phase == "open":
            member.open(seq_after(member.rank.seq))
            self.at[index] = turn, "enter"
        elif phase == "enter":
            lanes = self.loaded.lanes_of(mine, 0)
            member.address(bundles, lanes)
            member.enter(0, EXPONENTS if holds else range(-5, 0))
            self.at[index] = turn, "send"
        elif phase == "send":
            half, factor = len(bundles.to) // 2, self.loaded.numbers(index).factor(0)
            member.send(mine, bundles, 0, half, factor)
            self.at[index] = turn, "more"
        elif phase == "more":
            half, factor = len(bundles.to) // 2, self.loaded.numbers(index).factor(0)
            member.send(mine, bundles, half, len(bundles.to), factor)
            self.at[index] = turn, "wait"
            self.policies[index] = Policy(member.process.seen())
        elif member.process.is_unfit:
            assert member.port.process.wait(0) is (
                Waited.ENDED if member.rank.has_ended else Waited.UNFIT
            )
            assert not holds
            self.at[index] = turn + 1, "open"
        elif member.process.is_done:
            assert member.port.process.wait(0) is Waited.COMPLETE
            if isinstance(member.sink, Landed):
                self._check_landed(index, x, chosen, member.sink)
            else:
                self._check(index, x, chosen)
                member.sink.clear()
                self.loaded.numbers(index).reset(member.port.maps.accumulators)
            self.at[index] = turn + 1, "open"
        else:
            assert member.port.process.wait(0) is (
                Waited.ENDED if member.rank.has_ended else Waited.TIME_UP
            )
        return True

    def _check_landed(self, index: int, x: np.ndarray, chosen: list[Bundles], sink: Landed) -> None:
        """Check that the rows that a rank needs of those that were sent are in memory, each
        once.
        """
        layout, words = self.loaded.layout, self.loaded.layout.words
        parts: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        for sender, rows, body in sink.frames:
            part = body[0] >> 32 if layout.parts > 1 else 0
            for i in range(rows):
                number = body[i // 2] >> 32 * (i & 1) & U32
                start = (rows + 1) // 2 + i * words
                found = parts.setdefault((sender, number), {})
                assert part not in found
                found[part] = body[start : start + words]
        halo = self.graph.halos[index]
        for sender, bundles in enumerate(chosen):
            for number in np.intersect1d(halo.positions[sender], bundles.order).tolist():
                row = parts[sender, number]
                joined = np.array([word for part in sorted(row) for word in row[part]], np.uint64)
                vertex = self.graph.halos[sender].owned[number]
                np.testing.assert_array_equal(joined.view(np.float32)[: self.dim], x[vertex])

    def _check(self, index: int, x: np.ndarray, chosen: list[Bundles]) -> None:
        """Check that a rank has received what was sent to it."""
        sent = np.zeros(len(self.graph.owner), bool)
        for halo, bundles in zip(self.graph.halos, chosen, strict=True):
            sent[halo.owned[bundles.order]] = True
        form = self.loaded.form
        lanes = form.quantize(x, 0)
        if self.kind == "max":
            lanes[~sent] = -(1 << (2 * self.bits - 1))
        else:
            lanes[~sent] = 0
        halo, member = self.graph.halos[index], self.members[index]
        expected = aggregates.integers(self.graph, lanes, self.kind, self.bits)[index]
        out = np.empty((halo.num_owned, self.dim), np.float32)
        numbers, port = self.loaded.numbers(index), member.port
        numbers.collect(
            port.maps.accumulators,
            self.loaded.tables[index].targets,
            port.placement.banks,
            out,
            0,
            clear=False,
        )
        scale = self.loaded.tables[index].scale if self.kind == "weighted" else 1.0
        wanted = form.dequantize(expected, 1.0 / (form.factor(0) * scale), self.kind)
        if self.kind == "max":
            wanted[expected == -(1 << (2 * self.bits - 1))] = -np.inf
        np.testing.assert_array_equal(out, wanted)

    def timer(self, index: int) -> None:
        """Let a process's timer expire."""
        policy = self.policies[index]
        if policy is not None and self.at[index][1] == "wait":
            self.members[index].act(policy)

    @property
    def finished(self) -> bool:
        return all(turn == len(self.exchanges) for turn, _ in self.at)

    def finish(self, rounds: int = 400) -> None:
        """From now on without faults: deliver everything in order, and let timers expire when
        nothing is in flight.
        """
        for _ in range(rounds):
            if self.finished:
                return
            for index in range(len(self.members)):
                self.step(index)
            quiet = not self.in_flight and not self.kicks
            while self.in_flight or self.kicks:
                while self.kicks:
                    self.kick()
                if self.in_flight:
                    self.deliver()
            if quiet:
                for index in range(len(self.members)):
                    self.timer(index)
        raise AssertionError(f"not done after {rounds} rounds: {self.at}")

    def close(self) -> None:
        os.sched_setaffinity(0, self.affinity)
        self.wire.close()
        self.doorbell.close()
        self.loaded.close()
