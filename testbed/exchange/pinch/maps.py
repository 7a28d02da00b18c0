"""The programs of one exchange, and the memory that they share with its process."""

from __future__ import annotations

import contextlib
import socket
import zlib

import numpy as np
from numpy.typing import NDArray

from testbed.core.closing import Closing
from testbed.datapath.dispatcher import DOORBELL_NEAR, LINK, Dispatcher
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.pinch.layout import RowLayout, bundle_bound
from testbed.exchange.pinch.placement import Placement
from testbed.exchange.pinch.vertex_tables import Tables
from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct, constant, dtype
from testbed.kernel.cpumap import fill_cpumap
from testbed.protocol.pinch.memory import COUNTERS
from testbed.protocol.pinch.packet import ANYWHERE, SQ_ENTRIES
from testbed.protocol.wire import net_peer

__all__ = ["Maps"]

_STEP = constant("PINCH_STEP")
_QUEUED = 256  # frames that may wait for the CPU that aggregates


class Maps(Closing):
    """``bpf/aggregate.bpf.c`` and ``bpf/broadcast.bpf.c``, loaded for one exchange, and views of
    what they share with its process.

    :param tables: What is received from which rank, and for which vertices.
    :raises KernelError: The kernel refused a program or map.
    """

    def __init__(
        self, spec: ExchangeSpec, layout: RowLayout, placement: Placement, tables: Tables
    ) -> None:
        self._group = group = spec.group
        self.capacity = bundle_bound(len(tables.outgoing), layout.rows) * layout.parts
        self.acked_words = max(-(-self.capacity // 32), 1)
        #: Slots for frames that land, in each bank; 0: programs add up rows.
        self.slots = tables.landing + 1 if tables.landing else 0
        self._steps = -(-layout.payload // (8 * _STEP)) + 1
        #: Distance between slots, bytes.
        self.stride = dtype("pinch_landed").itemsize + 8 * _STEP * self._steps
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._open)
            config = self._config(spec, layout, placement, tables)
            sizes = self._sizes(placement, tables)
            values = {
                "pinch_payloads": layout.payload,
                "pinch_pending": 8 * layout.words,
                "pinch_accumulators": 8 * layout.wide,
                "pinch_landing": self.stride,
            }
            receive = self._open.enter_context(BpfObject("aggregate", config, sizes, values))
            #: All maps, by their names in C.
            self.by_name = {
                name: found for name, found in receive.maps.items() if not name.startswith(".")
            }
            broadcast = BpfObject("broadcast", config, reuse=self.by_name)
            self._open.enter_context(broadcast)
            self.programs = {**receive.programs, **broadcast.programs}
            self._fill(placement, tables)
            undo.pop_all()
        shared = self.by_name
        self.control = Struct(shared["pinch_control"].view(dtype("pinch_control")))
        self.flows = shared["pinch_flows"].view(dtype("pinch_flow")).reshape(-1)
        self._schedule = shared["pinch_schedule"].view().reshape(-1)
        self.frames = shared["pinch_frames"].view(dtype("pinch_frame")).reshape(-1)
        self.payloads: NDArray[np.uint8] = shared["pinch_payloads"].view(np.uint8)
        self.accumulators: NDArray[np.uint64] = shared["pinch_accumulators"].view()
        self.landing: NDArray[np.uint8] = shared["pinch_landing"].view(np.uint8)
        self.landed: NDArray[np.uint64] = shared["pinch_landed"].view()
        self.peers = shared["pinch_peers"].view(dtype("pinch_peer")).reshape(-1)[: group.size]
        self.acked = shared["pinch_acked"].view().reshape(group.size, -1)
        self.wanted = shared["pinch_wanted"].view().reshape(group.size, -1)
        self.sq = shared["pinch_sq"].view().reshape(-1, SQ_ENTRIES)
        self.events = shared["pinch_events"]
        self.consumer, self.producer, _ = self.events.ring_buffer()
        # The first exchange is a barrier of all ranks.
        self.control.partners = (1 << group.size) - 1
        kind = f"{layout} {spec.aggregation} {spec.aggregate}"
        self.control.tag = zlib.crc32(kind.encode()) & 0xFFFF

    def _config(
        self, spec: ExchangeSpec, layout: RowLayout, placement: Placement, tables: Tables
    ) -> Struct:
        group, flows = spec.group, placement.flows
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
            packed=layout.packed,
            sum_words=layout.sum_words,
            aggregation=constant(f"PINCH_{spec.aggregation.upper()}"),
            targets=max(len(tables.targets), 1),
            banks=placement.banks,
            cpu=placement.cpu,
            slice=tables.slice,
            capacity=self.capacity,
            landing=self.slots,
            steps=self._steps,
            acked_words=self.acked_words,
            uplink=socket.if_nametoindex(LINK),
            doorbell=socket.if_nametoindex(DOORBELL_NEAR),
            fan=len(flows),
            sources=tables.sources,
        )
        for other in group.members:
            config.peers[other.rank] = net_peer(group.me.endpoint, other.endpoint)
        for rank, home in enumerate(placement.homes):
            config.home[rank] = home
        for index, flow in enumerate(flows):
            config.homes[flow] = placement.ranks_of(flow)
            config.fan_cpu[index] = flow
        return config

    def _sizes(self, placement: Placement, tables: Tables) -> dict[str, int]:
        flows, ranks = placement.flow_limit, self._group.size
        sizes = {
            "pinch_frames": self.capacity,
            "pinch_payloads": self.capacity,
            "pinch_vertices": len(tables.vertices),
            "pinch_edges": len(tables.edges),
            "pinch_hubs": tables.hubs,
            "pinch_hub_queue": tables.hubs,
            "pinch_pending": tables.hubs,
            "pinch_seen": tables.seen,
            "pinch_acked": self.acked_words * ranks,
            "pinch_wanted": self.acked_words * ranks,
            "pinch_sent": flows * self.capacity,
            "pinch_sq": flows * SQ_ENTRIES,
            "pinch_accumulators": placement.banks * len(tables.targets),
            "pinch_landing": placement.banks * self.slots,
            "pinch_landed": placement.banks,
            "pinch_cpus": flows,
            "pinch_fan": len(placement.flows),
            "pinch_flows": flows,
            "pinch_schedule": flows * self.capacity,
        }
        return {name: max(size, 1) for name, size in sizes.items()}

    def _fill(self, placement: Placement, tables: Tables) -> None:
        shared = self.by_name
        if len(tables.vertices):
            shared["pinch_vertices"].view(dtype("pinch_vertex")).reshape(-1)[:] = tables.vertices
        if len(tables.edges):
            shared["pinch_edges"].view(dtype("pinch_edge")).reshape(-1)[:] = tables.edges
        near = socket.if_nametoindex(DOORBELL_NEAR)
        for index, device in enumerate((near, socket.if_nametoindex(LINK))):
            shared["pinch_both"].update(index, device)
        for index in range(len(placement.flows)):
            shared["pinch_fan"].update(index, near)
        if placement.cpu != ANYWHERE:
            remote = self.programs["pinch_remote"].fd
            fill_cpumap(shared["pinch_cpus"], set(placement.homes), _QUEUED, remote)

    def schedule(self, flow: int) -> NDArray[np.uint64]:
        """Numbers of a flow's frames, in the order in which they are sent."""
        return self._schedule[flow * self.capacity :][: self.capacity]

    def attach(self, dispatcher: Dispatcher) -> None:
        """Register the programs with the dispatcher, until `close`."""
        ends = (self.programs[f"pinch_{end}"] for end in ("link", "doorbell", "execute", "send"))
        dispatcher.add(self._group.group_id, *ends)
        # After this, the group's frames count as foreign.
        self._open.callback(dispatcher.remove, self._group.group_id)

    def counters(self) -> dict[str, int]:
        """All of ``enum pinch_counter``, summed over CPUs."""
        table = self.by_name["pinch_counters"].lookup(0)
        sums = np.frombuffer(table, np.uint64).reshape(-1, len(COUNTERS)).sum(axis=0)
        return dict(zip(COUNTERS, sums.tolist(), strict=True))

    def close(self) -> None:
        """Unregister from the dispatcher, so that the group's frames count as foreign, and
        unload.
        """
        self._open.close()
