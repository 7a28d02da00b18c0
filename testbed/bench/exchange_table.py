"""What the tables of the benches of exchanges share. Pure."""

from collections.abc import Callable, Iterable, Sequence

from testbed.bench.against import against_sockets
from testbed.bench.exchange_session import Measured
from testbed.core.medians import Median
from testbed.exchange.registry import EXCHANGES

__all__ = ["COUNTS", "EXCHANGE", "Table", "count_cells", "exchanges_against_sockets"]

Column = tuple[str, str, int]
"""Name, unit, width; negative: to the left."""

EXCHANGE: Column = ("exchange", "", -len("tcp-push-16"))
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


def exchanges_against_sockets(
    cases: Iterable[tuple[str, Sequence[Measured]]],
    unit: tuple[float, str, int],
    verdict: Callable[[str, Median, Median], str] = lambda *_: "",
) -> list[str]:
    """See `against_sockets`.

    :param cases: The words of each case, and what was measured in it.
    """

    def split(measured: Sequence[Measured], sockets: bool) -> dict[str, Median]:
        return {
            each.exchange: each.time
            for each in measured
            if (EXCHANGES[each.exchange].needs == "sockets") == sockets
        }

    found = ((words, split(each, False), split(each, True)) for words, each in cases)
    return against_sockets("Against the best over sockets", found, unit, verdict)
