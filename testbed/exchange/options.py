"""The options of exchanges, each defined once; `testbed.comm.options` has those of all
collectives.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from testbed.comm.options import GroupOptions, Window
from testbed.core.tables import Table

__all__ = [
    "ROW_TYPES",
    "Adder",
    "Broadcast",
    "ExchangeOptions",
    "ExchangeTerms",
    "HaloChoice",
    "HaloOptions",
    "Processing",
    "RowType",
    "SumWidth",
]

Processing = Literal["spread", "pinned"]
Adder = Literal["kernel", "process"]
Broadcast = Literal["tc", "tokens"]
RowType = Literal["int16", "int32", "bfloat16", "float32"]
HaloChoice = Literal["rows", "cover"]
SumWidth = Literal["wide", "packed"]

ROW_TYPES: dict[Adder, tuple[RowType, ...]] = {
    "process": ("int16", "bfloat16", "float32"),
    "kernel": ("int16", "int32"),
}
"""What rows may travel as by tokens, by who adds them."""


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
    broadcast: Broadcast | None = Field(
        default=None,
        description=(
            "how pinch brings rows to other ranks: tokens, an XDP program fills a frame for each"
            " rank, or tc, a TC program clones frames for several ranks; default: tokens, or tc"
            " with an option that needs it"
        ),
    )
    processing: Processing = Field(
        default="pinned",
        description=(
            "where pinch aggregates frames with broadcast = tc: pinned, on the receiving rank's"
            " CPU, or spread, where they arrive"
        ),
    )
    aggregate: Adder | None = Field(
        default=None,
        description=(
            "who adds up the rows that pinch brings: process, as float32, from memory where an XDP"
            " program has put them, or kernel, an XDP program, as integers; default: process with"
            " tokens, kernel with tc"
        ),
    )
    dtype: RowType | None = Field(
        default=None,
        description=(
            "what the elements of rows travel as by tokens: int16, with a step for each row,"
            " bfloat16 or float32; with aggregate = kernel int16 or int32, with a step for each"
            " message; default: int16. With broadcast = tc there is the option lanes"
        ),
    )
    sums: SumWidth = Field(
        default="wide",
        description=(
            "how pinch's programs hold sums of 32-bit lanes: wide, 64 bits each, or packed, two in"
            " 64 bits, which takes half the additions and leaves lanes 24 bits"
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, given: Any) -> Any:
        """Replace defaults that depend on other options."""
        if not isinstance(given, dict):
            return given
        chosen = dict(given)
        if chosen.get("broadcast") is None:
            chosen["broadcast"] = "tc" if _needs_tc(chosen) else "tokens"
        if chosen.get("aggregate") is None:
            chosen["aggregate"] = "kernel" if chosen["broadcast"] == "tc" else "process"
        if chosen.get("dtype") is None and chosen["broadcast"] == "tokens":
            chosen["dtype"] = "int16"
        return chosen

    @model_validator(mode="after")
    def _what_fits(self) -> Self:
        if self.broadcast == "tokens" and (needs := _needs_tc(self.model_dump())):
            raise ValueError(f"{needs}: needs broadcast = tc")
        if self.dtype is not None:
            if self.broadcast == "tc":
                why = _needs_tc(self.model_dump()) or "broadcast = tc"
                raise ValueError(
                    f"dtype = {self.dtype}: needs broadcast = tokens, which does not go with {why};"
                    " tc has lanes"
                )
            allowed = ROW_TYPES[self.aggregate or "process"]
            if self.dtype not in allowed:
                raise ValueError(
                    f"dtype = {self.dtype}: must be {', '.join(allowed[:-1])} or {allowed[-1]}"
                    f" with aggregate = {self.aggregate}"
                )
        if self.bound is not None and (self.broadcast, self.aggregate) == ("tc", "process"):
            raise ValueError(
                "bound: with broadcast = tc, aggregate must be kernel, where sums stay from one"
                " exchange to the next"
            )
        return self


def _needs_tc(terms: Mapping[str, Any]) -> str:
    """Options, and their values, that only the TC program's way has; or an empty string."""
    for key in ("processing", "sums"):
        usual = ExchangeTerms.model_fields[key].default
        if terms.get(key, usual) != usual:
            return f"{key} = {terms[key]}"
    if terms.get("bound") is not None and terms.get("aggregate") == "kernel":
        return f"bound = {terms['bound']} with aggregate = kernel"
    return ""


class ExchangeOptions(GroupOptions, ExchangeTerms, HaloOptions):
    """The options of an exchange."""

    window: Window = 32
