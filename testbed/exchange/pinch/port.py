"""One rank's end of an exchange in the kernel: its programs, the memory that it shares with them,
its doorbell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import zlib
from collections.abc import Collection
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.core.closing import Closing
from testbed.datapath.dispatcher import DOORBELL_NEAR, LINK, Dispatcher
from testbed.exchange.interface import Embeddings, ExchangeSpec
from testbed.exchange.pinch.doorbell import Doorbell
from testbed.exchange.pinch.layout import Bundles, RowLayout, bundle_bound
from testbed.exchange.pinch.numbers import LEAST_EXPONENT, Numbers
from testbed.exchange.pinch.tables import Tables
from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct, constant, dtype
from testbed.kernel.cpumap import fill_cpumap
from testbed.native import load
from testbed.protocol.pinch.memory import COUNTERS
from testbed.protocol.pinch.packet import (
    ACK_BEHIND,
    ANYWHERE,
    NOT_FINITE,
    SQ_ENTRIES,
    UNKNOWN,
    WR_ASK,
    exponent_in,
)
from testbed.protocol.pinch.policy import Actions, Seen
from testbed.protocol.sequence import seq_of
from testbed.protocol.wire import FRAME_BYTES, net_peer

__all__ = ["PinchPort", "Waited"]

_MOST_BANKS = 8
"""CPUs that may each have accumulators of their own; with more, one CPU aggregates a host's frames.
"""
_ACK_EVERY = 8
_MOST_IN_FLIGHT = 192
"""Copies of frames in flight at most: the ring of a veth's queue has 256 places, and drops what it
has no room for.
"""
_QUEUED = 256  # frames that may wait for the CPU that aggregates
_MAX_FLOWS = constant("PINCH_MAX_FLOWS")


class Waited(IntEnum):
    """How `PinchPort.wait` has ended: ``enum pinch_waited``."""

    TIME_UP = constant("PINCH_TIME_UP")
    COMPLETE = constant("PINCH_COMPLETE")
    UNFIT = constant("PINCH_UNFIT")
    ENDED = constant("PINCH_OVER")


class PinchPort(Closing):
    """Programs of ``bpf/aggregate.bpf.c`` and ``bpf/broadcast.bpf.c`` for one exchange, and every
    way to talk to them.

    :param tables: What is received from whom, and what for.
    :raises KernelError: The kernel refused a program or map.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        spec: ExchangeSpec,
        layout: RowLayout,
        tables: Tables,
        numbers: Numbers,
    ) -> None:
        self.spec, self.group, self.layout = spec, spec.group, layout
        self.targets = len(tables.targets)
        cpus = sorted(os.sched_getaffinity(1))
        pinned = spec.processing == "pinned" or cpus[-1] >= _MOST_BANKS
        #: The CPU that aggregates for each rank; 0: where frames arrive.
        self.homes = [
            cpus[rank % len(cpus)] % _MAX_FLOWS if pinned else 0 for rank in range(self.group.size)
        ]
        self.cpu = self.homes[self.group.rank] if pinned else ANYWHERE
        self.banks = 1 if pinned else cpus[-1] + 1
        self.capacity = bundle_bound(len(tables.outgoing), layout.rows) * layout.parts
        self.acked_words = max(-(-self.capacity // 32), 1)
        self._frames_to = np.zeros(self.group.size, np.uint64)
        self.seq = 0
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._open)
            self._load(tables)
            self._share(tables)
            self._connect(numbers)
            link, doorbell, execute = (
                self._receive.programs[f"pinch_{end}"] for end in ("link", "doorbell", "execute")
            )
            dispatcher.add(
                self.group.group_id, link, doorbell, execute, self._broadcast.programs["pinch_send"]
            )
            self._open.callback(
                dispatcher.remove, self.group.group_id
            )  # its frames belong to no group from then on
            undo.pop_all()

    def _load(self, tables: Tables) -> None:
        group, layout = self.group, self.layout
        config = Struct(
            "pinch_config",
            cookie=group.cookie,
            rank=group.rank,
            ranks=group.size,
            group=group.group_id,
            words=layout.words,
            parts=layout.parts,
            rows=layout.rows,
            payload=layout.payload,
            bits=layout.bits,
            aggregation=constant(f"PINCH_{self.spec.aggregation.upper()}"),
            targets=max(self.targets, 1),
            banks=self.banks,
            cpu=self.cpu,
            slice=tables.slice,
            capacity=self.capacity,
            acked_words=self.acked_words,
            uplink=socket.if_nametoindex(LINK),
            doorbell=socket.if_nametoindex(DOORBELL_NEAR),
            fan=len(set(self.homes)),
            sources=tables.sources,
        )
        for other in group.members:
            config.peers[other.rank] = net_peer(group.me.endpoint, other.endpoint)
        for rank, home in enumerate(self.homes):
            config.home[rank] = home
            config.homes[home] |= 1 << rank
        for index, home in enumerate(sorted(set(self.homes))):
            config.fan_cpu[index] = home
        sizes = {
            "pinch_frames": self.capacity,
            "pinch_payloads": self.capacity,
            "pinch_vertices": len(tables.vertices),
            "pinch_edges": len(tables.edges),
            "pinch_hubs": tables.hubs,
            "pinch_hub_queue": tables.hubs,
            "pinch_stash": tables.hubs,
            "pinch_seen": tables.seen,
            "pinch_acked": self.acked_words * group.size,
            "pinch_wanted": self.acked_words * group.size,
            "pinch_sent": (max(self.homes) + 1) * self.capacity,
            "pinch_sq": (max(self.homes) + 1) * SQ_ENTRIES,
            "pinch_accumulators": self.banks * self.targets,
            "pinch_cpus": max(self.homes) + 1,
            "pinch_fan": len(set(self.homes)),
            "pinch_flows": max(self.homes) + 1,
            "pinch_schedule": (max(self.homes) + 1) * self.capacity,
        }
        values = {
            "pinch_payloads": layout.payload,
            "pinch_stash": 8 * layout.words,
            "pinch_accumulators": 8 * layout.wide,
        }
        least = {name: max(size, 1) for name, size in sizes.items()}
        self._receive = self._open.enter_context(BpfObject("aggregate", config, least, values))
        shared = {
            name: found for name, found in self._receive.maps.items() if not name.startswith(".")
        }
        self._broadcast = self._open.enter_context(BpfObject("broadcast", config, reuse=shared))

    def _share(self, tables: Tables) -> None:
        shared = self._receive.maps
        self.control = Struct(shared["pinch_control"].view(dtype("pinch_control")))
        self.flows = shared["pinch_flows"].view(dtype("pinch_flow")).reshape(-1)
        self._schedule = shared["pinch_schedule"].view(np.uint64).reshape(-1)
        self.frames = shared["pinch_frames"].view(dtype("pinch_frame")).reshape(-1)
        self.payloads: NDArray[np.uint8] = shared["pinch_payloads"].view(np.uint8)
        self.accumulators: NDArray[np.uint64] = shared["pinch_accumulators"].view(np.uint64)
        self.peers = shared["pinch_peers"].view(dtype("pinch_peer")).reshape(-1)[: self.group.size]
        self._acked = shared["pinch_acked"].view(np.uint64).reshape(self.group.size, -1)
        self._wanted = shared["pinch_wanted"].view(np.uint64).reshape(self.group.size, -1)
        self._sq = shared["pinch_sq"].view(np.uint64).reshape(-1, SQ_ENTRIES)
        self._counters = shared["pinch_counters"]
        if len(tables.vertices):
            shared["pinch_vertices"].view(dtype("pinch_vertex")).reshape(-1)[:] = tables.vertices
        if len(tables.edges):
            shared["pinch_edges"].view(dtype("pinch_edge")).reshape(-1)[:] = tables.edges
        near = socket.if_nametoindex(DOORBELL_NEAR)
        for index, device in enumerate((near, socket.if_nametoindex(LINK))):
            shared["pinch_both"].update(index, device)
        for index in range(len(set(self.homes))):
            shared["pinch_fan"].update(index, near)
        if self.cpu != ANYWHERE:
            fill_cpumap(
                shared["pinch_cpus"],
                set(self.homes),
                _QUEUED,
                self._receive.programs["pinch_remote"].fd,
            )
        self.control.partners = (
            1 << self.group.size
        ) - 1  # the first exchange is a barrier of all ranks
        self.control.tag = zlib.crc32(f"{self.layout} {self.spec.aggregation}".encode()) & 0xFFFF
        self._events = shared["pinch_events"]
        self._consumer, self._producer, _ = self._events.ring_buffer()

    def _connect(self, numbers: Numbers) -> None:
        """Open the doorbell, and the native code that kicks it (``testbed/native/pinch.c``)."""
        shared = self._receive.maps
        seen, hub_queue, sent = (
            shared[f"pinch_{name}"].view(np.uint8) for name in ("seen", "hub_queue", "sent")
        )
        here = self.homes[self.group.rank]
        flows = sorted(set(self.homes), key=lambda flow: (flow == here, flow))
        doorbell = Doorbell(self.group, flows, FRAME_BYTES + self.layout.payload)
        self.doorbell = self._open.enter_context(doorbell)
        self._native = Struct(
            "pinch",
            format=numbers.format.value,
            control=self.control.address,
            payloads=self.payloads.ctypes.data,
            frames=self.frames.ctypes.data,
            kicks=ctypes.addressof(doorbell.kicks),
            handshake_kick=ctypes.addressof(doorbell.handshake_kick),
            peers=self.peers.ctypes.data,
            flows=self.flows.ctypes.data,
            frames_to=self._frames_to.ctypes.data,
            seen=seen.ctypes.data,
            acked=self._acked.ctypes.data,
            hub_queue=hub_queue.ctypes.data,
            sent=sent.ctypes.data,
            consumer=self._consumer.ctypes.data,
            producer=self._producer.ctypes.data,
            kick_count=doorbell.kick_count,
            kick_length=doorbell.kick_bytes,
            handshake_kick_length=len(doorbell.handshake_kick),
            rank=self.group.rank,
            ranks=self.group.size,
            flow_count=len(self.flows),
            seen_words=shared["pinch_seen"].max_entries,
            acked_words=shared["pinch_acked"].max_entries,
            hub_places=shared["pinch_hub_queue"].max_entries,
            sent_records=shared["pinch_sent"].max_entries,
            doorbell=doorbell.fd,
            events=self._events.fd,
        )
        self._address = self._native.address
        library = load("pinch")
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        library.pinch_send.argtypes = [
            pointer,
            pointer,
            pointer,
            pointer,
            u32,
            ctypes.c_double,
            pointer,
        ]
        library.pinch_wait.argtypes = [pointer, ctypes.c_int64]
        library.pinch_kick.argtypes = [pointer]
        library.pinch_open.argtypes, library.pinch_open.restype = [pointer, u32], None
        library.pinch_enter.argtypes = [pointer, u32, u32, u32]
        library.pinch_end.argtypes = [pointer, u32, u32, u32]
        library.pinch_highest.argtypes, library.pinch_highest.restype = [pointer], u32
        self._library = library

    def address(self, bundles: Bundles) -> None:
        """Set the ranks of each frame, and which frames ask for acknowledgements, from the next
        `enter` on.
        """
        parts = self.layout.parts
        to = np.repeat(bundles.to, parts)
        frames = self.frames[: len(to)]
        peers = -(-(self.group.size - 1) // len(set(self.homes)))  # per flow
        window = min(self.group.window * peers, _MOST_IN_FLIGHT)
        every = max(1, min(_ACK_EVERY, window // (4 * peers)))
        ask = np.zeros(len(to), np.uint32)
        self._acked[:] = np.uint64(
            self.seq << 32
        )  # before late acknowledgements find the new bitmaps
        self._wanted[:] = 0
        self._frames_to[:] = 0
        for rank in range(self.group.size):
            mine = np.flatnonzero(to >> np.uint32(rank) & np.uint32(1))
            self._frames_to[rank] = len(mine)
            if len(mine):
                asked = np.zeros(len(mine), bool)
                asked[every - 1 :: every] = True
                asked[-1] = True
                asked[:-1] |= np.diff(mine // 32) > max(
                    ACK_BEHIND // every, 1
                )  # an acknowledgement reaches so far back
                ask[mine[asked]] |= np.uint32(1 << rank)
                np.bitwise_or.at(
                    self._wanted[rank], mine // 32, np.uint64(1) << (mine % 32).astype(np.uint64)
                )
        frames["to"], frames["ask"] = to, ask
        frames["copies"] = np.bitwise_count(to)
        for flow in set(self.homes):
            ranks = np.uint32(
                sum(1 << rank for rank, home in enumerate(self.homes) if home == flow)
            )
            numbers = np.flatnonzero(to & ranks)
            self._schedule[flow * self.capacity :][: len(numbers)] = numbers
            self.flows["total"][flow] = len(numbers)
        self.control.window = window
        self._copies = int(frames["copies"].sum())

    def open(self, seq: int) -> None:
        """Accept frames of a sequence number from here on; there is nothing to send yet."""
        self.seq = seq
        self._library.pinch_open(self._address, seq)

    def enter(self, exponent: int | None, holds: range) -> None:
        """Tell all partners that this rank accepts frames, its largest exponent, and how many
        frames it has for each.

        :param exponent: None: it has values that are not finite.
        :param holds: Range of the group's largest exponent in which payloads can be sent as they
            will be filled.
        """
        said = NOT_FINITE if exponent is None else exponent - LEAST_EXPONENT
        lowest, highest = (
            (holds[0] - LEAST_EXPONENT, holds[-1] - LEAST_EXPONENT) if holds else (1, 0)
        )
        self.doorbell.check(self._library.pinch_enter(self._address, said, lowest, highest))

    def send_handshakes(self, attempt: int) -> None:
        """Repeat handshakes to partners from which something is missing, or the end to ranks that
        do not know it.

        :param attempt: 1 or more.
        """
        self.doorbell.send_handshakes(
            (attempt - 1) % 255 + 1
        )  # different each time, because fault rules match on it

    @property
    def handshakes(self) -> NDArray[np.uint64]:
        """Each rank's handshake; 0: none has arrived."""
        words: NDArray[np.uint64] = self.peers["theirs"][:, self.seq & 1].copy()
        words[words >> np.uint64(32) != self.seq] = 0
        return words

    @property
    def highest(self) -> int | None:
        """The largest exponent of all ranks' values, after all have entered; None: some are not
        finite.
        """
        said = self._library.pinch_highest(self._address)
        return None if said == NOT_FINITE else said + LEAST_EXPONENT

    @property
    def nonfinite(self) -> list[int]:
        """Ranks with values that are not finite."""
        return [
            rank
            for rank, word in enumerate(self.handshakes.tolist())
            if exponent_in(word) == NOT_FINITE
        ]

    def end(
        self,
        nonfinite: Collection[int] = (),
        gone: Collection[int] = (),
        late: Collection[int] = (),
    ) -> None:
        """Tell all ranks that exchanges have ended.

        :param nonfinite: Ranks with values that are not finite.
        :param gone: Ranks that went silent.
        :param late: Ranks that are up but did not enter in time.
        """
        masks = (sum(1 << rank for rank in ranks) for ranks in (nonfinite, gone, late))
        self.doorbell.check(self._library.pinch_end(self._address, *masks))

    @property
    def ended(self) -> tuple[list[int], list[int], list[int]]:
        """Why exchanges have ended: ranks with values that are not finite, silent ranks, late
        ranks; see `end`.
        """
        masks = int(self.control.nonfinite), int(self.control.gone), int(self.control.late)
        nonfinite, gone, late = (
            [rank for rank in range(self.group.size) if mask >> rank & 1] for mask in masks
        )
        return nonfinite, gone, late

    @property
    def may_go(self) -> bool:
        """Whether all ranks know that exchanges have ended."""
        everybody = (1 << self.group.size) - 1
        return any(self.ended) and int(self.control.end_acked) | 1 << self.group.rank == everybody

    def send(
        self, x: Embeddings, bundles: Bundles, factor: float, last: NDArray[np.int32] | None
    ) -> None:
        """Quantize and send.

        :param last: See `Numbers.fill`.
        """
        self.control.copies = self._copies
        addresses = x.ctypes.data, bundles.order.ctypes.data, bundles.starts.ctypes.data
        before = None if last is None else last.ctypes.data
        self.doorbell.check(
            self._library.pinch_send(self._address, *addresses, len(bundles.to), factor, before)
        )

    def kick(self, work: bool = False) -> None:
        """Kick every flow with a system call, which may carry frames for a while.

        :param work: Go on with what has come in, too.
        :raises CollectiveError: The doorbell is gone.
        """
        if work:
            self.doorbell.work()
        self.doorbell.check(self._library.pinch_kick(self._address))

    def wait(self, seconds: float) -> Waited:
        """Sleep until the exchange is complete, the scale does not fit, exchanges have ended, or
        time is up.
        """
        result = self._library.pinch_wait(self._address, int(max(seconds, 0.0) * 1e9))
        self.doorbell.check(-result if result < 0 else 0)
        return Waited(result)

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in `send` and `wait` since the start, by phase."""
        return {
            phase: getattr(self._native, f"{phase}_ns") * 1e-9
            for phase in ("quantize", "send", "wait")
        }

    @property
    def copies(self) -> int:
        """Acknowledgements that have yet to arrive."""
        return 0 if self.control.copies == UNKNOWN else int(self.control.copies)

    @property
    def in_flight(self) -> bool:
        """Whether a sent frame is not acknowledged."""
        return bool(self.flows["in_flight"].any())

    def lacking(self, rank: int) -> NDArray[np.int64]:
        """Frames that were sent to a rank and are not acknowledged."""
        words = self._acked[rank]
        have = np.where(words >> np.uint64(32) == np.uint64(self.seq), words, np.uint64(0))
        missing = self._wanted[rank] & ~have & np.uint64(0xFFFFFFFF)
        bits = np.unpackbits(missing.astype("<u4").view(np.uint8), bitorder="little")
        numbers: NDArray[np.int64] = np.flatnonzero(bits)
        flow = self.homes[rank]
        sent = self._schedule[flow * self.capacity :][: int(self.flows["next"][flow])]
        return numbers[np.isin(numbers, sent.astype(np.int64))]

    def seen(self) -> Seen:
        """The state that `Policy` decides on."""
        partners, peers = int(self.control.partners), self.peers.copy()
        counts = {
            name: peers[name].tolist()
            for name in ("received", "acked", "heard", "news", "answers", "at", "waits")
        }
        return Seen(
            rank=self.group.rank,
            seq=self.seq,
            partners=[
                rank
                for rank in range(self.group.size)
                if partners >> rank & 1 and rank != self.group.rank
            ],
            handshakes=self.handshakes.tolist(),
            lacking=lambda rank: self.lacking(rank).tolist(),
            met=seq_of(int(self.control.met)) == self.seq,
            owed=int(self.control.owed),
            **counts,
        )

    def act(self, actions: Actions) -> None:
        """Carry out what the policy says, and kick all flows."""
        if actions.handshake:
            self.send_handshakes(actions.handshake)
        for rank, numbers in actions.asks.items():
            self.post(rank, np.array(numbers) | WR_ASK)
        for rank, numbers in actions.resends.items():
            self.post(rank, np.array(numbers))
        self.kick(actions.work)

    def post(self, rank: int, numbers: NDArray[np.int64]) -> None:
        """Post work requests to retransmit frames that a rank lacks, or to ask about them; a kick
        carries them out.
        """
        number = self.homes[rank]
        flow = self.flows[number]
        room = SQ_ENTRIES - (int(flow["sq_tail"]) - int(flow["sq_head"])) % (1 << 32)
        entries = np.uint64(self.seq << 32) | numbers[:room].astype(np.uint64)
        self._sq[number, (int(flow["sq_tail"]) + np.arange(len(entries))) % SQ_ENTRIES] = entries
        flow["sq_tail"] = (int(flow["sq_tail"]) + len(entries)) % (1 << 32)

    def counters(self) -> dict[str, int]:
        """All of ``enum pinch_counter``, summed over CPUs."""
        table = np.frombuffer(self._counters.lookup(0), np.uint64).reshape(-1, len(COUNTERS))
        return dict(zip(COUNTERS, table.sum(axis=0).tolist(), strict=True))

    def close(self) -> None:
        """Leave the group's frames to the dispatcher's counter of strangers, and unload."""
        self._open.close()
