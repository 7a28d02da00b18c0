"""Ranks of an exchange, loaded in a network namespace, and the frames that they would send each
other.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from socket import AF_PACKET, SOCK_RAW, socket

import numpy as np

from testbed.comm.group import Lanes, make_groups
from testbed.core.closing import Closing
from testbed.exchange.interface import Aggregation, ExchangeSpec, Processing
from testbed.exchange.options import Adder, SumWidth
from testbed.exchange.pinch.fixed_point import LEAST_EXPONENT, Numbers
from testbed.exchange.pinch.landings import frame_bound
from testbed.exchange.pinch.layout import Bundles, RowLayout, bundle, is_packed
from testbed.exchange.pinch.port import PinchPort
from testbed.exchange.pinch.vertex_tables import make_tables
from testbed.kernel import Program, TestRun
from testbed.plan import plan_fabric
from testbed.probes.netns import Namespace
from testbed.protocol.pinch.packet import (
    ACK_BEHIND,
    ACK_WORDS,
    EXPONENT_BITS,
    LEAST_BYTES,
    NOT_FINITE,
)
from testbed.protocol.sequence import word_of
from testbed.protocol.wire import (
    Endpoint,
    Frame,
    Header,
    PinchKind,
    Words,
    decode,
    encode,
    frame_seal,
    stored,
    weigh,
)
from testbed.testing import aggregates
from testbed.testing.graphs import Partitioned, embeddings
from tests.support.exchange import pinch_reference as reference
from tests.support.fabric.tap import received as recorded

__all__ = [
    "SEQ",
    "Loaded",
    "ack",
    "bits",
    "first_kick",
    "frame",
    "handshake",
    "hub",
    "meet",
    "received",
    "said",
]

SEQ = 5
STREAM = min(os.sched_getaffinity(1))
"""The CPU that tests run on (`one_cpu`)."""
ETH_P_ALL = 3
DEVICES = (("eth0", "wire"), ("doorbell0", "doorbell1"))


@contextmanager
def namespace() -> Iterator[None]:
    """A namespace with devices named like a host's, and nothing behind them."""
    with Namespace() as made, made.entered():
        for near, far in DEVICES:
            made.add_veth(near, far)
            made.set_up(near, far)
        yield


class NoDispatcher:
    """A dispatcher that does nothing: tests hand frames to programs themselves."""

    def add(self, *programs: object) -> None:
        pass

    def remove(self, group: int) -> None:
        pass


class Loaded(Closing):
    """Ranks of one exchange, each with programs and maps of its own. Only the requested ranks are
    loaded.

    A rank's embeddings are those of the vertices that it owns; all are quantized with the exponent
    that fits all of them.
    """

    def __init__(
        self,
        graph: Partitioned,
        x: np.ndarray,
        kind: Aggregation = "sum",
        lanes: Lanes = "int16",
        *,
        ranks: Sequence[int] = (0,),
        processing: Processing = "spread",
        mtu: int = 1500,
        seq: int = SEQ,
        aggregate: Adder = "kernel",
        sums: SumWidth = "wide",
    ) -> None:
        self.graph, self.x, self.kind, self.seq = graph, x, kind, seq
        self.plain, self.sums = aggregate == "process", sums
        self.bits = 16 if lanes == "int16" and not self.plain else 32
        packed = not self.plain and is_packed(sums, self.bits, kind)
        self.layout = RowLayout.plan(x.shape[1], self.bits, mtu, packed)
        self.form = aggregates.Format(self.bits, packed=packed)
        self.exponent = aggregates.magnitude(x[aggregates.sent(graph)])
        self.lanes = self.lanes_of(x, self.exponent)
        self.tables = [make_tables(halo, self.layout, kind) for halo in graph.halos]
        if self.plain:
            self.tables = [
                tables.for_landing(frame_bound(halo, self.layout))
                for tables, halo in zip(self.tables, graph.halos, strict=True)
            ]
        self.bundles = [
            bundle(tables.outgoing, tables.masks, self.layout.rows) for tables in self.tables
        ]
        self.groups = make_groups(
            plan_fabric(hosts=graph.world).hosts, group_id=3, lanes=lanes, mtu=mtu
        )
        self.ports: dict[int, PinchPort] = {}
        with ExitStack() as stack:
            stack.enter_context(namespace())
            for rank in ranks:
                spec = ExchangeSpec(
                    self.groups[rank],
                    graph.halos[rank],
                    x.shape[1],
                    kind,
                    broadcast="tc",
                    processing=processing,
                    aggregate=aggregate,
                    sums=sums,
                )
                port = PinchPort(
                    NoDispatcher(), spec, self.layout, self.tables[rank], self.numbers(rank)
                )
                self.ports[rank] = stack.enter_context(port)
                self.open(rank, seq)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def numbers(self, rank: int) -> Numbers:
        return Numbers(self.layout, self.kind, self.tables[rank].scale, plain=self.plain)

    def lanes_of(self, x: np.ndarray, exponent: int) -> np.ndarray:
        """Rows as they travel."""
        if self.plain:
            return x.view(np.int32).astype(np.int64)
        return self.form.quantize(x, exponent)

    def open(self, rank: int, seq: int) -> None:
        """Open an exchange as if its sequence number had never been used: nothing has arrived,
        nothing has been sent.
        """
        port = self.ports[rank]
        for name in ("seen", "acked", "sent"):
            port.maps.by_name[f"pinch_{name}"].view()[:] = 0
        port.maps.control.progress = word_of(seq - 1, 0) if seq > 1 else 0
        self.numbers(rank).reset(port.maps.accumulators)
        port.sending.address(self.bundles[rank])
        port.process.open(seq)
        senders = [sender for sender, _ in self.numbers_to(rank)]
        meet(port, np.bincount(senders, minlength=self.graph.world))
        port.maps.control.copies = 0  # until frames are published
        port.maps.consumer[0] = port.maps.producer[0]
        counters = port.maps.by_name["pinch_counters"]
        counters.update(0, bytes(counters.stride * counters.per_cpu))

    def numbers_to(self, rank: int) -> list[tuple[int, int]]:
        """Sender and number of each frame for a rank."""
        found = []
        for sender, bundles in enumerate(self.bundles):
            for number, to in enumerate(np.repeat(bundles.to, self.layout.parts).tolist()):
                if to >> rank & 1:
                    found.append((sender, number))
        return found

    def payload(self, sender: int, number: int) -> Words:
        """The payload of a rank's frame."""
        bundles, which = self.bundles[sender], number // self.layout.parts
        one = Bundles(
            bundles.order[bundles.starts[which] : bundles.starts[which + 1]],
            np.arange(2),
            bundles.to[:1],
        )
        one.starts[1] = len(one.order)
        mine = self.lanes[self.graph.halos[sender].owned]
        return reference.payloads(self.layout, one, mine)[number % self.layout.parts]

    def embed(self, sender: int, number: int, to: int, /, **fields: int) -> bytes:
        """A rank's frame as it reaches another."""
        fields = {"number": number, "seq": self.seq} | fields
        return frame(self.ports[to], self.payload(sender, number), sender, **fields)

    def frames_to(self, rank: int, /, **fields: int) -> list[bytes]:
        return [
            self.embed(sender, number, rank, **fields) for sender, number in self.numbers_to(rank)
        ]

    def publish(self, rank: int) -> int:
        """Put all of a rank's frames in place; return their number."""
        port, bundles = self.ports[rank], self.bundles[rank]
        count = len(bundles.to) * self.layout.parts
        mine = np.ascontiguousarray(self.x[self.graph.halos[rank].owned])
        self.numbers(rank).fill(
            mine, bundles, 0, count, port.maps.payloads, port.maps.frames, self.exponent
        )
        port.maps.control.copies = int(port.maps.frames["copies"][:count].sum())
        port.maps.control.progress = word_of(port.process.seq, count)
        return count

    def program(self, rank: int, name: str) -> Program:
        return self.ports[rank].maps.programs[name]

    def run(self, rank: int, name: str, data: bytes) -> TestRun:
        return self.program(rank, name).test_run(data)

    def link(self, rank: int, data: bytes) -> TestRun:
        return self.run(rank, "pinch_link", data)

    def work(self, rank: int) -> TestRun:
        """Continue with deferred work on hubs."""
        return self.run(rank, "pinch_doorbell", self.ports[rank].kicks.work)

    def counters(self, rank: int) -> dict[str, int]:
        """The counters that are not zero."""
        return {name: count for name, count in self.ports[rank].maps.counters().items() if count}

    def results(self, rank: int) -> np.ndarray:
        """The aggregates so far; accumulators are not cleared, except those of maxima."""
        port = self.ports[rank]
        out = np.empty((self.graph.halos[rank].num_owned, self.x.shape[1]), np.float32)
        self.numbers(rank).collect(
            port.maps.accumulators,
            self.tables[rank].targets,
            port.placement.banks,
            out,
            self.exponent,
            clear=False,
        )
        return out

    def expected(self, rank: int) -> np.ndarray:
        return aggregates.exact_aggregates(
            self.graph, self.x, self.kind, self.bits, width=self.sums
        )[rank]

    def events(self, rank: int) -> list[int]:
        """The sequence numbers in the ring buffer since the last call; a record has a header of 8
        bytes and 8 bytes of data.
        """
        port = self.ports[rank]
        _, _, data = port.maps.by_name["pinch_events"].ring_buffer()
        found = []
        while port.maps.consumer[0] < port.maps.producer[0]:
            place = int(port.maps.consumer[0]) % (data.size // 2) + 8
            found.append(int(data[place : place + 8].view(np.uint64)[0]))
            port.maps.consumer[0] += 16
        return found

    def memory(self, rank: int) -> dict[str, bytes]:
        """Everything that programs can write to, except counters and scratch memory."""
        left_out = ("counters", "scratch", "events", "both", "fan", "cpus")
        tables = {
            name.removeprefix("pinch_"): table
            for name, table in self.ports[rank].maps.by_name.items()
        }
        shared = {
            name: table
            for name, table in tables.items()
            if name not in left_out and not name.startswith(".")
        }
        pending = shared.pop("pending")
        found = {name: table.view(np.uint8).tobytes() for name, table in shared.items()}
        found["pending"] = b"".join(pending.lookup(key) for key in range(pending.max_entries))
        return found | {"events": self.ports[rank].maps.producer.tobytes()}

    @contextmanager
    def wire(self) -> Iterator[socket]:
        """A socket that receives the frames sent on the link."""
        with socket(AF_PACKET, SOCK_RAW, 0) as tap:
            tap.bind(("wire", ETH_P_ALL))
            tap.settimeout(5)
            yield tap


def meet(port: PinchPort, frames: np.ndarray) -> None:
    """Record that all ranks have entered, with the given number of frames from each for this
    one.
    """
    word = np.uint64(word_of(port.process.seq, 0))
    port.maps.peers["theirs"][:, port.process.seq & 1] = word | frames.astype(
        np.uint64
    ) << np.uint64(EXPONENT_BITS)
    port.maps.control.met = word_of(port.process.seq, int(frames.sum()))


def handshake(
    port: PinchPort, sender: int, /, frames: int = 0, exponent: int | None = 0, **fields: int
) -> bytes:
    """A rank's handshake to a port's rank: the number of its frames, and the exponent of its
    largest value.
    """
    seq = fields.setdefault("seq", port.process.seq)
    said = NOT_FINITE if exponent is None else exponent - LEAST_EXPONENT
    word = np.array([word_of(seq, frames << EXPONENT_BITS | said)], np.uint64)
    return frame(port, word, sender, PinchKind.HANDSHAKE, **fields).ljust(LEAST_BYTES, b"\0")


def first_kick(port: PinchPort) -> bytes:
    """A kick as its process sends it."""
    return bytes(port.kicks.flows)[: port.kicks.size]


def checksum(header: Header, payload: Words) -> int:
    """The checksum of a whole frame."""
    return weigh(payload) + frame_seal(header) & (1 << 64) - 1


def received(tap: socket) -> list[bytes]:
    """The exchange's frames that a socket has received."""
    tap.setblocking(False)
    return [data for data, _ in recorded(tap)]


def frame(
    port: PinchPort, payload: Words, sender: int, kind: int = PinchKind.EMBED, /, **fields: int
) -> bytes:
    """A frame to a port's rank; fields that are not given have the values of a valid frame."""
    group = port.group
    tag, length = int(port.maps.control.tag), 8 * payload.size
    good = {
        "kind": kind,
        "group": group.group_id,
        "cookie": group.cookie,
        "sender": sender,
        "receiver": group.rank,
    }
    header = Header(**good | {"tag": tag, "length": length, "stream": STREAM} | stored(**fields))
    if "checksum" not in fields:
        header.checksum = checksum(header, payload)
    ends = [
        Endpoint(group.members[rank].mac, group.members[rank].ip) for rank in (sender, group.rank)
    ]
    return encode(Frame(header, payload, *ends))


def ack(port: PinchPort, sender: int, number: int, have: Sequence[int], /, **fields: int) -> bytes:
    """An acknowledgement by another rank: of the frames that it has, as many as fit around a given
    frame.
    """
    first = max(number // 32 - ACK_BEHIND, 0)
    words = np.zeros(ACK_WORDS, np.uint64)
    for one in have:
        if 0 <= one // 32 - first < ACK_WORDS:
            words[one // 32 - first] |= np.uint64(1 << one % 32)
    return frame(
        port, words, sender, PinchKind.ACK, number=number, **{"seq": port.process.seq} | fields
    )


def said(data: bytes) -> Frame:
    """The acknowledgement that a frame has become, checked as its receiver would check it."""
    found = decode(data)
    assert found is not None
    header = found.header
    assert header.kind == PinchKind.ACK
    assert (header.length, found.payload.size, found.trailer) == (8 * ACK_WORDS, ACK_WORDS, b"")
    assert (found.payload >> np.uint64(32) == 0).all()
    assert header.checksum == checksum(header, found.payload)
    assert encode(found) == data  # lengths, addresses and the IPv4 checksum
    return found


def bits(found: Frame) -> set[int]:
    """The frames that an acknowledgement reports as arrived."""
    first = max(found.header.number // 32 - ACK_BEHIND, 0)
    return {
        32 * (first + i) + b
        for i, word in enumerate(found.payload.tolist())
        for b in range(32)
        if word >> b & 1
    }


def hub(parts: bool, ranks: tuple[int, ...] = (0,)) -> Loaded:
    """Two vertices of rank 1 have many neighbours at rank 0, its other vertices one each."""
    fans, others = 700, 40
    target = np.concatenate([np.arange(fans), np.arange(fans), np.arange(others)])
    source = np.concatenate(
        [np.full(fans, fans), np.full(fans, fans + 1), fans + 2 + np.arange(others)]
    )
    order = np.argsort(target, kind="stable")
    n = fans + 2 + others
    indptr = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=n))])
    weights = np.random.default_rng(0).uniform(-1, 1, len(order)).astype(np.float32)
    graph = Partitioned(
        indptr, source[order].astype(np.int32), weights, (np.arange(n) >= fans).astype(np.int32), 2
    )
    return Loaded(
        graph, embeddings(0, graph, 512 if parts else 64), "weighted", "int32", ranks=ranks
    )
