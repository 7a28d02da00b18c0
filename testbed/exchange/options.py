"""What a user may set of exchanges: each option once, as `testbed.comm.options` has those of all collectives."""

from typing import Literal

from pydantic import Field

from testbed.comm.options import GroupOptions, Window
from testbed.core.tables import Table

__all__ = ["ExchangeOptions", "ExchangeTerms", "Processing"]

Processing = Literal["spread", "pinned"]


class ExchangeTerms(Table):
    """What only exchanges have."""

    bound: float | None = Field(
        default=None,
        ge=0,
        description="a vertex no element of which has changed by more since it was last sent is not sent again; 0: only one "
        "that has not changed at all; without it, every vertex is sent every time (pinch)",
    )
    staleness: int = Field(
        default=10,
        ge=1,
        le=1 << 31,  # exchanges are counted in 32 bits
        description="a vertex is sent after so many exchanges at the latest, whatever the bound (pinch)",
    )
    processing: Processing = Field(
        default="pinned",
        description="where pinch aggregates frames: pinned, on the receiving rank's CPU, or spread, where they arrive",
    )


class ExchangeOptions(GroupOptions, ExchangeTerms):
    """The terms of an exchange."""

    window: Window = 32
