"""The text of ``testbed bench faults``: columns of fixed widths, so that rows print as they come.
Pure.
"""

from collections.abc import Sequence

from testbed.bench.loss_row import Cell
from testbed.core.numbers import format_size

__all__ = ["header_lines", "loss_text", "lossless_of", "requirement_lines", "row_line"]

LEAST_RATIO = 0.7
"""Share of the lossless goodput that the ring is to keep at `REQUIRED_LOSS`."""
REQUIRED_LOSS = 0.01

# name, unit, width
_COLUMNS = [
    ("backend", "", -18),
    ("hosts", "", 5),
    ("size", "", 6),
    ("loss", "(%)", 6),
    ("iters", "", 5),
    ("median", "(ms)", 9),
    ("goodput", "(GB/s)", 8),
    ("ratio", "", 6),
    ("extra", "(%)", 7),
    ("retrans", "(/iter)", 9),
    ("recovery", "(ms)", 8),
    ("#wrong", "", 6),
]


def _line(cells: Sequence[str]) -> str:
    return "  " + " ".join(
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, (_, _, width) in zip(cells, _COLUMNS, strict=True)
    )


def header_lines() -> list[str]:
    """An explanation of the columns that need one; names and units."""
    return [
        (
            "# goodput: bytes of the tensor over the median time. ratio: to the same backend's at 0"
            " %, where the fault engine"
        ),
        (
            "#   is attached as at the other rates, since judging a frame takes time; rows 'off'"
            " are without it. extra: bytes on"
        ),
        (
            "#   the wire on top of those at 0 %. Frames of every kind are lost with the same"
            " probability. Hosts' offloads are off"
        ),
        (
            "#   while the engine is attached, so that a loss meets a frame as a wire carries it;"
            " in rows 'off', see offload."
        ),
        (
            "# recovery: median time from the loss of a chunk's frame until one with this chunk"
            " reaches the same rank, found in"
        ),
        "#   all-reduces of their own, in which every frame is logged.",
        "#" + _line([name for name, _, _ in _COLUMNS])[1:].rstrip(),
        "#" + _line([unit for _, unit, _ in _COLUMNS])[1:].rstrip(),
    ]


def row_line(cell: Cell, lossless: Cell | None) -> str:
    """One row; if there were fewer iterations than requested, the reason follows it."""
    values = [
        cell.backend,
        str(cell.hosts),
        format_size(cell.size),
        loss_text(cell),
        str(len(cell.times)),
        _number(cell.median, 1e3, 3),
        _number(cell.goodput, 1e-9, 3),
        _number(cell.ratio(lossless), 1, 3),
        _number(cell.extra(lossless), 100, 2),
        _number(cell.retransmissions, 1, 1),
        _number(cell.recovery, 1e3, 3),
        str(cell.wrong),
    ]
    return _line(values) + (f"  {cell.failure}" if cell.failure else "")


def requirement_lines(cells: Sequence[Cell]) -> list[str]:
    """Say whether the ring meets its requirement at 1 % loss, wherever that was measured."""
    lines = []
    for cell in cells:
        if cell.loss != REQUIRED_LOSS or not cell.backend.startswith("xdp-ring"):
            continue
        ratio = cell.ratio(lossless_of(cell, cells))
        if ratio is not None:
            verdict = "pass" if ratio >= LEAST_RATIO else "FAIL"
            where = f"{cell.hosts} hosts, {format_size(cell.size)}"
            lines.append(
                f"# {verdict}  {cell.backend}, {where}, 1 % loss: {ratio:.0%} of the lossless"
                " goodput"
            )
    return (
        [f"# At 1 % loss, at least {LEAST_RATIO:.0%} of the lossless goodput:", *lines]
        if lines
        else []
    )


def loss_text(cell: Cell) -> str:
    """The rate of loss in percent; ``off`` without the fault engine."""
    return "off" if cell.loss is None else f"{cell.loss * 100:g}"


def lossless_of(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The cell at 0 % that one is compared with, if it was measured."""
    same = (cell.backend, cell.hosts, cell.size)
    return next(
        (
            each
            for each in cells
            if each.loss == 0 and (each.backend, each.hosts, each.size) == same
        ),
        None,
    )


def _number(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value * unit:.{digits}f}"
