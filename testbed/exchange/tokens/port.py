"""One rank's end of an exchange by tokens: its programs, and the process's side of them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroute2.netlink.rtnl.ifinfmsg import IFF_RUNNING

from testbed.comm.group import GroupSpec
from testbed.core.closing import Closing
from testbed.core.errors import CollectiveError
from testbed.datapath.dispatcher import LINK, Dispatcher
from testbed.exchange.adjacency import row_source
from testbed.exchange.interface import Embeddings, ExchangeSpec
from testbed.exchange.tokens.adding import Adding
from testbed.exchange.tokens.kept import Cache
from testbed.exchange.tokens.layout import Layout, Partner
from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct, constant, counter_names, dtype
from testbed.kernel.libbpf import explain
from testbed.native import load
from testbed.protocol.sequence import seq_after
from testbed.protocol.wire import net_peer

__all__ = ["COUNTERS", "TokenPort", "Waited"]

COUNTERS = counter_names("token_counter", "TOKEN_")

_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20  # linux/if_packet.h
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h
_SIOCGIFFLAGS = 0x8913  # linux/sockios.h
_SEND_BUFFER = 16 << 20
_IN_FLIGHT = 128 << 10
"""Bytes that a process sends at once: further tokens hardly help where hosts share processors, and
the process has to copy them.
"""
_RING = 192
"""Most frames on their way to a rank: the ring of a veth's queue has 256 entries."""


class Waited(IntEnum):
    """The result of `TokenPort.wait`: ``enum tokens_waited``."""

    TIME_UP = constant("TOKENS_TIME_UP")
    COMPLETE = constant("TOKENS_COMPLETE")
    DAMAGED = constant("TOKENS_DAMAGED")
    DIFFER = constant("TOKENS_DIFFER")
    OVER = constant("TOKENS_OVER")


class TokenPort(Closing):
    """Maps and programs of ``bpf/tokens.bpf.c``, and the functions of ``testbed/native/tokens.c``.

    :ivar landing: The data that has landed.
    :ivar steps: float32: the steps of halo rows, or with fixed lanes of each rank's; as of the
        latest `wait` that was complete.
    :param adding: What the program adds; None: the process adds.
    :raises KernelError: The kernel refused a program or map.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        spec: ExchangeSpec,
        layout: Layout,
        adding: Adding | None = None,
    ) -> None:
        self.group, self.layout = spec.group, layout
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._open)
            rings = layout.rings and dispatcher.rings
            self._config = _config(spec, layout, rings)
            if adding:
                _configure(self._config, adding, spec, layout.room)
            sizes = {
                "token_outs": 2 * layout.outs,
                "token_order": 2 * layout.outs,
                "token_slots": 2 * layout.slots,
                "token_payloads": 2 * layout.outs,
                "token_landing": 2 * layout.slots,
                **_sizes(adding),
            }
            self._object = self._open.enter_context(
                BpfObject(
                    "tokens",
                    self._config,
                    {name: max(size, 2) for name, size in sizes.items()},
                    {
                        "token_payloads": layout.room,
                        "token_landing": layout.room,
                        "token_sums": 16 * layout.form.words,
                    },
                )
            )
            maps = self._object.maps
            if adding:
                for name in ("parts", "edges", "weights"):
                    table = getattr(adding, name)
                    memory = maps[f"token_{name}"].view(table.dtype).reshape(-1)
                    memory[: len(table)] = table
            self.sums: NDArray[np.uint8] = maps["token_sums"].view(np.uint8)
            self.control = Struct(maps["token_control"].view(dtype("token_control")))
            self.peers = maps["token_peers"].view(dtype("token_peer")).reshape(-1)
            self.slots = maps["token_slots"].view(dtype("token_slot")).reshape(2, -1)
            self.landing: NDArray[np.uint8] = maps["token_landing"].view(np.uint8)
            count = spec.group.size if layout.form.is_fixed else spec.halo.num_halo
            self.steps = np.zeros(max(count, 1), np.float32)
            self.cache = Cache(spec, layout) if layout.form.marked else None
            self._socket = self._open.enter_context(_packet_socket())
            doorbell = dispatcher.doorbell.fd if rings else -1
            self._native = self._make_native(spec, doorbell)
            programs = self._object.programs
            ends = (programs[f"token_{end}"] for end in ("link", "doorbell", "execute"))
            dispatcher.add(self.group.group_id, *ends)
            self._open.callback(dispatcher.remove, self.group.group_id)
            undo.pop_all()

    def _make_native(self, spec: ExchangeSpec, doorbell: int) -> Struct:
        layout, halo, maps = self.layout, spec.halo, self._object.maps
        self._partners = np.zeros(max(len(layout.partners), 1), dtype("token_partner"))
        partner_of = np.zeros(max(layout.outs, 1), np.uint32)
        sums, rows_of = halo.in_sending_order()
        if layout.form.marked:
            rows_of = halo.sends  # of what has been formed already
            self._source = row_source(layout.form, None, spec.aggregation)
        else:
            self._source = row_source(layout.form, sums, spec.aggregation)
        consumer, producer, _ = maps["token_events"].ring_buffer()
        self._memory: list[Any] = [consumer, producer, partner_of, sums]  # kept alive
        first = 0
        for index, partner in enumerate(layout.partners):
            entry = self._partners[index]
            rows = np.ascontiguousarray(rows_of[partner.rank], np.int64)
            self._memory.append(rows)
            entry["rank"], entry["first_row"] = partner.rank, first
            entry["rows_out"], entry["rows"] = len(rows), rows.ctypes.data
            entry["rows_in"], entry["like"] = partner.rows_in, partner.like
            entry["step"] = 1.0  # a guess
            if layout.form.marked and partner.like == index:
                marked = np.zeros(max(len(rows), 1), np.int64)
                self._memory.append(marked)
                entry["marked"] = marked.ctypes.data
            first += partner.rows_in
            partner_of[partner.out :][: partner.frames_out] = index
        addresses = {
            name: maps[f"token_{name}"].view(np.uint8).ctypes.data
            for name in ("outs", "slots", "peers", "payloads", "landing", "order")
        }
        self._call = load("tokens")
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        self._call.tokens_send.argtypes = [pointer, pointer]
        self._call.tokens_ask.argtypes = [pointer, u32, pointer, u32, u32]
        self._call.tokens_end.argtypes = [pointer, u32, u32]
        self._call.tokens_wait.argtypes = [pointer, ctypes.c_int64]
        self._call.tokens_add.argtypes = [pointer]
        self._call.tokens_open.argtypes, self._call.tokens_open.restype = [pointer, u32], None
        native = Struct(
            "tokens",
            control=self.control.address,
            **addresses,
            consumer=consumer.ctypes.data,
            producer=producer.ctypes.data,
            config=self._config.address,
            partners=self._partners.ctypes.data,
            partner_of=partner_of.ctypes.data,
            steps=self.steps.ctypes.data,
            stepped=layout.form.stepped,
            source=self._source.value,
            link=self._socket.fileno(),
            doorbell=doorbell,
            adder=self._object.programs["token_add"].fd,
            events=maps["token_events"].fd,
        )
        if self.cache:
            native.cache = self.cache.struct.value
        return native

    @property
    def seq(self) -> int:
        """Sequence number of the exchange that is open."""
        return int(self._native.seq)

    def open_next(self) -> None:
        """Leave the exchange that is complete, and accept frames of the next."""
        self.open(seq_after(self.seq))

    def open(self, seq: int) -> None:
        """Leave the exchange that is complete, and accept frames of one with another number."""
        self._call.tokens_open(self._native.address, seq)

    def send(self, x: Embeddings | None) -> None:
        """Enter the exchange that is open: pack all frames, and send the first. Without embeddings,
        ranks only meet.
        """
        address = None if x is None else x.ctypes.data
        self._check(self._call.tokens_send(self._native.address, address))

    def wait(self, seconds: float) -> Waited:
        """Sleep until everything has landed, or something else has to be done."""
        found = self._call.tokens_wait(self._native.address, int(max(seconds, 0.0) * 1e9))
        return Waited(found)

    def add(self) -> None:
        """Let the program form all sums of what has landed."""
        self._check(self._call.tokens_add(self._native.address), "adding")

    def ask(self, rank: int, numbers: Sequence[int], attempt: int) -> None:
        """Ask a rank for frames."""
        wanted = np.array(numbers, np.uint32)
        times = (attempt - 1) % 65535 + 1
        error = self._call.tokens_ask(
            self._native.address, rank, wanted.ctypes.data, len(wanted), times
        )
        self._check(error)

    def end(self, gone: Sequence[int], late: Sequence[int]) -> None:
        """Tell all partners that this rank has given up."""
        masks = (sum(1 << rank for rank in ranks) for ranks in (gone, late))
        self._check(self._call.tokens_end(self._native.address, *masks))

    def missing(self, partner: Partner) -> NDArray[np.int64]:
        """Numbers of the frames that have not landed from a rank; where none has, its first."""
        parity = self.seq & 1
        count = int(self.peers["frames"][partner.rank, parity]) or 1
        words = self.slots["claim"][parity][partner.slot :][:count]
        landed = words == np.uint64(self.seq << 32 | constant("TOKEN_LANDED"))
        return np.flatnonzero(~landed)

    @property
    def has_carrier(self) -> bool:
        """Whether the link is up at both ends."""
        request = fcntl.ioctl(self._socket, _SIOCGIFFLAGS, struct.pack("16sH22x", LINK.encode(), 0))
        return bool(struct.unpack("16sH22x", request)[1] & IFF_RUNNING)

    def bytes_from(self, rank: int) -> int:
        """Bytes of data that have landed from a rank."""
        parity = self.seq & 1
        (slot,) = (each.slot for each in self.layout.partners if each.rank == rank)
        count = int(self.peers["frames"][rank, parity])
        return int(self.slots["bytes"][parity][slot:][:count].sum())

    @property
    def nonfinite(self) -> list[int]:
        """Ranks with rows that are not finite, of those that this rank has received or sent."""
        mask = int(self._native.nonfinite)
        return [rank for rank in range(self.group.size) if mask >> rank & 1]

    @property
    def large(self) -> bool:
        """Whether some magnitudes of this exchange are `LARGE` or more."""
        return bool(self._native.flags & constant("PINCH_FLAG_LARGE"))

    @property
    def failed(self) -> int:
        """After `Waited.DIFFER`: a rank."""
        return int(self._native.failed)

    @property
    def landed(self) -> NDArray[np.uint8]:
        """Where rows are that have landed: `Layout.offsets`."""
        if self.cache:
            return self.cache.store
        half = self.landing.size // 2
        return self.landing.reshape(-1)[(self.seq & 1) * half :][:half]

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in `send` and `wait`, by phase."""
        names = {"quantize": "quantize", "send": "send", "wait": "wait", "aggregate": "take"}
        return {phase: getattr(self._native, f"{name}_ns") * 1e-9 for phase, name in names.items()}

    def measures(self) -> dict[str, float]:
        """What the cache has saved."""
        if self.cache is None:
            return {}
        found, form = self._native.cache, self.layout.form
        return {
            "cache_hits": float(found["hits"]),
            "cache_lookups": float(found["lookups"]),
            "bytes_saved": float(found["saved"]) * (form.row_bytes + 4 * form.stepped),
        }

    def counters(self) -> dict[str, int]:
        """All of ``enum token_counter``, summed over CPUs; what the process has sent counts as
        well.
        """
        table = self._object.maps["token_counters"].lookup(0)
        sums = np.frombuffer(table, np.uint64).reshape(-1, len(COUNTERS)).sum(axis=0)
        counts: dict[str, int] = dict(zip(COUNTERS, sums.tolist(), strict=True))
        counts["sent"] += int(self._native.sent)
        counts["sent_bytes"] += int(self._native.sent_bytes)
        return counts

    def _check(self, code: int, what: str = LINK) -> None:
        if code:
            me = self.group.me
            raise CollectiveError(f"rank {self.group.rank} ({me.name}): {what}: {explain(code)}")

    def close(self) -> None:
        """Unregister from the dispatcher, so that the group's frames count as foreign, and
        unload.
        """
        self._open.close()


def _config(spec: ExchangeSpec, layout: Layout, rings: bool) -> Struct:
    group: GroupSpec = spec.group
    at_once = [group.window, _RING // max(len(layout.partners), 1)]
    if not rings:
        at_once.append(_IN_FLIGHT // layout.room)
    window = max(1, min(at_once))
    config = Struct(
        "token_config",
        cookie=group.cookie,
        rank=group.rank,
        ranks=group.size,
        group=group.group_id,
        tag=layout.form.tag(spec.aggregation, spec.halo),
        room=layout.room,
        slots=layout.slots,
        outs=layout.outs,
        partners=len(layout.partners),
        largest=layout.largest,
        link=socket.if_nametoindex(LINK),
        window=window,
        stride=max(1, window // 2) if rings else 1,
    )
    for partner in layout.partners:
        pair = partner.slot, partner.frames_in, partner.out, partner.frames_out
        stepped = layout.form.is_fixed and partner.rows_in > 0
        step = (*layout.step_of(partner), True) if stepped else (0, 0, False)
        config.pairs[partner.rank] = *pair, *step
    for other in group.members:
        config.peers[other.rank] = net_peer(group.me.endpoint, other.endpoint)
    return config


def _configure(config: Struct, adding: Adding, spec: ExchangeSpec, room: int) -> None:
    """Set what the program adds."""
    config.parts, config.words = len(adding.parts), adding.form.words
    config.farthest = room - 8 * adding.form.words
    config.wide = adding.form.lane_bytes == 4
    config.weighted = spec.aggregation == "weighted"
    config.maximum = spec.aggregation == "max"


def _sizes(adding: Adding | None) -> dict[str, int]:
    """Return the sizes of the maps of what the program adds."""
    parts, edges, weights = (
        (len(adding.parts), len(adding.edges), len(adding.weights)) if adding else (0, 0, 0)
    )
    return {
        "token_parts": parts,
        "token_edges": edges,
        "token_weights": weights,
        "token_sums": parts,
    }


def _packet_socket() -> socket.socket:
    """Return a socket that sends frames on the link, past queueing disciplines."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        made.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
        made.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        made.bind((LINK, 0))
    except OSError:
        made.close()
        raise
    return made
