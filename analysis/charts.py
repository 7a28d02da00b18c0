"""What a person asks for in a notebook: a chart with the points that it plots.

Each function takes what `analysis.load` returns, or rows of it. Values are medians, of trials or of
a single trial's epochs (`analysis.epochs`); a bar is where the median is with a confidence of 95 %
(`testbed.core.medians.Median`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.communication import clock_figure, clock_pieces
from analysis.cpu_time import breakdown as cpu_breakdown
from analysis.cpu_time import cpu_figure
from analysis.epochs import RATIOS, medians, spread, with_ratio
from analysis.loading import each_run, origin
from analysis.style import (
    PART_COLOURS,
    STYLE,
    bars,
    mark,
    outline,
    save,
    scale_of,
    style_of,
    styles_of,
)
from analysis.summary import epoch_split
from analysis.workload import in_kernel, report_of
from testbed.core.errors import SpecError, StorageError
from testbed.core.medians import Median, compare, fastest
from testbed.core.numbers import format_size

__all__ = [
    "RATIOS",
    "Chart",
    "breakdown",
    "cdf",
    "speedup",
    "spread",
    "stack",
    "throughput",
    "trend",
]


@dataclass(frozen=True)
class Chart:
    """A figure, and the points that it plots. A notebook shows it as it is.

    :param label: What the values are, with their unit.
    """

    data: pd.DataFrame
    figure: Figure
    label: str = ""

    def save(self, path: str | Path) -> list[Path]:
        """Write PNG, SVG and PDF, and the points as CSV; return the pictures.

        :param path: Without an ending.
        :raises StorageError: They cannot be written.
        """
        try:
            return save(self.figure, self.data, Path(path))
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        with mpl.rc_context(STYLE):
            self.figure.savefig(out, format="png", dpi=110)
        return out.getvalue()


def stack(split: pd.DataFrame, parts: Sequence[str], label: str) -> Figure:
    """Stack the parts of each row's time, one bar a row, in the unit that suits them.

    :param split: Seconds, one column per part; with `low` and `high`, bars of the whole's spread.
    :param label: What is shown; the unit is added.
    """
    figure = Figure(figsize=(8, 1.1 + 0.55 * len(split)))
    styles = {part: (part.replace("_", "-"), PART_COLOURS.get(part, "#7f7f7f")) for part in parts}
    spread = split[["low", "high"]] if {"low", "high"} <= set(split.columns) else None
    bars(figure.subplots(), split[list(parts)], styles, label, spread)
    return figure


def breakdown(runs: pd.DataFrame, of: str | None = None) -> Chart:
    """Show where an epoch's time goes, one bar per run and transport.

    :param of: ``communication``: the wall-clock time in collectives by its pieces
        (`analysis.communication`); ``cpu``: CPU time by class, from telemetry; ``epoch``: the
        epoch's wall-clock time by its parts. By default CPU time where all runs have it, else the
        epoch's.
    :raises SpecError: There is no such breakdown.
    """
    if of not in (None, "communication", "cpu", "epoch"):
        raise SpecError(f"of: {of}: must be communication, cpu or epoch")
    if "scenario.workload" not in runs:
        raise SpecError("breakdown: must have runs; benches tell no parts of an epoch")
    each = list(each_run(runs))
    if of == "cpu" and not (runs["metric"] == "sampled_time").any():
        raise SpecError("of: cpu: no epoch was sampled: run with --telemetry")
    if of is None:
        sampled = [(run.frame["metric"] == "sampled_time").any() for run in each]
        of = "cpu" if all(sampled) else "epoch"
    with mpl.rc_context(STYLE):
        if of == "cpu":
            tables = [cpu_breakdown(run) for run in each]
        elif of == "communication":
            tables = [clock_pieces(run) for run in each]
        else:
            tables = [epoch_split(run) for run in each]
        if len(each) > 1:
            for run, table in zip(each, tables, strict=True):
                table.index = pd.Index([f"{run.path}: {name}" for name in table.index])
        table = pd.concat(tables).fillna(0.0)
        if of == "cpu":
            data, figure = cpu_figure(table)
        elif of == "communication":
            data, figure = clock_figure(table)
        else:
            parts = list(dict.fromkeys(part for run in each for part in report_of(run).parts))
            figure = stack(table, parts, "median epoch, bars: its 95 % confidence interval")
            data = table[[*parts, "epoch", "low", "high"]].rename_axis("run").reset_index()
        mark(figure, origin(runs))
    return Chart(data, figure)


def speedup(
    runs: pd.DataFrame,
    baseline: str | None = None,
    by: str | None = None,
    metric: str | None = None,
) -> Chart:
    """Show how many times as fast as a baseline each transport is: above 1 is faster. Where its bar
    reaches 1, neither can be called faster: `tie`.

    :param baseline: A transport; by default the best over sockets, at each value of `by`.
    :param by: A column, such as a key of a sweep's grid; by default each run.
    :param metric: A time; by default that of an epoch, and of benches ``time_median``.
    :raises SpecError: There is nothing to compare with.
    """
    key = by or "run"
    if metric is None:
        metric = "epoch_time" if "scenario.workload" in runs else "time_median"
    sockets = _sockets(runs)
    groups: dict[Any, dict[str, Median]] = {}
    for (value, name), found in medians(runs, metric, (key, "backend")).items():
        groups.setdefault(value, {})[str(name)] = found
    rows = []
    for value in sorted(groups) if by is not None else groups:
        group = groups[value]
        candidates = {name: found for name, found in group.items() if name in sockets}
        against = baseline or (fastest(candidates)[0] if candidates else None)
        where = f"at {key} = {value}"
        if against is None:
            raise SpecError(f"baseline: nothing over sockets was measured {where}: name another")
        if against not in group:
            known = ", ".join(group)
            raise SpecError(f"baseline {against}: was not measured {where}: must be one of {known}")
        for name, found in group.items():
            if name != against or baseline is not None:
                how = compare(found, group[against])
                rows.append({key: value, "backend": name, "baseline": against})
                rows[-1] |= {"speedup": how.ratio, "low": how.low, "high": how.high}
                rows[-1] |= {"tie": how.tie, "count": found.count}
    data = pd.DataFrame(rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        _lines(axes, data, key, "speedup")
        axes.axhline(1, color="#333333", lw=1)
        axes.set_ylabel(f"times as fast as {baseline or 'the best over sockets'}")
        axes.set_ylim(bottom=0)
        mark(figure, origin(runs))
    return Chart(data, figure, f"times as fast as {baseline or 'the best over sockets'}")


def throughput(runs: pd.DataFrame, by: str | None = None) -> Chart:
    """Show what each transport moves: of benches bytes of the tensor per second, by size; of runs
    steps per second.

    :param by: A column, such as a key of a sweep's grid; by default ``size_bytes`` of benches, each
        run of others.
    """
    bench = next((name for name in ("algbw", "goodput") if name in set(runs["metric"])), None)
    key = by or ("size_bytes" if bench else "run")
    return trend(runs, bench or "steps_per_second", key)


def trend(runs: pd.DataFrame, metric: str, by: str) -> Chart:
    """Show a metric against a column, one line per transport.

    :param metric: Any, or one of `RATIOS`.
    :param by: A column, such as a key of a sweep's grid.
    """
    runs = with_ratio(runs, metric)
    data = spread(runs, metric, (by, "backend")).reset_index()
    unit = str(runs.loc[runs["metric"] == metric, "unit"].iloc[0])
    scale, label = 1.0, f"{metric.replace('_', ' ')}, {unit}"
    if unit == "s":
        scale, shown = scale_of(data["median"])
        label = f"{metric.replace('_', ' ')}, {shown}"
    elif unit == "B/s":
        scale, label = 1e-9, "GB of tensor per second"
    elif unit == "1":
        scale, label = 100.0, f"{metric.replace('_', ' ')}, %"
    elif unit == "1/s":
        label = metric.replace("_per_", " per ")
    data[["median", "low", "high"]] *= scale
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        _lines(axes, data, by, "median")
        axes.set_ylabel(label)
        least = float(data["median"].min())
        if least > 0 and float(data["median"].max()) / least >= 30:  # the least would be nothing
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
        mark(figure, origin(runs))
    return Chart(data, figure, label)


def cdf(runs: pd.DataFrame, metric: str = "epoch_time") -> Chart:
    """Show the distribution of a metric over all its measurements, one line per transport.

    :param metric: A time, or anything else.
    """
    rows = runs[(runs["metric"] == metric) & runs["value"].notna()]
    if rows.empty:
        raise SpecError(f"metric {metric}: is in none of these runs")
    unit, factor = str(rows["unit"].iloc[0]), 1.0
    if unit == "s":
        factor, unit = scale_of(rows["value"])
    several = runs["run"].nunique() > 1
    parts = []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        for (run, name), group in rows.groupby(["run", "backend"], sort=False):
            values = np.sort(group["value"].to_numpy()) * factor
            shares = np.arange(1, len(values) + 1) / len(values)
            label = f"{run}: {name}" if several else str(name)
            colour, dash, _ = style_of(str(name))
            axes.step(values, shares, where="post", color=colour, linestyle=dash, label=label)
            points = pd.DataFrame({"run": run, "backend": name, metric: values, "share": shares})
            parts.append(points)
        label = f"{metric.replace('_', ' ')}, {unit}"
        axes.set_xlabel(label)
        middles = [float(np.median(part[metric])) for part in parts]
        if min(middles) > 0 and max(middles) / min(middles) >= 8:  # one would hide the others
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("share of measurements")
        axes.set_ylim(0, 1.02)
        axes.legend(frameon=False, fontsize=9)
        mark(figure, origin(runs))
    return Chart(pd.concat(parts, ignore_index=True), figure, label)


def _sockets(runs: pd.DataFrame) -> set[str]:
    """Return the transports that work over sockets."""
    from testbed.collectives.registry import BACKENDS
    from testbed.exchange.registry import EXCHANGES

    if "scenario.workload" not in runs:
        return {
            name
            for name in map(str, runs["backend"].unique())
            if (plain := name.partition("@")[0].partition("/")[0]) in (*BACKENDS, *EXCHANGES)
            and not (BACKENDS if plain in BACKENDS else EXCHANGES)[plain].in_kernel
        }
    return {name for run in each_run(runs) for name in run.backends if not in_kernel(run, name)}


def _lines(axes: Axes, data: pd.DataFrame, key: str, value: str) -> None:
    """Draw a line per transport with bars for the spread; groups of bars where `key` has words."""
    numeric = pd.api.types.is_numeric_dtype(data[key])
    names = list(dict.fromkeys(data["backend"]))
    styles = styles_of(names)
    places = {each: nth for nth, each in enumerate(dict.fromkeys(data[key]))}
    for nth, name in enumerate(names):
        rows = data[data["backend"] == name]
        middle = rows[value].to_numpy(float)
        reach = np.array([middle - rows["low"], rows["high"] - middle]).clip(min=0)
        colour, dash, marker = styles[name]
        small = "@" in str(name)  # the same transport with smaller packets
        if numeric:
            axes.errorbar(
                rows[key],
                middle,
                reach,
                color=colour,
                linestyle=dash,
                marker=marker,
                fillstyle="full" if small else "none",
                alpha=0.5 if small else 1,
                capsize=3,
                label=name,
            )
        else:
            width = 0.8 / len(names)
            at = [places[each] + (nth - (len(names) - 1) / 2) * width for each in rows[key]]
            drawn = axes.bar(at, middle, width * 0.92, yerr=reach, color=colour, capsize=3)
            drawn.set_label(str(name))
            if drawn.errorbar is not None:
                outline(drawn.errorbar)
            for bar in drawn:
                bar.set_alpha(0.5 if small else 1)
    if numeric and (data[key] > 0).all() and data[key].max() / data[key].min() >= 4:
        axes.set_xscale("log", base=2)
        ticks = sorted(data[key].unique())
        size = key.endswith("bytes")
        axes.set_xticks(ticks, [format_size(int(t)) if size else f"{t:g}" for t in ticks])
        axes.minorticks_off()
    if not numeric:
        axes.set_xticks(list(places.values()), [str(each) for each in places])
        axes.grid(visible=False, axis="x")
    axes.set_xlabel(key.replace("_", " "))
    if len(names) <= 4:
        axes.legend(frameon=False, fontsize=9)
    else:  # they would cover lines
        axes.legend(
            frameon=False, fontsize=9, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0)
        )
