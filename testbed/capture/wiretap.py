"""Frames that arrive at ends of links, whether XDP takes them or the stack gets them."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from testbed.capture.guard import Guard
from testbed.capture.order import enter, leave, locked, order
from testbed.capture.pcapng import INBOUND, OUTBOUND, Packet
from testbed.capture.ports import End, Port
from testbed.core.closing import Stacked
from testbed.core.errors import FabricError, KernelError
from testbed.fabric.namespace import NetworkNamespace, inside
from testbed.fabric.runs import Run
from testbed.kernel import BpfObject, Map
from testbed.kernel.abi import Struct, constant, dtype
from testbed.kernel.xdp_links import XdpLink, program_number, xdp_links

__all__ = ["Tap"]

_BEHIND: Final = "capture_behind"  # in bpf/capture.bpf.c: what its program hands on to
_REFRESH: Final = 0.25  # seconds between two looks at which programs are attached
_POLL: Final = 0.02  # seconds between two readings of the ring buffer
_RINGBUF: Final = 27  # enum bpf_map_type
_BUSY, _DISCARD = 1 << 31, 1 << 30  # BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT
_ETH_P_ALL, _SOL_PACKET, _IGNORE_OUTGOING, _STATISTICS = 3, 263, 23, 6  # linux/if_packet.h
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35  # asm-generic/socket.h
_BUFFER: Final = 1 << 26
_LARGEST: Final = 1 << 18  # bytes of what a socket gets at once: TSO makes frames of 64 KiB


@dataclass
class _Watched:
    """An end of a link.

    :param loaded: By their numbers, two programs that copy what arrives here: one for where frames
        come in pieces, and one for where they do not. A program can only hand on to its like.
    :param ahead: Whether it gets frames; otherwise the socket sees all.
    """

    end: End
    namespace: NetworkNamespace
    ifindex: int
    socket: socket.socket
    loaded: Mapping[int, BpfObject]
    ahead: bool = False
    dropped: int = 0


class Tap(Stacked):
    """Captures frames of a run's ports; a context manager.

    At an end where XDP is attached, a program that copies frames is put in front of those that are
    there (`testbed.capture.order`); this is undone at the end, also if this process is killed.
    Elsewhere a packet socket sees them. A run may change that: it is looked at again and again.

    :param snap: Bytes to keep of a frame, at most.
    :raises FabricError: The run has ended.
    """

    def __init__(self, run: Run, ports: Sequence[Port], snap: int) -> None:
        self._run, self._ports, self._snap = run, ports, snap
        self._folder = run.file.path.with_suffix("")

    def _enter(self, stack: ExitStack) -> None:
        self._controller = os.pidfd_open(self._run.state.controller.pid)
        stack.callback(os.close, self._controller)
        self._frames = Map.create("frames", _RINGBUF, 0, 0, constant("CAPTURE_ROOM"))
        stack.callback(os.close, self._frames.fd)
        self._consumer, self._producer, self._data = self._frames.ring_buffer()
        self._head = dtype("captured")
        # Of the clock that frames are stamped with in the kernel.
        self._epoch = time.time_ns() - time.monotonic_ns()
        ends = dict.fromkeys(end for port in self._ports for end in (port.own, port.other))
        self._watched = [self._watch(stack, number, end) for number, end in enumerate(ends)]
        stack.enter_context(Guard(self._leave))
        stack.callback(self._leave)
        self._refresh()

    def _watch(self, stack: ExitStack, number: int, end: End) -> _Watched:
        holder = self._run.nodes.get(end.node)
        if holder is None:
            raise FabricError(f"{end.node} of run {self._run.run_id!r} is not up")
        namespace = stack.enter_context(NetworkNamespace(holder.pid))
        opened = stack.enter_context(inside(namespace.fd, _packet_socket))
        opened.bind((end.ifname, _ETH_P_ALL))
        config = Struct("capture_config", end=number, snap=self._snap)
        loaded = {}
        for name in ("capture", "capture_whole"):
            program = stack.enter_context(
                BpfObject("capture", rodata=config, reuse={"frames": self._frames}, programs=[name])
            )
            loaded[program_number(program.programs[name].fd)] = program
        return _Watched(end, namespace, namespace.index(end.ifname), opened, loaded)

    def _leave(self) -> None:
        own = {number for watched in self._watched for number in watched.loaded}
        with locked(self._folder):
            for link in xdp_links():
                programs, present = XdpLink(link.number, _BEHIND), list[int]()
                with suppress(KernelError):  # the others are still to be undone
                    present = order(programs)
                for each in own.intersection(present):
                    with suppress(KernelError):
                        leave(programs, each)

    def _refresh(self) -> None:
        self._refreshed = time.monotonic()
        with locked(self._folder):
            links = {(link.ifindex, link.program): link.number for link in xdp_links()}
            for watched in self._watched:
                attached = _attached(watched)
                number = links.get((watched.ifindex, attached))
                watched.ahead = attached in watched.loaded or (
                    number is not None and _entered(XdpLink(number, _BEHIND), watched)
                )

    def packets(self) -> list[Packet]:
        """What has arrived since the last call, in the order of time; waits for a moment.

        :raises FabricError: The run has ended.
        """
        sockets = [watched.socket.fileno() for watched in self._watched]
        ready, _, _ = select.select([self._controller, *sockets], [], [], _POLL)
        if self._controller in ready:
            raise FabricError(f"run {self._run.run_id!r} has ended")
        found = list(self._copied())
        for watched in self._watched:
            received = _received(watched.socket, self._snap)
            if not watched.ahead:
                found += (packet for each in received for packet in self._seen(watched.end, *each))
        if time.monotonic() - self._refreshed > _REFRESH:
            self._refresh()
        return sorted(found)

    def _seen(self, end: End, moment: int, length: int, data: bytes) -> Iterator[Packet]:
        for index, port in enumerate(self._ports):
            if port.own == end:
                yield Packet(moment, index, INBOUND, length, data)
            if port.other == end:
                yield Packet(moment, index, OUTBOUND, length, data)

    def _copied(self) -> Iterator[Packet]:
        """The records of the ring buffer (Documentation/bpf/ringbuf.rst)."""
        place, end = int(self._consumer[0]), int(self._producer[0])
        room, size = self._frames.max_entries, self._head.itemsize
        while place < end:
            start = place % room
            length = int(self._data[start : start + 4].view("<u4")[0])
            if length & _BUSY:
                break
            bytes_ = length & ~_DISCARD
            record = self._data[start + 8 : start + 8 + bytes_]
            if not length & _DISCARD:
                moment, number, whole, copied, _ = record[:size].view(self._head)[0].item()
                data = record[size : size + copied].tobytes()
                yield from self._seen(self._watched[number].end, moment + self._epoch, whole, data)
            place += 8 + bytes_ + -bytes_ % 8
            self._consumer[0] = place

    def lost(self) -> Mapping[int, int]:
        """Frames for which there was no room, by index of the port."""
        missed = {}
        for watched in self._watched:
            raw = watched.socket.getsockopt(_SOL_PACKET, _STATISTICS, 8)
            watched.dropped += 0 if watched.ahead else struct.unpack("II", raw)[1]
            copies = (own.maps["lost"].lookup(0) for own in watched.loaded.values())
            missed[watched.end] = watched.dropped + sum(
                int.from_bytes(each, "little") for each in copies
            )
        return {
            index: missed[port.own] + missed[port.other] for index, port in enumerate(self._ports)
        }


def _packet_socket() -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    opened.setblocking(False)
    return opened


def _received(opened: socket.socket, snap: int) -> list[tuple[int, int, bytes]]:
    """Time, length and bytes of what a socket has received."""
    found: list[tuple[int, int, bytes]] = []
    while True:
        try:
            data, ancillary, _, _ = opened.recvmsg(_LARGEST, socket.CMSG_SPACE(16))
        except BlockingIOError:
            return found
        except OSError as error:
            raise KernelError(f"a packet socket failed: {error}") from error
        stamps = [
            struct.unpack("qq", value)
            for level, kind, value in ancillary
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS)
        ]
        seconds, nanoseconds = stamps[0] if stamps else divmod(time.time_ns(), 10**9)
        found.append((seconds * 10**9 + nanoseconds, len(data), data[:snap]))


def _entered(link: XdpLink, watched: _Watched) -> bool:
    in_pieces, whole = watched.loaded
    try:
        return enter(link, in_pieces)
    except KernelError:  # it cannot hand on to what is there
        return enter(link, whole)


def _attached(watched: _Watched) -> int:
    """The number of the XDP program at an end; 0: there is none."""
    (device,) = watched.namespace.request("get_links", watched.ifindex)
    xdp: Any = device.get_attr("IFLA_XDP")
    return (xdp and xdp.get_attr("IFLA_XDP_PROG_ID")) or 0
