"""``testbed bench broadcast``: one host sends the same message to others. The measurements and
their text. Pure.

The message is the embeddings of the first rank's vertices; every other rank needs all of them, each
for one vertex of its own. With tcp-push this is one send per receiver, on connections that stay
open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.bench.exchange_calls import LARGEST
from testbed.bench.exchange_session import Case, Measured
from testbed.bench.exchange_table import (
    COUNTS,
    EXCHANGE,
    Table,
    count_cells,
    exchanges_against_sockets,
)
from testbed.core.errors import SpecError
from testbed.core.medians import Median
from testbed.core.numbers import format_size
from testbed.exchange.halo import make_halos
from testbed.exchange.interface import MAX_DIM
from testbed.exchange.pinch.fixed_point import exponent_of

__all__ = [
    "Row",
    "check_receivers",
    "header_lines",
    "make_case",
    "message_shape",
    "row_line",
    "summary_lines",
]

MOST = 31  # receivers
LATENCY_SIZE, LATENCY_RECEIVERS, LATENCY_RATIO = 1024, 7, 0.5
"""At this size and number of receivers, the in-kernel broadcast is to take at most this share of
the time of TCP sends.
"""

_TABLE = Table(
    EXCHANGE,
    ("receivers", "", 9),
    ("size", "(B)", 9),
    ("min", "(us)", 10),
    ("median", "(us)", 10),
    ("p99", "(us)", 10),
    ("sender", "(us)", 10),
    ("goodput", "(GB/s)", 8),
    *COUNTS,
)


@dataclass(frozen=True)
class Row:
    """One exchange, size of message in bytes, and number of receivers."""

    receivers: int
    size: int
    measured: Measured

    @property
    def goodput(self) -> float:
        """Bytes that all receivers together have received, over the median time, in GB/s (1e9
        bytes).
        """
        return self.size * self.receivers / self.measured.median / 1e9

    def to_dict(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The row for the JSON file."""
        values = {
            "receivers": self.receivers,
            "size_bytes": self.size,
            "goodput_gbps": round(self.goodput, 6),
            "time_percentiles_us": [
                round(float(value) * 1e6, 3)
                for value in np.percentile(self.measured.times, range(101))
            ],
        }
        return {**self.measured.to_dict(), **values, **parameters}


def check_receivers(receivers: Sequence[int]) -> Sequence[int]:
    """Check the numbers of receivers, and return them.

    :raises SpecError: One cannot, or there is none.
    """
    for count in receivers or (0,):
        if not 1 <= count <= MOST:
            raise SpecError(f"--receivers: {count}: must be 1 to {MOST}")
    return receivers


def message_shape(size: int) -> tuple[int, int]:
    """Return the number of embeddings in a message of `size` bytes, and their elements: as many as
    can be.

    :raises SpecError: A message of that size does not consist of embeddings.
    """
    if size < 4 or size % 4:
        raise SpecError(f"-b: {size}: must be a multiple of 4 bytes, a float32, and at least 4")
    count = size // 4
    dim = max(width for width in range(1, MAX_DIM + 1) if count % width == 0)
    return count // dim, dim


def make_case(size: int, receivers: int) -> Case:
    """Make the ranks' halos for a message of `size` bytes.

    :raises SpecError: A message of that size does not consist of embeddings.
    """
    n, dim = message_shape(size)
    world = receivers + 1
    indptr = np.concatenate([np.zeros(n, np.int64), np.arange(n * receivers + 1)])
    indices = np.tile(np.arange(n, dtype=np.int32), receivers)
    halos = make_halos(indptr, indices, np.repeat(np.arange(world, dtype=np.int32), n), world)
    return Case(f"{format_size(size)} to {receivers}", halos, dim, exponent_of(LARGEST))


def header_lines() -> list[str]:
    """An explanation of the columns that need one; names and units."""
    return [
        (
            "# min, median, p99: from the sender's call until the last receiver has the message,"
            " float32 in and out. sender: until"
        ),
        (
            "#   the sender's call returns (sockets: all is in the kernel). goodput: what all"
            " receivers have got over the median."
        ),
        *_TABLE.header_lines(),
    ]


def row_line(row: Row) -> str:
    """One row, in the columns of `header_lines`."""
    values = row.measured.to_dict()
    return _TABLE.line(
        [
            row.measured.exchange,
            str(row.receivers),
            str(row.size),
            *(f"{values['time_us'][key]:.1f}" for key in ("min", "median", "p99")),
            f"{values['send_time_us']:.1f}",
            f"{row.goodput:.3f}",
            *count_cells(row.measured),
        ]
    )


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Compare the in-kernel broadcast with the best over sockets, by median, wherever both were
    measured.
    """
    cases = {
        f"{format_size(size):>6} to {receivers:>2}": (receivers, size)
        for receivers, size in dict.fromkeys((row.receivers, row.size) for row in rows)
    }

    def verdict(words: str, kernel: Median, best: Median) -> str:
        if cases[words] != (LATENCY_RECEIVERS, LATENCY_SIZE):
            return ""
        kept = kernel.value <= LATENCY_RATIO * best.value
        return f"  {'pass' if kept else 'FAIL'}: at most {LATENCY_RATIO:g} of the time"

    return exchanges_against_sockets(
        (
            (words, [row.measured for row in rows if (row.receivers, row.size) == case])
            for words, case in cases.items()
        ),
        (1e6, "us", 1),
        verdict,
    )
