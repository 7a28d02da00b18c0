"""The delay line of a switch: a separate process that holds frames until they are due
(``testbed/native/delay_line.c``).

The switch's programs prepend ``struct delay_header`` to a frame and redirect it into ``delay0``.
The process reads it from a packet socket at ``delay1``, the other end of that veth pair, keeps it
in a heap by due time, and sends it out of the port that the header names; while the switch floods,
also out of the other ports.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from pyroute2.netlink.rtnl.ifinfmsg import IFF_NOARP, IFF_UP

from testbed.core.closing import Closing
from testbed.core.errors import FaultError
from testbed.fabric.namespace import NetworkNamespace
from testbed.faults import delay_header
from testbed.faults.delay_counters import DelayCounters
from testbed.kernel import Map
from testbed.kernel.abi import Struct, dtype
from testbed.native import compile_native
from testbed.plan import MAX_MTU

__all__ = ["CAPACITY", "ENTRANCE", "EXIT", "DelayLine"]

#: Where programs redirect delayed frames to, and where the process reads them.
ENTRANCE, EXIT = "delay0", "delay1"
CAPACITY = 65536
"""Maximum number of frames that wait."""
_MAX_CAPACITY = 1 << 20
_ETHERNET = 14  # bytes
_START_TIMEOUT = 10.0  # seconds
_STOP_TIMEOUT = 2.0
_BUFFER = 64 << 20  # bytes of the socket's memory: some 20,000 frames
_SOL_PACKET, _PACKET_STATISTICS = 263, 6  # linux/socket.h, linux/if_packet.h
_STATISTICS = struct.Struct("=II")  # struct tpacket_stats: packets, drops
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h


class DelayLine(Closing):
    """A veth pair and a process, from the constructor to :meth:`close`; the switch's worker creates
    them in its namespace.

    Nothing outlives the worker: the process ends with its standard input and by PR_SET_PDEATHSIG,
    and the pair disappears with the namespace.

    :param mtu: MTU of the switch's ports, bytes.
    :param links: The map of ``struct delay_link`` by link, for frames that others have to overtake.
    :param wakeups: The ring buffer with which programs signal that frames pass on links that hold
        frames.
    :param flooding: The map that tells whether the switch floods; without it, it never does.
    :param ports: ifindexes of the switch's ports, through which frames leave then.
    :param capacity: Maximum number of frames that wait; more are dropped and counted.
    :raises FaultError: The process did not start; the text is its output.
    :raises KernelError: The pair could not be made, as when this namespace has a delay line
        already.
    """

    def __init__(
        self,
        mtu: int,
        links: Map | None = None,
        wakeups: Map | None = None,
        flooding: Map | None = None,
        ports: Sequence[int] = (),
        capacity: int = CAPACITY,
    ) -> None:
        if not 1 <= capacity <= _MAX_CAPACITY:
            raise FaultError(
                f"capacity of a delay line: {capacity}: must be 1 to {_MAX_CAPACITY} frames"
            )
        self._lost = self._dropped = 0
        with ExitStack() as stack:
            self._namespace = stack.enter_context(NetworkNamespace(os.getpid()))
            self._make_pair(stack)
            self._socket = stack.enter_context(_packet_socket())
            with os.fdopen(os.memfd_create("delay_line"), "r+b") as file:
                file.truncate(dtype("delay_line").itemsize)
                self._memory = Struct(
                    np.frombuffer(mmap.mmap(file.fileno(), 0), dtype("delay_line"), 1)
                )
                self._memory.capacity = capacity
                self._memory.room = -(-(delay_header.SIZE + _ETHERNET + mtu) // 64) * 64
                if links:
                    self._memory.link_stride, self._memory.links = links.stride, links.max_entries
                if wakeups:
                    self._memory.wakeups = wakeups.max_entries
                self._memory.port[: len(ports)] = ports
                maps = [one.fd if one else -1 for one in (links, wakeups, flooding)]
                descriptors = [self._socket.fileno(), file.fileno(), *maps]
                self._process = self._start(stack, descriptors)
            self._stack = stack.pop_all()

    @property
    def ifindex(self) -> int:
        """Index of :data:`ENTRANCE`, for programs to redirect to."""
        return self._entrance

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def counters(self) -> DelayCounters:
        """Return the counts so far; after :meth:`close`, the final ones.

        :raises FaultError: The process has died.
        """
        if self._open:
            if self._process.poll() is not None:
                raise self._died()
            self._count_lost()
        return DelayCounters.read(self._memory, self._lost + self._dropped)

    def close(self) -> None:
        """Drop and count the frames that are still waiting, end the process and remove the pair."""
        self._stack.close()

    @property
    def _open(self) -> bool:
        return self._socket.fileno() >= 0

    def _make_pair(self, stack: ExitStack) -> None:
        request = self._namespace.request
        # Each queue has a ring of 256 frames, and a redirected frame uses that of its CPU.
        size = {
            "mtu": MAX_MTU,
            "num_tx_queues": 1,
            "num_rx_queues": os.cpu_count(),
        }
        request("link", "add", ifname=ENTRANCE, kind="veth", peer={"ifname": EXIT, **size}, **size)
        self._entrance = self._namespace.index(ENTRANCE)
        stack.callback(request, "link", "del", index=self._entrance)
        # A veth accepts redirected frames only while its peer has NAPI (veth_xdp_xmit in
        # drivers/net/veth.c).
        self._namespace.offload(EXIT, gro=True)
        ends = (self._entrance, self._namespace.index(EXIT))
        for index in ends:
            request("link", "set", index=index, flags=IFF_UP | IFF_NOARP, change=IFF_UP | IFF_NOARP)
        # A device is "up" before its queues are; see NamespaceNode.ready.
        deadline = time.monotonic() + _START_TIMEOUT
        while any(request("get_links", index)[0].get("operstate") != "UP" for index in ends):
            if time.monotonic() > deadline:
                raise FaultError(
                    f"{ENTRANCE} and {EXIT} are not up {_START_TIMEOUT:g} s after they should be"
                )
            time.sleep(0.001)

    def _start(self, stack: ExitStack, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        """Start the process, and wait until it listens; it knows the descriptors by
        their numbers.
        """
        process = subprocess.Popen(
            [str(compile_native("delay_line")), *map(str, descriptors)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[descriptor for descriptor in descriptors if descriptor >= 0],
            process_group=0,  # a Ctrl-C at the terminal is for the controller
        )
        stack.callback(self._stop)
        self._process = process
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT)
        if not ready or not process.stdout.read(1):
            process.kill()
            raise self._died()
        return process

    def _stop(self) -> None:
        """End the process, which counts the frames still waiting; then count those that never
        reached it.
        """
        with self._process as process:  # closes the pipes, stdin first, and waits
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
        self._count_lost()

    def _died(self) -> FaultError:
        assert self._process.stderr
        status = self._process.wait(_STOP_TIMEOUT)
        said = self._process.stderr.read().decode(errors="replace").strip()
        return FaultError(f"the delay line ended with status {status}: {said or 'it said nothing'}")

    def _count_lost(self) -> None:
        """Count the frames for which the socket's buffer (whose counter is reset by reading) or the
        pair's rings had no room.
        """
        _, dropped = _STATISTICS.unpack(
            self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        )
        self._lost += dropped
        entrance = self._namespace.request("get_links", self._entrance)[0]
        self._dropped = entrance.get("stats64")["tx_dropped"]


def _packet_socket() -> socket.socket:
    """Return a socket that reads delayed frames at :data:`EXIT` and sends frames anywhere."""
    with ExitStack() as stack:
        # No protocol yet: with one, it would receive from every device until it is bound.
        opened = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        for option in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
            opened.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        opened.bind((EXIT, delay_header.ETHERTYPE))
        stack.pop_all()
        return opened
