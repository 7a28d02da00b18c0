"""``tcp-push``: every rank sends its rows to those that need them, over plain TCP: the rival that `pinch` has to beat."""

from typing import ClassVar

from testbed.exchange.tcp import TcpExchange

__all__ = ["TcpPush"]


class TcpPush(TcpExchange):
    """One message a peer and exchange; who needs what was settled with the halo."""

    name: ClassVar[str] = "tcp-push"
    pull: ClassVar[bool] = False
