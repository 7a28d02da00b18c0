"""The options of ``testbed partition``."""

from typing import Annotated

from pydantic import Field

from testbed.core.tables import Named, Table
from testbed.gnn.streaming.registry import POLICIES

__all__ = ["PartitionOptions"]


class PartitionOptions(Table):
    """How a graph is partitioned."""

    policy: Annotated[str, Named(POLICIES)] = Field(
        default="cvc", description="rules for masters and edges"
    )
    parts: int = Field(default=4, ge=1, le=1024, description="number of parts")
    memory: int = Field(
        default=1024,
        ge=32,
        le=1 << 24,
        description="MiB for tables of vertices and batches of edges",
    )
    threads: int = Field(
        default=2,
        ge=1,
        le=64,
        description="threads; Fennel's masters depend on their number, nothing else does",
    )
    rounds: int = Field(
        default=100,
        ge=1,
        le=1 << 20,
        description="how often threads tell each other the masters that Fennel's score chose",
    )
    seed: int = Field(default=1, ge=0, lt=1 << 32, description="seed of every random choice")
