"""The options of exchanges, each defined once; `testbed.comm.options` has those of all
collectives.
"""

from typing import Literal

from pydantic import Field

from testbed.comm.options import GroupOptions, Window
from testbed.core.tables import Table

__all__ = [
    "Adder",
    "Broadcast",
    "ExchangeOptions",
    "ExchangeTerms",
    "HaloChoice",
    "HaloOptions",
    "Processing",
    "SumWidth",
]

Processing = Literal["spread", "pinned"]
Adder = Literal["kernel", "process"]
Broadcast = Literal["tc", "tokens"]
HaloChoice = Literal["rows", "cover"]
SumWidth = Literal["wide", "packed"]


class HaloOptions(Table):
    """What travels between ranks, whatever brings it."""

    halo: HaloChoice = Field(
        default="rows",
        description=(
            "what travels: rows, those of all vertices that other ranks need, or cover, the fewest"
            " rows and partial sums that serve all edges (docs/pinch.md)"
        ),
    )


class ExchangeTerms(Table):
    """The options that only exchanges have."""

    bound: float | None = Field(
        default=None,
        ge=0,
        description=(
            "pinch sends a vertex again only once an element has changed by more than this since it"
            " was last sent; 0: once it has changed at all; default: every vertex every time"
        ),
    )
    staleness: int = Field(
        default=10,
        ge=1,
        le=1 << 31,  # exchanges are counted in 32 bits
        description=(
            "pinch sends a vertex after this many exchanges at the latest, whatever the bound"
        ),
    )
    broadcast: Broadcast = Field(
        default="tc",
        description=(
            "how pinch brings rows to several ranks: tc, a TC program clones frames, or tokens,"
            " frames that come back and are filled again, so far with aggregate = process"
        ),
    )
    processing: Processing = Field(
        default="pinned",
        description=(
            "where pinch aggregates frames: pinned, on the receiving rank's CPU, or spread, where"
            " they arrive"
        ),
    )
    aggregate: Adder = Field(
        default="kernel",
        description=(
            "who adds up the rows that pinch brings: kernel, an XDP program, as integers, or"
            " process, as float32, from memory where an XDP program has put them"
        ),
    )
    sums: SumWidth = Field(
        default="wide",
        description=(
            "how pinch's programs hold sums of 32-bit lanes: wide, 64 bits each, or packed, two in"
            " 64 bits, which takes half the additions and leaves lanes 24 bits"
        ),
    )


class ExchangeOptions(GroupOptions, ExchangeTerms, HaloOptions):
    """The options of an exchange."""

    window: Window = 32
