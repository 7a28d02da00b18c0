"""The measures of a partition, and as text."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Partitioned", "header_line", "row_line", "summary_lines"]

_COLUMNS = (
    ("policy", -8),
    ("seconds", 8),
    ("Medges/s", 9),
    ("MB/s", 7),
    ("replication", 12),
    ("cut", 7),
    ("nodes", 7),
    ("edges", 7),
    ("passes", 7),
    ("peak MiB", 9),
)


@dataclass(frozen=True)
class Partitioned:
    """Measures of a partition; docs/partitioning.md has their formulas.

    :param seconds: From the first look at the graph until the folder was complete; `phases`: of
        its passes.
    :param passes: How often all edges were read, from the graph or from temporary files.
    :param peak_memory_bytes: How much the process's resident memory grew.
    :param memory_bytes: Its bound, from the option ``memory``.
    """

    policy: str
    parts: int
    num_vertices: int
    num_edges: int
    seconds: float
    edges_per_second: float
    mb_per_second: float
    replication_factor: float
    cut_edges: int
    cut_share: float
    vertex_balance: float
    edge_balance: float
    masters: list[int]
    mirrors: list[int]
    edges: list[int]
    passes: int
    phases: dict[str, float]
    peak_memory_bytes: int
    memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The measures for JSON."""
        return asdict(self)


def _line(cells: list[str]) -> str:
    return " ".join(
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
    ).rstrip()


def header_line() -> str:
    """The names of columns; nodes and edges are balances, the largest part against the mean."""
    return _line([name for name, _ in _COLUMNS])


def row_line(found: Partitioned) -> str:
    """One partition."""
    return _line(
        [
            found.policy,
            f"{found.seconds:.2f}",
            f"{found.edges_per_second / 1e6:.2f}",
            f"{found.mb_per_second:.0f}",
            f"{found.replication_factor:.2f}",
            f"{found.cut_share:.1%}",
            f"{found.vertex_balance:.2f}",
            f"{found.edge_balance:.2f}",
            str(found.passes),
            f"{found.peak_memory_bytes / 2**20:.0f}",
        ]
    )


def summary_lines(found: list[Partitioned]) -> list[str]:
    """How much faster others are than METIS, if it is among them."""
    metis = [each for each in found if each.policy == "metis"]
    if not metis or len(found) < 2:
        return []
    ratios = (
        f"{each.policy} {metis[0].seconds / each.seconds:.1f}x"
        for each in found
        if each.policy != "metis"
    )
    return ["as fast as METIS: " + ", ".join(ratios)]
