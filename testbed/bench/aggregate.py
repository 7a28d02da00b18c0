"""``testbed bench aggregate``: one host adds up the vertices that others send. The measurements and
their text. Pure.

Every vertex that arrives is added into `degree` of the first rank's vertices. With tcp-push this
means receiving into a matrix and then a sparse product, in user space.
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
from testbed.exchange.halo import make_halos
from testbed.exchange.interface import MAX_DIM

__all__ = ["Row", "check_grid", "header_lines", "make_case", "row_line", "summary_lines"]

MOST_ENTRIES = 1 << 26

_TABLE = Table(
    EXCHANGE,
    ("dim", "", 4),
    ("degree", "", 6),
    ("vertices", "", 8),
    ("min", "(ms)", 9),
    ("median", "(ms)", 9),
    ("p99", "(ms)", 9),
    ("rate", "(kvert/s)", 9),
    ("arrived", "(GB/s)", 8),
    ("added", "(GB/s)", 8),
    *COUNTS,
)


@dataclass(frozen=True)
class Row:
    """One exchange, dim and degree.

    :param degree: Vertices of the first rank into which each vertex that arrives is added.
    :param vertices: How many arrive.
    """

    dim: int
    degree: int
    vertices: int
    measured: Measured

    @property
    def rate(self) -> float:
        """Vertices that arrive and are added, per second."""
        return self.vertices / self.measured.median

    @property
    def arrived(self) -> float:
        """Bytes of float32 that arrive, over the median time, in GB/s (1e9 bytes)."""
        return self.rate * self.dim * 4 / 1e9

    @property
    def added(self) -> float:
        """Bytes of float32 that are added, over the median time, in GB/s."""
        return self.arrived * self.degree

    def to_dict(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The row for the JSON file."""
        values = {
            "dim": self.dim,
            "degree": self.degree,
            "vertices": self.vertices,
            "vertices_per_second": round(self.rate, 3),
            "arrived_gbps": round(self.arrived, 6),
            "added_gbps": round(self.added, 6),
        }
        return {**self.measured.to_dict(), **values, **parameters}


def check_grid(dims: Sequence[int], degrees: Sequence[int], vertices: int, hosts: int) -> None:
    """Check the options.

    :raises SpecError: A value is not allowed; the text names the command's option.
    """
    for dim in dims or (0,):
        if not 1 <= dim <= MAX_DIM:
            raise SpecError(f"--dims: {dim}: must be 1 to {MAX_DIM}")
    if vertices < hosts - 1:
        raise SpecError(
            f"--vertices: {vertices}: must be {hosts - 1} or more, one per sending host"
        )
    if vertices > MOST_ENTRIES:
        raise SpecError(f"--vertices: {vertices}: must be at most {MOST_ENTRIES}")
    for degree in degrees or (0,):
        if degree < 1 or degree * vertices > MOST_ENTRIES:
            raise SpecError(
                f"--degrees: {degree}: must be 1 to {MOST_ENTRIES // vertices} with {vertices}"
                f" vertices, at most {MOST_ENTRIES} additions"
            )


def make_case(dim: int, degree: int, vertices: int, hosts: int, seed: int) -> Case:
    """Make the ranks' halos: as many vertices of the first rank take in `degree` others each, and
    each is taken in as often.
    """
    rng = np.random.default_rng([seed, degree, vertices])
    sources = np.stack([rng.permutation(vertices) for _ in range(degree)], axis=1).astype(
        np.int32
    ) + np.int32(vertices)
    indptr = np.minimum(np.arange(2 * vertices + 1), vertices) * degree
    senders = 1 + np.arange(vertices) * (hosts - 1) // vertices
    owner = np.concatenate([np.zeros(vertices, np.int32), senders.astype(np.int32)])
    return Case(
        f"dim {dim}, degree {degree}", make_halos(indptr, sources.reshape(-1), owner, hosts), dim
    )


def header_lines() -> list[str]:
    """An explanation of the columns that need one; names and units."""
    return [
        (
            "# min, median, p99: from the first sender's call until the receiver has all sums,"
            " float32 in and out. rate: thousands"
        ),
        (
            "#   of vertices that arrive and are added. arrived, added: bytes of float32; the"
            " latter as often as they are added."
        ),
        *_TABLE.header_lines(),
    ]


def row_line(row: Row) -> str:
    """One row, in the columns of `header_lines`."""
    time = row.measured.to_dict()["time_us"]
    return _TABLE.line(
        [
            row.measured.exchange,
            str(row.dim),
            str(row.degree),
            str(row.vertices),
            *(f"{time[key] / 1e3:.3f}" for key in ("min", "median", "p99")),
            f"{row.rate / 1e3:.1f}",
            f"{row.arrived:.3f}",
            f"{row.added:.3f}",
            *count_cells(row.measured),
        ]
    )


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Compare aggregation in the kernel with the best over sockets, by median, wherever both were
    measured.
    """
    cases = dict.fromkeys((row.dim, row.degree) for row in rows)
    return exchanges_against_sockets(
        (
            (
                f"dim {dim:>3}, degree {degree:>5}",
                [row.measured for row in rows if (row.dim, row.degree) == (dim, degree)],
            )
            for dim, degree in cases
        ),
        (1e3, "ms", 3),
    )
