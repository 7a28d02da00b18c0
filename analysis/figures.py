"""The figures of a data-parallel run, each as PNG with the CSV of what it plots."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import narrative
from analysis.breakdown import breakdown_figure
from analysis.summary import curve, epoch_split, traffic
from analysis.workload import report_of
from testbed.results import Run

__all__ = ["FIGURES", "Plot", "draw_all", "style_of"]

# Okabe and Ito's colours, distinguishable with any colour vision: computing is blue, all-reduce
# red.
PART_COLOURS = {
    "sampling": "#bcd8ec",
    "forward": "#7fb2d9",
    "backward": "#0072b2",
    "update": "#004a75",
    "quantize": "#f0c987",
    "communicate": "#d55e00",
    "send": "#d55e00",
    "wait": "#f3b7a0",
    "exposed": "#d55e00",
    "aggregate": "#a63603",
    "dequantize": "#e69f00",
    "all_reduce": "#cc79a7",
    "other": "#b5b5b5",
}
BACKEND_STYLES = {
    "xdp-ring": ("#d55e00", "-", "o"),
    "tcp-ring": ("#0072b2", "--", "s"),
    "gloo": ("#009e73", "-.", "^"),
    "mpi": ("#cc79a7", ":", "D"),
    "pinch": ("#d55e00", "-", "o"),
    "tcp-push": ("#0072b2", "--", "s"),
    "tcp-pull": ("#56b4e9", ":", "v"),
}
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "figure.dpi": 150,
    "savefig.bbox": "tight",
}


@dataclass(frozen=True)
class Plot:
    """A figure on disk.

    :param name: File name without its ending, in the run's folder ``figures``.
    """

    name: str
    title: str
    caption: str
    png: Path
    csv: Path


def split_figure(run: Run) -> tuple[pd.DataFrame, Figure]:
    """Stack the parts of an epoch's time, one bar per backend."""
    parts = list(report_of(run).parts)
    split = epoch_split(run)[parts]
    figure = Figure(figsize=(8, 0.9 + 0.55 * len(split)))
    axes = figure.subplots()
    left = pd.Series(0.0, index=split.index)
    names = list(split.index)[::-1]
    for part in parts:
        widths = split[part].clip(lower=0)
        colour, label = PART_COLOURS.get(part, "#7f7f7f"), part.replace("_", "-")
        axes.barh(names, widths[names], left=left[names], color=colour, label=label, height=0.62)
        left += widths
    for name in names:
        axes.text(left[name], name, f" {left[name]:.2f} s", va="center")
    axes.set_xlabel("seconds of the median epoch (mean over ranks)")
    axes.set_xlim(0, float(left.max()) * 1.12)
    axes.grid(visible=False, axis="y")
    axes.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False, fontsize=9)
    return split.rename_axis("backend").reset_index(), figure


def loss_figure(run: Run) -> tuple[pd.DataFrame, Figure]:
    """Draw training loss by epoch, one line per backend; the lines should coincide."""
    return _curves(run, "loss", "training loss (cross-entropy)")


def accuracy_figure(run: Run) -> tuple[pd.DataFrame, Figure]:
    """Draw validation accuracy by epoch, one line per backend."""
    return _curves(run, "validation_accuracy", "validation accuracy")


def traffic_figure(run: Run) -> tuple[pd.DataFrame, Figure]:
    """Show what all ranks together send per step (full-graph training: per epoch): bytes, packets,
    retransmissions.
    """
    table, every = traffic(run), report_of(run).every
    figure = Figure(figsize=(8, 0.9 + 0.42 * len(table)))
    panels = figure.subplots(1, 3, sharey=True)
    names = list(table.index)[::-1]
    colours = [style_of(name)[0] for name in names]
    for axes, values, title in (
        (panels[0], table["wire_bytes"] / 1e6, f"MB on the wire {every}"),
        (panels[1], table["packets"], f"packets {every}"),
        (panels[2], table["retransmissions_total"], "retransmissions in all"),
    ):
        axes.barh(names, values[names], color=colours, height=0.62)
        for name in names:
            axes.text(
                values[name],
                name,
                f" {values[name]:,.0f}" if values[name] >= 100 else f" {values[name]:.3g}",
                va="center",
                fontsize=9,
            )
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlim(0, max(float(values.max()), 1e-9) * 1.35)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.grid(visible=False, axis="y")
    if not table["retransmissions_total"].any():
        panels[2].set_xticks([0])
    return table.rename_axis("backend").reset_index(), figure


FIGURES: dict[str, tuple[Callable[[Run], tuple[pd.DataFrame, Figure]], str, str]] = {
    "cpu_time": (
        breakdown_figure,
        "Where the CPU time goes",
        (
            "By sampled stacks. Blue is computing, orange {noun} in user space, green the kernel's"
            " network stack, red the testbed's programs, purple the rest of the kernel. Softirq"
            " work, hatched, counts for the host or switch that it is done for."
        ),
    ),
    "epoch_time": (
        split_figure,
        "Where an epoch's time goes",
        (
            "Blue is computing, red and yellow is {noun}. The median epoch, mean over ranks; parts"
            " add up to the epoch."
        ),
    ),
    "loss": (
        loss_figure,
        "Training loss",
        "",
    ),
    "validation_accuracy": (
        accuracy_figure,
        "Validation accuracy",
        "",
    ),
    "traffic": (
        traffic_figure,
        "What is sent",
        "All ranks together. For sockets, packets are what the network device counts: {frames}.",
    ),
}

NEEDED = {
    "loss": "loss",
    "validation_accuracy": "validation_accuracy",
    "cpu_time": "sampled_time",
}
"""The metrics that figures need which not all runs have."""


def draw_all(run: Run) -> list[Plot]:
    """Draw all figures into ``figures`` in the run's folder, and the CSV beside each."""
    folder = run.path / "figures"
    folder.mkdir(exist_ok=True)
    plots = []
    report, measured = report_of(run), set(run.frame["metric"])
    for name, (draw, title, caption) in FIGURES.items():
        if name in NEEDED and NEEDED[name] not in measured:
            continue
        png, csv = folder / f"{name}.png", folder / f"{name}.csv"
        with mpl.rc_context(STYLE):
            data, figure = draw(run)
            figure.savefig(
                png, metadata={"Software": None}
            )  # so that the same run gives the same bytes
        data.to_csv(csv, index=False)
        text = report.captions.get(name, caption).format_map(
            {**vars(report), "frames": narrative.frames(run)}
        )
        plots.append(Plot(name, title, text, png, csv))
    return plots


def _curves(run: Run, metric: str, label: str) -> tuple[pd.DataFrame, Figure]:
    table = curve(run, metric)
    means = table.groupby("epoch").mean()
    figure = Figure(figsize=(5.2, 3.2))
    axes = figure.subplots()
    for name in run.backends:
        _line(axes, means[name], name)
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    data = table.reset_index().melt(["trial", "epoch"], var_name="backend", value_name=metric)
    return data, figure


def _line(axes: Axes, values: "pd.Series[float]", name: str) -> None:
    colour, dash, marker = style_of(name)
    epochs = [int(epoch) + 1 for epoch in values.index]
    size = 6 if len(epochs) <= 40 else 0
    axes.plot(
        epochs,
        values,
        dash,
        color=colour,
        marker=marker,
        markersize=size,
        fillstyle="none",
        label=name,
    )


def style_of(name: str) -> tuple[str, str, str]:
    """Return a backend's or exchange's colour, line and marker, in all figures."""
    return BACKEND_STYLES.get(name, ("#555555", "-", "x"))
