"""The figure of ``testbed bench faults``: goodput and extra bytes against loss, as PNG with the CSV
of what it plots.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.style import STYLE, save, style_of

__all__ = ["draw"]

LINEAR = 0.01  # percent: from 0 to here the axis is linear, so that it can show 0


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the cells, one line per backend and number of hosts; those without a fault engine are
    only in the CSV. A bar is where the median is with a confidence of 95 %.

    :param rows: As the command's JSON has them.
    :param path: The PNG; the CSV has the same name.
    """
    table = pd.DataFrame(rows)
    drawn = table[table["loss"].notna()].astype({"loss": float})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6))
        left, right = figure.subplots(1, 2)
        losses = sorted(drawn["loss"].unique() * 100)
        for (name, hosts), cells in drawn.groupby(["backend", "hosts"], sort=False):
            label = str(name) if table["hosts"].nunique() == 1 else f"{name}, {hosts} hosts"
            colour, dash, marker = style_of(str(name))
            style = {
                "color": colour,
                "linestyle": dash,
                "marker": marker,
                "fillstyle": "none",
                "label": label,
            }
            keys = ["goodput_gbps", "median_us", "low_us", "high_us"]
            middle, time, fast, slow = (cells[key].astype(float) for key in keys)
            reach = [middle - middle * time / slow, middle * time / fast - middle]
            left.errorbar(cells["loss"] * 100, middle, reach, capsize=3, **style)
            right.plot(cells["loss"] * 100, cells["extra_bytes"].astype(float) * 100, **style)
        _axes(left, losses, "goodput (GB of tensor per second)")
        _axes(right, losses, "extra bytes on the wire (%)")
        left.legend(frameon=False, fontsize=8)
        figure.tight_layout()
    save(figure, table, path, (path.suffix.removeprefix(".") or "png",))


def _axes(axes: Axes, losses: Sequence[float], label: str) -> None:
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.set_xticks(losses, [f"{loss:g}" for loss in losses])
    axes.minorticks_off()
    axes.set_xlabel("frames lost (%)")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
