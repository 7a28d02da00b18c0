"""What the tables of the benches of exchanges share. Pure."""

from collections.abc import Iterator, Sequence

from testbed.bench.exchange_session import Measured
from testbed.exchange.registry import EXCHANGES

__all__ = ["COUNTS", "Table", "against_sockets", "count_cells"]

Column = tuple[str, str, int]
"""Name, unit, width; negative: to the left."""

COUNTS: list[Column] = [
    ("#wrong", "", 6),
    ("packets", "", 8),
    ("wire", "(B)", 11),
    ("retrans", "", 7),
    ("syscalls", "(sender)", 8),
    ("syscalls", "(receiver)", 10),
]


class Table:
    """Columns of fixed widths, so that rows print as they come."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns

    def line(self, cells: Sequence[str]) -> str:
        """One row."""
        return "  " + " ".join(
            f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
            for cell, (_, _, width) in zip(cells, self._columns, strict=True)
        )

    def header_lines(self) -> list[str]:
        """Names and units."""
        return [
            "#" + self.line([str(column[part]) for column in self._columns])[1:].rstrip()
            for part in (0, 1)
        ]


def count_cells(measured: Measured) -> list[str]:
    """The cells of `COUNTS`."""
    values = measured.to_dict()
    counts = [str(values[key]) for key in ("wrong", "packets", "wire_bytes", "retransmissions")]
    return counts + [
        "-" if values[key] is None else f"{values[key]:g}"
        for key in ("send_syscalls", "receive_syscalls")
    ]


def against_sockets(measured: Sequence[Measured]) -> Iterator[tuple[Measured, Measured]]:
    """Pair each in-kernel exchange of a case with the best over sockets, by median; nothing, unless
    both were measured.
    """
    sockets = [each for each in measured if EXCHANGES[each.exchange].needs == "sockets"]
    for each in measured:
        if sockets and each not in sockets:
            yield each, min(sockets, key=lambda one: one.median)
