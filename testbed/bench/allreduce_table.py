"""The bench's text: nccl-tests' columns and ours, of fixed widths, so that rows print as they come.
Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.bench.against import against_sockets
from testbed.bench.row import Row, algbw, backend_of
from testbed.core.medians import Median, compare
from testbed.core.numbers import format_size
from testbed.host.machine import caution

__all__ = [
    "average_lines",
    "bound_lines",
    "environment_lines",
    "header_lines",
    "row_line",
    "summary_lines",
]

# name, unit, width
_COLUMNS = [
    ("backend", "", -13),
    ("size", "(B)", 11),
    ("count", "(elements)", 10),
    ("type", "", 6),
    ("redop", "", 6),
    ("min", "(us)", 10),
    ("median", "(us)", 10),
    ("p99", "(us)", 10),
    ("algbw", "(GB/s)", 7),
    ("busbw", "(GB/s)", 7),
    ("#wrong", "", 7),
    ("packets", "", 9),
    ("wire", "(B)", 11),
    ("retrans", "", 7),
    ("syscalls", "(per rank)", 10),
]


# after the others, if it was measured
_OUT_OF_PLACE = [
    ("median", "(us)", 10),
    ("algbw", "(GB/s)", 7),
    ("busbw", "(GB/s)", 7),
    ("#wrong", "", 7),
]


def _line(cells: Sequence[str]) -> str:
    return "  " + " ".join(
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, (_, _, width) in zip(cells, [*_COLUMNS, *_OUT_OF_PLACE], strict=False)
    )


def environment_lines(environment: Mapping[str, Any]) -> list[str]:
    """One ``#`` line per key, and one more where the machine was busy."""
    width = max(map(len, environment), default=0)
    lines = [f"# {key:<{width}}  {_text(value)}" for key, value in environment.items()]
    busy = caution(environment)
    return [*lines, f"# {busy}"] if busy else lines


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def header_lines(out_of_place: bool = False) -> list[str]:
    """Names and units of the columns; with those of results in memory of their own, also which
    these are.
    """
    columns = [*_COLUMNS, *(_OUT_OF_PLACE if out_of_place else ())]
    lines = [
        "#" + _line([name for name, _, _ in columns])[1:].rstrip(),
        "#" + _line([unit for _, unit, _ in columns])[1:].rstrip(),
    ]
    if not out_of_place:
        return lines
    first = len(_line([""] * len(_COLUMNS)))
    return ["#" + f"{'out-of-place':>{first + 13}}"[1:], *lines]


def row_line(row: Row) -> str:
    """One row, in the columns of `header_lines`."""
    return _line(
        [
            row.backend,
            str(row.size),
            str(row.count),
            row.datatype,
            row.redop,
            f"{min(row.times) * 1e6:.1f}",
            f"{row.median * 1e6:.1f}",
            f"{row.p99 * 1e6:.1f}",
            f"{algbw(row.size, row.median):.3f}",
            f"{row.busbw:.3f}",
            str(row.wrong),
            str(row.packets),
            str(row.wire_bytes),
            str(row.retransmissions),
            "-" if row.syscalls_per_rank is None else f"{row.syscalls_per_rank:g}",
            *_out_of_place_cells(row),
        ]
    )


def _out_of_place_cells(row: Row) -> list[str]:
    other = row.out_of_place
    if other is None:
        return []
    return [
        f"{other.median * 1e6:.1f}",
        f"{algbw(other.size, other.median):.3f}",
        f"{other.busbw:.3f}",
        str(other.wrong),
    ]


def summary_lines(rows: Sequence[Row], needs: Mapping[str, str]) -> list[str]:
    """Compare the in-kernel backend with the best socket baseline of each size, by median.

    :param needs: Datapath by backend: those on ``sockets`` are the baselines.
    :returns: Nothing unless both kinds were measured, on more than one host, with more than
        nothing: without a byte on a wire there is no backend to compare.
    """

    def split(size: int, sockets: bool) -> dict[str, Median]:
        return {
            row.backend: row.time
            for row in rows
            if row.size == size and (needs[backend_of(row.backend)] == "sockets") == sockets
        }

    sizes = dict.fromkeys(row.size for row in rows if row.size and row.hosts > 1)
    cases = ((f"{format_size(size):>6}", split(size, False), split(size, True)) for size in sizes)
    return against_sockets("Against the best socket baseline", cases, (1e6, "us", 1))


def average_lines(rows: Sequence[Row]) -> list[str]:
    """The mean of each backend's bus bandwidths, as at the end of nccl-tests' output."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.backend, []).append(row.busbw)
    lines = [f"#   {name:<13} {sum(values) / len(values):.3f}" for name, values in found.items()]
    return ["# Average bus bandwidth over all sizes (GB/s):", *lines] if lines else []


def bound_lines(rows: Sequence[Row]) -> list[str]:
    """Compare the largest tensor's times with that of copying it, which no all-reduce can beat.
    Other collectives read or write a part of it only.
    """
    size = max((row.size for row in rows), default=0)
    lines = [
        f"#   {format_size(size):>6}  {row.median / row.bound:5.2f}x  "
        f"{row.backend} {row.median * 1e6:.1f} us, copying {row.bound * 1e6:.1f} us"
        f"{compare(row.time, Median(row.bound, row.bound, row.bound, 1, exact=True)).note}"
        for row in rows
        if row.size == size and row.bound and row.operation.cost == 2
    ]
    return ["# Over the time in which all ranks at once copy the tensor:", *lines] if lines else []
