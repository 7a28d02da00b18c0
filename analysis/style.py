"""How all figures look: colours, lines and markers by what is shown, what a figure says about its
measurements, and the files that it is written to.

The colours are Okabe and Ito's and shades of them, which are told apart with any colour vision.
Lines differ in dashes and markers as well.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from testbed.core.files import replacing, write_whole

__all__ = [
    "CLASS_COLOURS",
    "FORMATS",
    "PART_COLOURS",
    "STYLE",
    "bars",
    "mark",
    "number",
    "outline",
    "save",
    "scale_of",
    "style_of",
    "styles_of",
]

FORMATS = ("png", "svg", "pdf")

# Computing is blue, collectives are red and yellow.
PART_COLOURS = {
    "sampling": "#bcd8ec",
    "forward": "#7fb2d9",
    "backward": "#0072b2",
    "update": "#004a75",
    "quantize": "#f0c987",
    "communicate": "#d55e00",
    "send": "#d55e00",
    "wait": "#f3b7a0",
    "exposed": "#7f2704",
    "aggregate": "#a63603",
    "dequantize": "#e69f00",
    "all_reduce": "#f0e442",
    "other": "#b5b5b5",
}

# By transport: colour, line, marker.
BACKEND_STYLES = {
    "xdp-ring": ("#d55e00", "-", "o"),
    "tcp-ring": ("#0072b2", "--", "s"),
    "gloo": ("#009e73", "-.", "^"),
    "mpi": ("#cc79a7", ":", "D"),
    "pinch": ("#d55e00", "-", "o"),
    "tcp-push": ("#0072b2", "--", "s"),
    "tcp-pull": ("#56b4e9", ":", "v"),
    # of the bench of losses
    "xdp-ring/upstream": ("#d55e00", "-", "o"),
    "xdp-ring/origin": ("#e69f00", "-", "v"),
    "xdp-ring/timer": ("#cc79a7", ":", "D"),
}

SERIES = (
    ("#333333", "-", "o"),
    ("#d55e00", "--", "s"),
    ("#0072b2", "-.", "^"),
    ("#009e73", ":", "D"),
    ("#cc79a7", "-", "v"),
    ("#e69f00", "--", "P"),
    ("#56b4e9", "-.", "X"),
    ("#5e3c99", ":", "*"),
)
"""For what is no transport."""

# Computing is blue, user space of collectives orange, the network stack green, the testbed's
# programs red, the rest of the kernel purple. Neighbours differ in lightness, so that they are told
# apart with any colour vision.
CLASS_COLOURS = {
    "model": "#0072b2",
    "memory": "#7fb2d9",
    "python": "#bcd8ec",
    "library": "#dfe9f2",
    "quantize": "#f0c987",
    "reduce": "#e69f00",
    "program": "#d55e00",
    "copy": "#00402f",
    "socket": "#cdeee3",
    "packet": "#8fd9c1",
    "tcp": "#009e73",
    "ip": "#5cc9a7",
    "device": "#006e50",
    "switch": "#a9e2d0",
    "syscall": "#5e3c99",
    "scheduler": "#b2a1d2",
    "interrupt": "#8c6bb1",
    "fault": "#e0d7ee",
    "file": "#d4b9da",
    "telemetry": "#333333",
    "unclassified": "#ffffff",
}

# A matplotlibrc is for its own figures: here it could ask for LaTeX, which need not be there. What
# says where figures are shown stays as it is.
_SHOWN = ("backend", "interactive", "toolbar", "webagg", "tk.", "savefig.directory", "docstring")

STYLE: dict[Any, Any] = {
    **{key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith(_SHOWN)},
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "svg.hashsalt": "testbed",  # the same figure gives the same bytes
}

UNMARKED = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
"""Metadata without times and versions, so that the same figure gives the same bytes."""


def style_of(name: str) -> tuple[str, str, str]:
    """Return the colour, line and marker of a transport, in all figures."""
    plain = name.partition("@")[0]  # a bench's sockets with smaller packets
    return BACKEND_STYLES.get(name) or BACKEND_STYLES.get(plain) or ("#555555", "-", "x")


def styles_of(names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return the styles of what is shown together: transports have their own, other names, such as
    variants of one, take those that are left in turn.
    """
    found = {name: style_of(name) for name in names}
    others = [name for name in found if style_of(name)[2] == "x"]
    taken = {style for name, style in found.items() if name not in others}
    free = [style for style in SERIES if style not in taken]
    return found | {name: free[at % len(free)] for at, name in enumerate(others)}


def scale_of(seconds: Iterable[float]) -> tuple[float, str]:
    """Return the factor and the unit in which times are read best, by the largest."""
    largest = max((abs(value) for value in seconds if value == value), default=0.0)
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if largest * factor >= 1:
            return factor, unit
    return (1e6, "µs") if largest else (1.0, "s")


def number(value: float) -> str:
    """Write a number with three digits, never with an exponent."""
    if value != value:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bars(
    axes: Axes,
    table: pd.DataFrame,
    styles: Mapping[str, tuple[str, str]],
    label: str,
    spread: pd.DataFrame | None = None,
) -> None:
    """Stack each row's columns, one bar a row, in the unit that suits them.

    :param table: Seconds.
    :param styles: Title and colour of each column.
    :param label: What is shown; the unit is added.
    :param spread: Seconds, columns `low` and `high`: where each row's sum may be.
    """
    widths = table.clip(lower=0)
    factor, unit = scale_of(widths.sum(axis=1))
    places, left = np.arange(len(table))[::-1], np.zeros(len(table))
    for name in table.columns:
        title, colour = styles.get(name, (str(name).replace("_", "-"), "#7f7f7f"))
        width = widths[name].to_numpy() * factor
        axes.barh(places, width, 0.62, left, color=colour, label=title, edgecolor="#999999", lw=0.3)
        left = left + width
    ends, most = left.copy(), float(left.max())
    if spread is not None:
        low, high = (spread[end].to_numpy() * factor for end in ("low", "high"))
        reach = np.abs(np.array([np.minimum(low - left, 0), np.maximum(high - left, 0)]))
        outline(
            axes.errorbar(left, places, xerr=reach, fmt="none", ecolor="#333333", capsize=3, lw=1)
        )
        ends = np.maximum(left, high)
    for place, value, end in zip(places, left, ends, strict=True):
        # One slow epoch must not make all others unreadable: its line is cut off, and its end told.
        cut = end > 2 * most
        text = f"  {number(value)} {unit}" + (f", up to {number(end)}" if cut else "")
        axes.text(value if cut else end, place + 0.2 * cut, text, va="center")
    axes.set_yticks(places, [str(name) for name in table.index])
    axes.set_xlabel(f"{label}, {unit}")
    axes.set_xlim(0, min(float(ends.max()), 2 * most) * 1.16)
    axes.grid(visible=False, axis="y")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False, fontsize=9)


def outline(reaches: ErrorbarContainer) -> None:
    """Let bars of a spread be seen on dark ground, too."""
    _, caps, lines = reaches
    for each in (*caps, *lines):
        each.set_path_effects([withStroke(linewidth=2.5, foreground="#ffffff")])


def mark(figure: Figure, text: str) -> None:
    """Write below a figure what it was measured on."""
    place = -0.3 / figure.get_figheight()  # inches: below the axis' label
    figure.text(0.0, place, text, fontsize=7, color="#777777", va="top", ha="left")


def save(
    figure: Figure, data: pd.DataFrame, path: Path, formats: Iterable[str] = FORMATS
) -> list[Path]:
    """Write a figure, and the points that it plots as CSV.

    :param path: Without an ending.
    :returns: The pictures.
    """
    places = [path.with_suffix(f".{each}") for each in formats]
    with mpl.rc_context(STYLE):
        for place in places:
            kind = place.suffix[1:]
            with replacing(place) as partial:
                figure.savefig(partial, format=kind, metadata=UNMARKED.get(kind))
    write_whole(path.with_suffix(".csv"), data.to_csv(index=False))
    return places
