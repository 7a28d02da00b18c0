"""The exchanges by name. Modules are imported when an exchange is opened."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.collectives.transport import Datapath
from testbed.errors import SpecError
from testbed.exchange.interface import Exchange, ExchangeSpec

if TYPE_CHECKING:
    from testbed.worker import WorkerContext

__all__ = ["EXCHANGES", "Entry", "modules_of", "open_exchange"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an exchange is and what it is.

    :param path: ``module:class``.
    :param needs: The datapath that the fabric has to be set to (the class says the same).
    :param all_reduce: The transport that sums weight gradients beside it.
    :param summary: One line for help texts.
    """

    path: str
    needs: Datapath
    all_reduce: str
    summary: str


EXCHANGES: dict[str, Entry] = {
    "pinch": Entry(
        "testbed.exchange.pinch:Pinch", "xdp", "xdp-ring", "broadcast by a TC program, aggregation by an XDP program"
    ),
    "tcp-pull": Entry(
        "testbed.exchange.tcp_pull:TcpPull", "sockets", "tcp-ring", "ask owners for what is needed, and wait, as DistDGL does"
    ),
    "tcp-push": Entry("testbed.exchange.tcp_push:TcpPush", "sockets", "tcp-ring", "send to those that need it"),
    "gloo": Entry("testbed.exchange.gloo:GlooGather", "sockets", "gloo", "torch.distributed's all-gather of all embeddings"),
}


def modules_of(names: Iterable[str]) -> list[str]:
    """Name what the hosts' workers import for exchanges."""
    return [EXCHANGES[name].path.partition(":")[0] for name in names]


def open_exchange(name: str, context: WorkerContext, spec: ExchangeSpec) -> Exchange:
    """Make an exchange; the caller connects and closes it.

    :raises SpecError: There is no exchange of that name.
    """
    if name not in EXCHANGES:
        raise SpecError(f"exchange {name!r} does not exist: allowed is {', '.join(EXCHANGES)}")
    module, _, attribute = EXCHANGES[name].path.partition(":")
    made: Exchange = getattr(importlib.import_module(module), attribute)(context, spec)
    return made
