"""The ways in which ``pinch`` brings rows, by ``broadcast``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.exchange.pinch.exchange import Pinch
from testbed.exchange.tokens.exchange import Tokens

if TYPE_CHECKING:
    from testbed.exchange.interface import Exchange, ExchangeSpec
    from testbed.worker import WorkerContext

__all__ = ["open_pinch"]


def open_pinch(context: WorkerContext, spec: ExchangeSpec) -> Exchange:
    """Make the exchange that a spec asks for; the caller connects and closes it."""
    return (Tokens if spec.broadcast == "tokens" else Pinch)(context, spec)
