"""One rank's end of the ring: its programs and their maps, its doorbell, and the process's side."""

from __future__ import annotations

import contextlib

from testbed.collectives.ring.maps import Maps
from testbed.collectives.ring.process import Process
from testbed.comm.doorbell import Doorbell
from testbed.comm.group import GroupSpec
from testbed.core.closing import Closing
from testbed.datapath.dispatcher import Dispatcher
from testbed.protocol.lanes import Lanes

__all__ = ["RingPort"]


class RingPort(Closing):
    """An open end of the ring: frames of the group reach the rank's programs."""

    def __init__(self, dispatcher: Dispatcher, spec: GroupSpec, lanes: Lanes) -> None:
        self.spec = spec
        with contextlib.ExitStack() as stack:
            self.maps = stack.enter_context(Maps(spec, lanes))
            doorbell = stack.enter_context(Doorbell(spec))
            self.process = Process(self.maps, doorbell, lanes)
            ends = (self.maps.programs[f"ring_{end}"] for end in ("link", "doorbell", "execute"))
            dispatcher.add(spec.group_id, *ends)
            # After this, the group's frames count as foreign.
            stack.callback(dispatcher.remove, spec.group_id)
            self._open = stack.pop_all()

    def close(self) -> None:
        """Unregister from the dispatcher, so that the group's frames count as foreign, and
        unload.
        """
        self._open.close()
