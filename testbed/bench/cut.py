"""``testbed bench exchange``: one exchange of a graph whose vertices are distributed over hosts.
The measurements and their text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.bench.exchange_session import Case, Measured
from testbed.bench.exchange_table import (
    COUNTS,
    EXCHANGE,
    Table,
    count_cells,
    exchanges_against_sockets,
)
from testbed.core.errors import SpecError
from testbed.exchange.halo import Halo, make_halos
from testbed.exchange.interface import MAX_DIM
from testbed.gnn.datasets import DATASETS
from testbed.gnn.graph import GraphData
from testbed.gnn.partition.registry import PARTITIONERS, cached_owners

__all__ = [
    "GRAPHS",
    "Row",
    "check_choices",
    "header_lines",
    "make_case",
    "read_halos",
    "row_line",
    "summary_lines",
]

GRAPHS = ("debian", "synthetic")
"""Data sets that need no files of the user's."""

_TABLE = Table(
    EXCHANGE,
    ("dim", "", 4),
    ("rows", "", 8),
    ("edges", "", 9),
    ("min", "(ms)", 9),
    ("median", "(ms)", 9),
    ("p99", "(ms)", 9),
    *COUNTS,
)


@dataclass(frozen=True)
class Row:
    """One exchange and dim.

    :param rows: Vertices that hosts need from others.
    :param edges: How often one of them is added up.
    """

    dim: int
    rows: int
    edges: int
    measured: Measured

    def to_dict(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The row for the JSON file."""
        values = {"dim": self.dim, "rows": self.rows, "edges": self.edges}
        return {**self.measured.to_dict(), **values, **parameters}


def check_choices(dataset: str, partitioner: str, dims: Sequence[int]) -> None:
    """Check the options.

    :raises SpecError: A value is not allowed; the text names the command's option.
    """
    if dataset not in GRAPHS:
        raise SpecError(f"--dataset: {dataset!r}: must be one of {', '.join(GRAPHS)}")
    if partitioner not in PARTITIONERS:
        raise SpecError(f"--partitioner: {partitioner!r}: must be one of {', '.join(PARTITIONERS)}")
    for dim in dims or (0,):
        if not 1 <= dim <= MAX_DIM:
            raise SpecError(f"--dims: {dim}: must be 1 to {MAX_DIM}")


def read_halos(dataset: str, partitioner: str, hosts: int) -> tuple[Halo, ...]:
    """Read or draw a graph with its default options, partition it, and return all ranks' halos.

    :raises SpecError: The data do not exist, or the graph cannot be partitioned so.
    """
    folder = DATASETS[dataset](name=dataset).prepare()
    graph, owners = GraphData.load(folder), cached_owners(folder, partitioner, hosts)
    return make_halos(np.asarray(graph.indptr), np.asarray(graph.indices), owners, hosts)


def make_case(halos: tuple[Halo, ...], dim: int) -> tuple[tuple[int, int, int], Case]:
    """Return the first fields of `Row`, and what is exchanged."""
    rows = sum(halo.num_halo for halo in halos)
    edges = sum(len(halo.indices) for halo in halos)
    return (dim, rows, edges), Case(f"dim {dim}", halos, dim)


def header_lines() -> list[str]:
    """An explanation of the columns that need one; names and units."""
    return [
        (
            "# rows: vertices that hosts need from others. edges: how often one of them is added"
            " up. min, median, p99: from the"
        ),
        "#   first host's call until the last host has all sums, float32 in and out.",
        *_TABLE.header_lines(),
    ]


def row_line(row: Row) -> str:
    """One row, in the columns of `header_lines`."""
    time = row.measured.to_dict()["time_us"]
    return _TABLE.line(
        [
            row.measured.exchange,
            str(row.dim),
            str(row.rows),
            str(row.edges),
            *(f"{time[key] / 1e3:.3f}" for key in ("min", "median", "p99")),
            *count_cells(row.measured),
        ]
    )


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Compare exchanges in the kernel with the best over sockets, by median, wherever both were
    measured.
    """
    return exchanges_against_sockets(
        (
            (f"dim {dim:>3}", [row.measured for row in rows if row.dim == dim])
            for dim in dict.fromkeys(row.dim for row in rows)
        ),
        (1e3, "ms", 3),
    )
