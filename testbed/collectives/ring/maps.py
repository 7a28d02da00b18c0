"""The programs of one rank of one group, and the memory that they share with its process."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.collectives.ring.layout import (
    Layout,
    Pace,
    chunk_bytes_for,
    chunks_for,
    least_chunks,
    nack_holdoff_for,
    retransmit_slots_for,
    window_for,
)
from testbed.comm.group import GroupSpec
from testbed.core.closing import Closing
from testbed.core.errors import SpecError
from testbed.datapath.dispatcher import DOORBELL_FAR, LINK
from testbed.host.cpus import usable_cpus
from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct
from testbed.kernel.cpumap import fill_cpumap
from testbed.protocol.lanes import Lanes
from testbed.protocol.ring.liveness import End
from testbed.protocol.ring.memory import COUNTERS, EARLY_SLOTS
from testbed.protocol.wire import MAX_CHUNKS, net_peer

__all__ = ["Maps", "Peer"]


@dataclass(frozen=True)
class Peer:
    """The latest state that another rank has reported:
    `testbed.protocol.ring.liveness.PeerState`.
    """

    seq: int
    verified: int
    verified_acked: int
    front: int
    ended: int = 0


class Maps(Closing):
    """``bpf/ring.bpf.c``, loaded for one rank, and views of what it shares with its process.

    :raises SpecError: The capacity takes more frames than a collective may have.
    :raises KernelError: The kernel refused a program or map.
    """

    def __init__(self, spec: GroupSpec, lanes: Lanes) -> None:
        self.spec = spec
        self.chunk_bytes = chunk_bytes_for(spec.mtu, spec.chunk)
        longest = Pace.of(spec).longest(spec.capacity, lanes)
        chunks = max(
            chunks_for(longest, lanes, self.chunk_bytes), least_chunks(lanes, self.chunk_bytes)
        )
        self.chunks = chunks
        if chunks > MAX_CHUNKS:
            raise SpecError(
                f"group: capacity = {spec.capacity}: must be at most what {MAX_CHUNKS} frames"
                f" carry, of {self.chunk_bytes} bytes each with mtu = {spec.mtu}; this takes"
                f" {chunks}"
            )
        cpus = usable_cpus()
        # The program assumes CPUs 0..n-1: without spreading it is slower, not wrong.
        self.cpus = len(cpus) if cpus == tuple(range(len(cpus))) else 1
        self.window = window_for(spec.window, spec.size, self.chunk_bytes, tokens=spec.tokens)
        retransmit_slots = retransmit_slots_for(
            self.window, spec.size, chunks if spec.reproducible else 0
        )
        config = Struct(
            "ring_config",
            cookie=spec.cookie,
            rank=spec.rank,
            ranks=spec.size,
            group=spec.group_id,
            chunk_bytes=self.chunk_bytes,
            chunks=chunks,
            retransmit_slots=retransmit_slots,
            upstream=spec.recovery == "upstream",
            reorder_threshold=spec.reorder_threshold,
            cpus=self.cpus,
            uplink=socket.if_nametoindex(LINK),
        )
        for other in spec.members:
            config.peers[other.rank] = net_peer(spec.me.endpoint, other.endpoint)
        payload = ("ring_inputs", "ring_results", "ring_early_data", "ring_retransmit_data")
        sizes = dict.fromkeys(("ring_inputs", "ring_results", "ring_chunks"), chunks)
        sizes |= {"ring_streams": os.sysconf("SC_NPROCESSORS_CONF"), "ring_cpus": self.cpus}
        sizes |= {"ring_retransmit": retransmit_slots, "ring_retransmit_data": retransmit_slots}
        self._object = BpfObject(
            "ring",
            rodata=config,
            max_entries=sizes,
            value_sizes=dict.fromkeys(payload, self.chunk_bytes),
        )
        self.programs = self._object.programs
        try:
            self._view()
            self._fill()
        except BaseException:
            self._object.close()
            raise

    def _view(self) -> None:
        shared, layout_of = self._object.maps, self._object.dtype
        self.inputs: NDArray[np.uint8] = shared["ring_inputs"].view(np.uint8).reshape(-1)
        self.results: NDArray[np.uint8] = shared["ring_results"].view(np.uint8).reshape(-1)
        self.records = shared["ring_chunks"].view(layout_of("ring_chunk")).reshape(-1)
        self.control = Struct(shared["ring_control"].view(layout_of("ring_control")))
        self.early_frames = shared["ring_early_frames"].view(np.uint8)
        self.sq = shared["ring_sq"].view(np.uint8)
        self.streams = shared["ring_streams"].view(layout_of("ring_stream")).reshape(-1)
        self.ranks = shared["ring_ranks"].view(layout_of("ring_rank")).reshape(-1)
        self.events = shared["ring_events"]
        self.consumer, self.producer, _ = self.events.ring_buffer()
        self._counters = shared["ring_counters"]

    def _fill(self) -> None:
        shared = self._object.maps
        self.control.nack_holdoff_us = nack_holdoff_for(self.spec.reproducible)
        far = socket.if_nametoindex(DOORBELL_FAR)
        for index, device in enumerate((socket.if_nametoindex(LINK), far)):
            shared["ring_fan_nack"].update(index, device)
        for fan in ("ring_fan_small", "ring_fan_large"):
            for index in range(shared[fan].max_entries):
                shared[fan].update(index, far)
        shared["ring_executor"].update(0, self.programs["ring_execute"].fd)
        remote = self.programs["ring_remote"].fd
        fill_cpumap(
            shared["ring_cpus"], range(shared["ring_cpus"].max_entries), EARLY_SLOTS, remote
        )

    def moved(self) -> int:
        """Number of frames that brought something new, since the start."""
        return int(self.streams["progress"].sum())

    def heard(self) -> NDArray[np.uint64]:
        """Number of frames from each rank, since the start."""
        found: NDArray[np.uint64] = self.streams["heard"].sum(axis=0, dtype=np.uint64)[
            : self.spec.size
        ]
        return found

    def peers(self) -> list[Peer]:
        """The latest state that each rank has reported; zeros: it has reported none."""
        return [
            Peer(
                *(
                    int(row[name])
                    for name in ("seq", "verified", "verified_acked", "front", "ended")
                )
            )
            for row in self.ranks[: self.spec.size].copy()
        ]

    @property
    def ended(self) -> End | None:
        """Why a rank, possibly this one, has given up; None: no rank is known to have given up."""
        return End.of(int(self.control.ended))

    def end(self, end: End) -> None:
        """Give up: from now on, this rank's programs say so in probes and answers."""
        self.control.ended = end.word

    def forget(self, seq: int) -> None:
        """Reset the state of collectives before ``seq``, so that it does not look like future
        results once numbers have wrapped.
        """
        for name in ("reduced", "result"):
            words = self.records[name]
            words[words >> np.uint64(32) != seq] = 0

    def counters(self) -> dict[str, int]:
        """All of ``enum ring_counter``, summed over CPUs."""
        table = np.frombuffer(self._counters.lookup(0), np.uint64).reshape(-1, len(COUNTERS))
        return dict(zip(COUNTERS, table.sum(axis=0).tolist(), strict=True))

    def status_bytes(self, layout: Layout) -> bytes:
        """The whole reduced status."""
        return layout.status_in(self.results, self.chunk_bytes)

    def close(self) -> None:
        """Unload."""
        self._object.close()
