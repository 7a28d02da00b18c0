"""``tcp-pull``: every rank asks the owners for the vertices that it needs and waits, as DistDGL does.

Zheng et al., "DistDGL: Distributed Graph Neural Network Training for Billion-Scale Graphs", IA3 2020: the key-value store's
pull sends vertices' numbers to their owners, one request each, and blocks until the rows are there. There, servers are
processes of their own; here a rank serves while it waits, until all that need vertices of it have them, and a request for the
exchange to come waits in the socket until this rank has called.
"""

from typing import ClassVar

from testbed.exchange.tcp import TcpExchange

__all__ = ["TcpPull"]


class TcpPull(TcpExchange):
    """A request with vertices' numbers (int64) and an answer with their rows, an owner and exchange."""

    name: ClassVar[str] = "tcp-pull"
    pull: ClassVar[bool] = True
