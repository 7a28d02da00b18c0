"""The figures of ``testbed bench broadcast`` and ``testbed bench aggregate``, as PNG with the CSV
of what they plot.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.style import STYLE, save, style_of
from testbed.core.numbers import format_size

__all__ = ["draw"]

MARKERS = "osv^Dx"  # receivers, or degrees


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw medians, one line per exchange and number of receivers (broadcast) or degree
    (aggregate).

    :param rows: As the command's JSON has them.
    :param path: The PNG; the CSV has the same name.
    """
    table = pd.DataFrame(
        [{**row, **{f"{key}_us": value for key, value in row["time_us"].items()}} for row in rows]
    )
    table = table.drop(columns="time_us")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6))
        left, right = figure.subplots(1, 2)
        if "receivers" in table:
            _lines(left, table, "size_bytes", "median_us", "receivers", "to {}")
            _lines(right, table, "size_bytes", "goodput_gbps", "receivers", "to {}")
            _label(left, "bytes of the message", "until the last receiver has it (us)")
            _label(right, "bytes of the message", "bytes received (GB/s)")
        else:
            table["kilovertices"] = table["vertices_per_second"] / 1e3
            _lines(left, table, "dim", "kilovertices", "degree", "degree {}")
            _lines(right, table, "dim", "added_gbps", "degree", "degree {}")
            _label(left, "elements of an embedding", "thousands of vertices per second")
            _label(right, "elements of an embedding", "bytes added (GB/s)")
        left.legend(frameon=False, fontsize=7)
        figure.tight_layout()
    save(figure, table, path, (path.suffix.removeprefix(".") or "png",))


def _lines(axes: Axes, table: pd.DataFrame, x: str, y: str, by: str, words: str) -> None:
    markers = dict(zip(sorted(table[by].unique()), MARKERS * len(table), strict=False))
    places = sorted(table[x].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [format_size(int(place)) for place in places])
    axes.minorticks_off()
    for (exchange, value), rows in table.groupby(["exchange", by], sort=False):
        colour, dash, _ = style_of(str(exchange))
        style = {
            "color": colour,
            "linestyle": dash,
            "marker": markers[value],
            "fillstyle": "none",
            "markersize": 5,
        }
        axes.plot(rows[x], rows[y], label=f"{exchange}, {words.format(value)}", **style)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
