"""The options of collectives, each defined once with its bounds, default and meaning.

Groups, scenario files, benches and soaks embed these models; the command line's flags are generated
from them (`testbed.cli.options`). Defaults suit most of these users; a user with another default
states it beside the name. Constraints that involve more than one option are checked where the
options are used. Light: imported for help texts.
"""

from typing import Annotated, Literal

from pydantic import Field

from testbed.core.tables import Table
from testbed.host.machine import Affinity

__all__ = [
    "DATATYPES",
    "FLOAT32",
    "NUMBERS",
    "OPS",
    "SEGMENT",
    "CollectiveOptions",
    "GroupOptions",
    "Lanes",
    "OnOverflow",
    "RecoveryFrom",
]

OPS = ("sum", "min", "max", "avg")
"""How values may be reduced, as nccl-tests names it; ``avg`` is the sum divided by the number of
ranks.
"""

DATATYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int32": "int32",
    "int64": "int64",
}
"""numpy's names of the types of values, by those that nccl-tests has for them."""

FLOAT32 = ("float32",)
"""The types that every backend reduces."""

NUMBERS = ("float32", "float64", "int32", "int64")
"""Those that processors add without a library's help."""

SEGMENT = 1 << 20
"""Default of `CollectiveOptions.segment`; docs/ring.md has the sweep."""

Lanes = Literal["int16", "int32"]
OnOverflow = Literal["error", "saturate"]
RecoveryFrom = Literal["origin", "upstream"]

Window = Annotated[
    int, Field(ge=1, le=256, description="frames in flight per rank, of collectives in the kernel")
]
Timeout = Annotated[
    float, Field(gt=0, le=3600, description="seconds that a collective may go without an answer")
]
ConnectTimeout = Annotated[
    float,
    Field(
        gt=0,
        le=3600,
        description="seconds that a rank waits for the others when a group opens",
    ),
]
LanesOf = Annotated[
    Lanes, Field(description="integer type of a quantized value, of collectives in the kernel")
]
AffinityOf = Annotated[
    Affinity,
    Field(
        description=(
            "where ranks run: rank pins rank r to CPU r modulo CPUs, one pins all to the first CPU,"
            " none leaves it to the scheduler"
        )
    ),
]


class GroupOptions(Table):
    """The options that all collectives have."""

    lanes: LanesOf = "int32"
    window: Window = 8
    timeout: Timeout = 10.0
    connect_timeout: ConnectTimeout = 60.0
    affinity: AffinityOf = "none"


class CollectiveOptions(GroupOptions):
    """The options of an all-reduce."""

    recovery: RecoveryFrom = Field(
        default="upstream",
        description=(
            "which rank retransmits a lost frame of xdp-ring: origin, the chunk's owner, with the"
            " result or by starting the chunk over; or upstream, the previous rank, with its"
            " input, partial sum or result"
        ),
    )
    reorder_threshold: int = Field(
        default=1,
        ge=0,
        le=4096,
        description=(
            "later frames of a stream after which xdp-ring nacks a missing one in the kernel; 0:"
            " only the timer does"
        ),
    )
    chunk: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description=(
            "maximum bytes of lanes in a frame of xdp-ring, rounded down to whole blocks of 64; 0:"
            " what the MTU allows"
        ),
    )
    tokens: int = Field(
        default=0,
        ge=0,
        le=64,
        description=(
            "jumbo frames in flight per rank of xdp-ring; 0: one up to 512 KiB of lanes, two beyond"
        ),
    )
    slice: int = Field(
        default=0,
        ge=0,
        le=1 << 31,
        description=(
            "bytes of lanes that xdp-ring quantizes while the ones before them circulate; 0: an"
            " eighth of the tensor, at least 1 MiB"
        ),
    )
    segment: int = Field(
        default=SEGMENT,
        ge=0,
        le=1 << 31,
        description=(
            "bytes of lanes that xdp-ring reduces at a time, in the same memory, which so stays in"
            " the cache; 0: the whole tensor"
        ),
    )
    reproducible: bool = Field(
        default=False,
        description=(
            "what xdp-ring retransmits depends on the faults alone and not on time, but a loss of a"
            " retransmission costs 0.2 s"
        ),
    )
    on_overflow: OnOverflow = Field(
        default="error",
        description=(
            "what to do with a value that lanes cannot hold: error fails the collective, saturate"
            " clamps and counts it"
        ),
    )
