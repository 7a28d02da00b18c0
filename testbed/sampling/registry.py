"""The ways of preparing minibatches of a distributed graph, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.comm.entry import Entry
from testbed.core.registry import Registry

if TYPE_CHECKING:
    from testbed.sampling.peers import Peers  # noqa: F401

__all__ = ["WAYS", "Way"]


@dataclass(frozen=True, slots=True)
class Way(Entry):
    """How a rank prepares minibatches.

    :param together: Whether several are sampled together, with one question to each rank for all of
        them and each layer, and with the features that they have in common fetched once.
    :param ahead: Whether the next ones are prepared while it computes.
    :param policy: What decides which features of others it keeps, if `cache` is given; "": it keeps
        none; None: `policy` does.
    """

    together: bool = False
    ahead: bool = False
    policy: str | None = ""


_PEERS = "testbed.sampling.peers:Peers"
WAYS: Registry[Way] = Registry(
    "way of sampling",
    "testbed.sampling.registry:Way",
    {
        "rpc": Way(_PEERS, "sockets", "one minibatch after the other, as DistDGL does"),
        "rpc-ahead": Way(
            _PEERS, "sockets", "the next minibatch meanwhile, as DistDGLv2 does", ahead=True
        ),
        "rpc-cached": Way(
            _PEERS,
            "sockets",
            "as rpc, with a cache of those features that are most probably needed, as SALIENT++",
            policy="inclusion",
        ),
        "katana": Way(
            _PEERS,
            "sockets",
            "several minibatches together, the next ones meanwhile, as Katana Graph does",
            together=True,
            ahead=True,
            policy=None,
        ),
    },
    group="testbed.sampling",
    instances=True,
)
