"""The exchanges by name. Modules are imported when an exchange is opened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from testbed.comm.entry import Entry, entry_of
from testbed.core.registry import Registry, load

if TYPE_CHECKING:
    from testbed.exchange.interface import Exchange, ExchangeSpec
    from testbed.worker import WorkerContext

__all__ = ["EXCHANGES", "ExchangeEntry", "modules_of", "open_exchange"]


@dataclass(frozen=True, slots=True)
class ExchangeEntry(Entry):
    """Where to find an exchange, and its properties.

    :param all_reduce: The backend that sums weight gradients with it.
    """

    all_reduce: str = "tcp-ring"


def exchange_of(found: Any) -> ExchangeEntry:
    """Make the entry of a class from another package."""
    return ExchangeEntry(
        **asdict(entry_of(found)), all_reduce="xdp-ring" if found.needs == "xdp" else "tcp-ring"
    )


EXCHANGES: Registry[ExchangeEntry] = Registry(
    "exchange",
    "testbed.exchange.interface:Exchange",
    {
        "pinch": ExchangeEntry(
            "testbed.exchange.pinch.choice:AnyPinch",
            "xdp",
            "broadcast by a TC program or by tokens, aggregation by an XDP program or the process",
            generic=False,
            all_reduce="xdp-ring",
        ),
        "tcp-pull": ExchangeEntry(
            "testbed.exchange.tcp:TcpPull",
            "sockets",
            "ask owners for what is needed, and wait, as DistDGL does",
        ),
        "tcp-push": ExchangeEntry(
            "testbed.exchange.tcp:TcpPush", "sockets", "send to those that need it"
        ),
        "tcp-push-16": ExchangeEntry(
            "testbed.exchange.tcp:TcpPush16", "sockets", "the same, with rows of 16 bits"
        ),
        "gloo": ExchangeEntry(
            "testbed.exchange.gloo:GlooGather",
            "sockets",
            "torch.distributed's all-gather of all embeddings",
            splits=False,
            all_reduce="gloo",
        ),
    },
    group="testbed.exchanges",
    adapt=exchange_of,
)


def modules_of(names: Iterable[str]) -> list[str]:
    """Return the modules that the hosts' workers import for exchanges."""
    return [EXCHANGES[name].module for name in names]


def open_exchange(name: str, context: WorkerContext, spec: ExchangeSpec) -> Exchange:
    """Make an exchange; the caller connects and closes it.

    :raises SpecError: There is no exchange of that name.
    """
    made: Exchange = load(EXCHANGES[name].path)(context, spec)
    return made
