"""All links of a fabric, readied for in-kernel backends or for sockets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from testbed.core.errors import FabricError, SpecError
from testbed.core.logs import logger_of, timed
from testbed.datapath import dispatcher, switch
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.plan import Datapath

__all__ = ["set_datapath"]

logger = logger_of(__name__)


def set_datapath(fabric: Fabric, kind: Datapath) -> None:
    """Prepare the links for in-kernel backends, or for sockets.

    ``xdp``: the dispatcher is attached to every host's link and doorbell, and the switch program to
    every port where the plan's switch kind is ``xdp``. ``sockets``: no program of the testbed is
    attached to any host or switch. Offloads are set with them (`testbed.fabric.Fabric.set_links`).

    :raises FabricError: No :class:`testbed.worker.Workers` is open; they own the programs. Or
        faults are in force.
    :raises SpecError: ``kind`` is unknown.
    """
    if kind not in ("xdp", "sockets"):
        raise SpecError(f"datapath: {kind!r} is unknown: must be one of xdp, sockets")
    workers = Workers.of(fabric)
    if fabric.faults:
        raise FabricError("the datapath cannot be changed while faults are in force")
    with timed(logger, logging.INFO, "run %s: datapath %s", fabric.run_id, kind):
        if kind == "xdp":
            workers.call_all(dispatcher.attach, list(fabric.hosts))
            workers.call_all(
                switch.attach,
                {name: {"flooding": fabric.flooding(name).number} for name in fabric.switches},
            )
        else:
            workers.call_all(dispatcher.detach, list(fabric.hosts))
            workers.call_all(switch.detach, list(fabric.switches))
        fabric.set_links(kind)
