"""Where the CPU time of a run went, by telemetry; formulas are in the docstrings."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.epochs import without_counted
from analysis.style import CLASS_COLOURS, number, scale_of
from testbed.core.medians import Comparison, Median, compare
from testbed.results import Run
from testbed.telemetry.classify import UNCLASSIFIED, load_classes
from testbed.telemetry.profile import MACHINE

__all__ = ["breakdown", "cpu_figure", "network_shares", "overheads", "wakeups"]


def breakdown(run: Run, inside: bool = False) -> pd.DataFrame:
    """Return the CPU time of an epoch, in seconds, of all hosts and switches together.

    The mean over the sampled epochs of all trials. Programs of the testbed are one class.

    :param inside: Only inside collectives.
    :returns: One row per backend, in the run's order; columns are pairs of class and whether in
        softirq. Empty for a run without telemetry.
    """
    start = "communication_cpu." if inside else "cpu."
    epochs = run.metric("sampled_time").groupby("backend").size()
    if epochs.empty:
        return pd.DataFrame()
    rows = run.frame[run.frame["metric"].str.startswith(start)]
    rows = rows[rows["node"] != MACHINE]
    name = rows["metric"].str.removeprefix(start)
    softirq = name.str.startswith("softirq.")
    name = name.str.removeprefix("softirq.").str.partition(".")[0]
    sums = rows.groupby(["backend", name.rename("class"), softirq.rename("softirq")])["value"].sum()
    table = sums.unstack(["class", "softirq"], fill_value=0.0).div(epochs, axis=0)
    order = [
        (each, soft)
        for each in CLASS_COLOURS
        for soft in (False, True)
        if (each, soft) in table.columns
    ]
    return table.reindex([name for name in run.backends if name in table.index])[order]


def network_shares(run: Run) -> pd.DataFrame:
    """Return what share of the CPU time in collectives is whose, one row per backend.

    Columns `cpu` (seconds per epoch, all hosts and switches), `samples` (how many that is, in all
    sampled epochs), `network` (the kernel's network stack: classes of part `network`), `program`
    (the testbed's programs), `kernel` (the rest of the kernel), `user`, `unclassified`, and
    `softirq`, which overlaps with the others. All but the first two are shares of `cpu`.
    """
    table, classes = breakdown(run, inside=True), load_classes()
    epochs = run.metric("sampled_time").groupby("backend").size()
    rate = run.manifest["scenario"].get("telemetry", {}).get("rate", 0)
    rows = {}
    for backend, row in table.iterrows():
        total = row.sum() or 1.0
        parts = {"network": 0.0, "program": 0.0, "kernel": 0.0, "user": 0.0, UNCLASSIFIED: 0.0}
        softirq = 0.0
        for (name, soft), seconds in row.items():
            parts[classes.part(name) or UNCLASSIFIED] += seconds / total
            softirq += seconds / total * soft
        samples = round(row.sum() * epochs[backend] * rate)
        rows[backend] = {"cpu": row.sum(), "samples": samples, **parts, "softirq": softirq}
    return pd.DataFrame.from_dict(rows, orient="index")


def wakeups(run: Run) -> pd.DataFrame:
    """Return how often threads of hosts were woken up, and how long each then waited for a CPU, one
    row per backend.

    Columns `number` (per rank and epoch, mean over counted epochs) and `mean` (seconds, of all
    wake-ups; NaN of none). Empty for a run without telemetry.
    """
    ranks = run.frame["rank"].nunique()
    epochs = run.metric("counted_time").groupby("backend").size()
    rows = run.frame[run.frame["node"] != MACHINE]
    sums = {
        column: rows[rows["metric"].str.startswith(start)].groupby("backend")["value"].sum()
        for column, start in (("number", "wakeup_latency."), ("time", "wakeup_time."))
    }
    table = pd.DataFrame(sums)
    mean = table["time"] / table["number"]
    return pd.DataFrame({"number": table["number"] / epochs / ranks, "mean": mean})


def overheads(run: Run) -> dict[str, Comparison]:
    """Return how many times as long the median sampled epoch is as the median one without
    telemetry, by backend; backends without such epochs are left out.
    """
    keys = ["backend", "trial", "epoch"]
    rows = without_counted(run.metric("epoch_time"), run.frame)
    epochs = rows.groupby(keys)["value"].mean()
    sampled = epochs.index.isin(run.metric("sampled_time").set_index(keys).index)
    with_, without = (
        {name: Median.of(values) for name, values in epochs[mask].groupby("backend")}
        for mask in (sampled, ~sampled)
    )
    return {
        name: compare(without[name], with_[name])
        for name in run.backends
        if name in with_ and name in without
    }


def cpu_figure(table: pd.DataFrame) -> tuple[pd.DataFrame, Figure]:
    """Stack the CPU time of an epoch by class, one bar per row; hatched is softirq.

    :param table: As of `breakdown`.
    """
    classes = load_classes()
    figure = Figure(figsize=(8, 2.3 + 0.55 * len(table)))
    axes = figure.subplots()
    names = list(table.index)[::-1]
    left = pd.Series(0.0, index=table.index)
    scale, unit = scale_of(table.sum(axis=1))
    for name, soft in table.columns:
        widths = table[name, soft] * scale
        axes.barh(
            names,
            widths[names],
            left=left[names],
            color=CLASS_COLOURS[name],
            edgecolor="#555555" if soft else "none",
            hatch="////" if soft else None,
            linewidth=0,
            height=0.62,
        )
        left += widths
    for name in names:
        axes.text(left[name], name, f" {number(left[name])} {unit}", va="center")
    axes.set_xlabel(f"CPU time of an epoch, all hosts and switches, mean of sampled epochs, {unit}")
    axes.set_xlim(0, float(left.max()) * 1.14)
    axes.grid(visible=False, axis="y")
    shown = dict.fromkeys(name for name, _ in table.columns)
    handles = [
        Patch(
            facecolor=CLASS_COLOURS[name], edgecolor="#999999", label=classes.titles.get(name, name)
        )
        for name in shown
    ]
    handles.append(
        Patch(facecolor="#ffffff", edgecolor="#555555", hatch="////", label="in softirq")
    )
    axes.legend(
        handles=handles,
        ncols=4,
        loc="lower center",
        bbox_to_anchor=(0.45, 1.0),
        frameon=False,
        fontsize=8,
    )
    data = table.stack(["class", "softirq"], future_stack=True).rename("seconds").reset_index()
    return data, figure
