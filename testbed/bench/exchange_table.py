"""What the tables of the benches of exchanges share. Pure."""

from collections.abc import Callable, Iterable, Sequence

from testbed.bench.exchange_session import Measured
from testbed.core.medians import compare, counts
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


def against_sockets(
    cases: Iterable[tuple[str, Sequence[Measured]]],
    unit: tuple[float, str, int],
    verdict: Callable[[str, Measured, Measured], str] = lambda *_: "",
) -> list[str]:
    """Compare exchanges in the kernel with the best over sockets, by median, wherever both were
    measured.

    :param cases: The words of each case, and what was measured in it.
    :param unit: Of the times: how many are a second, its name, and digits.
    :param verdict: What is said behind a comparison.
    """
    lines, compared = [], []
    factor, name, digits = unit
    for words, measured in cases:
        sockets = [each for each in measured if EXCHANGES[each.exchange].needs == "sockets"]
        best = min(sockets, key=lambda one: one.median, default=None)
        for kernel in measured:
            if best is None or kernel in sockets:
                continue
            how = compare(kernel.time, best.time)
            times = ", ".join(
                f"{each.exchange} {each.median * factor:.{digits}f} {name}"
                for each in (kernel, best)
            )
            said = verdict(words, kernel, best)
            lines.append(f"#   {words}  {how.ratio:5.2f}x  {times}{how.note}{said}")
            compared += [kernel.time, best.time]
    if not lines:
        return []
    return [f"# Against the best over sockets, medians of {counts(compared)}:", *lines]
