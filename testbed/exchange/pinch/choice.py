"""The ways in which ``pinch`` brings rows, by ``broadcast``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.exchange.interface import Exchange
from testbed.exchange.pinch.exchange import Pinch
from testbed.exchange.tokens.exchange import Tokens

if TYPE_CHECKING:
    from testbed.exchange.interface import ExchangeSpec
    from testbed.worker import WorkerContext

__all__ = ["AnyPinch"]


class AnyPinch(Exchange):
    """Makes the exchange that a spec asks for, as `pathlib.Path` makes a path of a system's."""

    name = Pinch.name
    needs = Pinch.needs

    def __new__(cls, context: WorkerContext, spec: ExchangeSpec) -> Exchange:  # type: ignore[misc]
        """Return an exchange of the class that the spec's `broadcast` names."""
        return (Tokens if spec.broadcast == "tokens" else Pinch)(context, spec)
