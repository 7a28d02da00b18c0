"""The figures of a run's report, each as PNG, SVG and PDF with the CSV of what it plots."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import communication, narrative
from analysis.charts import stack
from analysis.cpu_time import breakdown, cpu_figure
from analysis.loading import origin
from analysis.style import STYLE, mark, number, save, style_of
from analysis.summary import curve, epoch_split, traffic
from analysis.workload import report_of
from testbed.core.errors import StorageError
from testbed.results import Run

__all__ = ["FIGURES", "Plot", "draw_all"]


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
    """Stack the parts of an epoch's time, one bar per backend, and show how far the median can be
    trusted.
    """
    parts = list(report_of(run).parts)
    split = epoch_split(run)
    figure = stack(
        split, parts, "median epoch, mean over ranks; bars: its 95 % confidence interval"
    )
    data = split[parts].rename_axis("backend").reset_index()
    return data, figure


def cpu_time_figure(run: Run) -> tuple[pd.DataFrame, Figure]:
    """Stack the CPU time of an epoch by class, one bar per backend."""
    return cpu_figure(breakdown(run))


def loss_figure(run: Run) -> tuple[pd.DataFrame, Figure]:
    """Draw training loss by epoch, one line per backend; the lines should coincide."""
    return _curves(run, "loss", "training loss (cross-entropy)")


def accuracy_figure(run: Run) -> tuple[pd.DataFrame, Figure]:
    """Draw validation accuracy by epoch, one line per backend."""
    data, figure = _curves(run, "validation_accuracy", "validation accuracy")
    figure.axes[0].set_ylim(0, 1.02)
    return data, figure


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
                f" {number(values[name])}",
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
    "communication": (
        lambda run: communication.clock_figure(communication.clock_pieces(run)),
        "Where the time of {noun} goes",
        "Pieces add up to the time in {noun}; the table below says what they are.",
    ),
    "communication_cpu": (
        lambda run: communication.cpu_figure(communication.cpu_pieces(run)),
        "What processors do in {noun}",
        "By sampled stacks; the table below says what pieces are.",
    ),
    "cpu_time": (
        cpu_time_figure,
        "Where the CPU time goes",
        (
            "Of the whole epoch, by sampled stacks, all hosts and switches together: several"
            " processors work at once, so that it may be longer than the epoch. Blue is computing,"
            " and the interpreter that prepares it; orange {noun} in user space, green the kernel's"
            " network stack, red the testbed's programs, purple the rest of the kernel. Softirq"
            " work, hatched, is what the kernel does on arrival of frames; it counts for the host"
            " or switch that it is done for."
        ),
    ),
    "epoch_time": (
        split_figure,
        "Where an epoch's time goes",
        (
            "Blue is computing, red, orange and yellow {noun}, grey the rest. The median epoch,"
            " mean over ranks; parts add up to it. A thin bar is where the median is with a"
            " confidence of 95 %; of fewer than nine epochs, it reaches at least from the fastest"
            " to the slowest."
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
    "communication_cpu": "sampled_time",
    "cpu_time": "sampled_time",
}
"""The metrics that figures need which not all runs have."""


def draw_all(run: Run) -> list[Plot]:
    """Draw all figures into ``figures`` in the run's folder, and the CSV beside each."""
    folder = run.path / "figures"
    try:
        folder.mkdir(exist_ok=True)
        return _draw_all(run, folder)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error


def _draw_all(run: Run, folder: Path) -> list[Plot]:
    plots = []
    report, measured = report_of(run), set(run.frame["metric"])
    for name, (draw, title, caption) in FIGURES.items():
        if name in NEEDED and NEEDED[name] not in measured:
            continue
        png, csv = folder / f"{name}.png", folder / f"{name}.csv"
        with mpl.rc_context(STYLE):
            data, figure = draw(run)
            mark(figure, origin(run.frame, run.manifest["kernel"]))
        save(figure, data, folder / name)
        words = {**vars(report), "frames": narrative.frames(run)}
        text = report.captions.get(name, caption).format_map(words)
        plots.append(Plot(name, title.format_map(words), text, png, csv))
    return plots


def _curves(run: Run, metric: str, label: str) -> tuple[pd.DataFrame, Figure]:
    table = curve(run, metric)
    trials = table.groupby("epoch")
    means = trials.mean()
    figure = Figure(figsize=(5.2, 3.2))
    axes = figure.subplots()
    for name in run.backends:
        _line(axes, means[name], name)
        if table.index.get_level_values("trial").nunique() > 1:
            low, high, epochs = trials[name].min(), trials[name].max(), means.index + 1
            axes.fill_between(epochs, low, high, color=style_of(name)[0], alpha=0.15, lw=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Plain numbers: an axis of 1e-8 + 1.3 cannot be read.
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    middle, reach = float(means.mean().mean()), float((means.max() - means.min()).max())
    if reach < 1e-3 * abs(middle):
        axes.set_ylim(middle * 0.95, middle * 1.05)
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
