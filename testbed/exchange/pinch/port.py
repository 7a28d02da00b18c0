"""One rank's end of an exchange in the kernel."""

from __future__ import annotations

import contextlib

import numpy as np

from testbed.comm.doorbell import Doorbell
from testbed.core.closing import Closing
from testbed.datapath.dispatcher import Dispatcher
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.pinch.fixed_point import Numbers
from testbed.exchange.pinch.handshakes import Handshakes
from testbed.exchange.pinch.kicks import Kicks
from testbed.exchange.pinch.layout import RowLayout
from testbed.exchange.pinch.maps import Maps
from testbed.exchange.pinch.placement import Placement
from testbed.exchange.pinch.process import Process
from testbed.exchange.pinch.sending import Sending
from testbed.exchange.pinch.vertex_tables import Tables
from testbed.host.cpus import usable_cpus
from testbed.protocol.pinch.packet import WR_ASK
from testbed.protocol.pinch.policy import Actions, Seen
from testbed.protocol.sequence import seq_of
from testbed.protocol.wire import FRAME_BYTES

__all__ = ["PinchPort"]


class PinchPort(Closing):
    """The parts of one rank's end, and the operations that need several of them.

    :param tables: What is received from which rank, and for which vertices.
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
        self.spec, self.group = spec, spec.group
        group = spec.group
        cpus = usable_cpus()
        self.placement = Placement.plan(group.rank, group.size, spec.processing, cpus)
        here = self.placement.homes[group.rank]
        flows = sorted(self.placement.flows, key=lambda flow: (flow == here, flow))
        with contextlib.ExitStack() as stack:
            self.maps = stack.enter_context(Maps(spec, layout, self.placement, tables))
            doorbell = stack.enter_context(Doorbell(group))
            self.kicks = Kicks(doorbell, group, flows, FRAME_BYTES + layout.payload)
            self.process = Process(group, self.maps, self.kicks, numbers)
            self.handshakes = Handshakes(group, self.maps, self.process)
            self.sending = Sending(group, layout.parts, self.placement, self.maps, self.process)
            self.maps.attach(dispatcher)
            self._open = stack.pop_all()

    def seen(self) -> Seen:
        """The state on which `Policy` bases its decisions."""
        control, seq = self.maps.control, self.process.seq
        partners, peers = int(control.partners), self.maps.peers.copy()
        counts = {
            name: peers[name].tolist()
            for name in ("received", "acked", "heard", "news", "answers", "at", "waits")
        }
        return Seen(
            rank=self.group.rank,
            seq=seq,
            partners=[
                rank
                for rank in range(self.group.size)
                if partners >> rank & 1 and rank != self.group.rank
            ],
            handshakes=self.handshakes.words.tolist(),
            lacking=lambda rank: self.sending.lacking(rank).tolist(),
            met=seq_of(int(control.met)) == seq,
            owed=int(control.owed),
            **counts,
        )

    def act(self, actions: Actions) -> None:
        """Carry out the policy's decisions, and kick all flows.

        :raises CollectiveError: The doorbell is gone.
        """
        if actions.handshake:
            self.kicks.send_handshakes(actions.handshake)
        for rank, numbers in actions.asks.items():
            self.sending.post(rank, np.array(numbers) | WR_ASK)
        for rank, numbers in actions.resends.items():
            self.sending.post(rank, np.array(numbers))
        if actions.work:
            self.kicks.add_hubs()
        self.process.kick()

    def close(self) -> None:
        """Unregister from the dispatcher, so that the group's frames count as foreign, and
        unload.
        """
        self._open.close()
