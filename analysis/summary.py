"""Numbers that a report states, each computed from a run's table; formulas are in the
docstrings.
"""

from dataclasses import dataclass

import pandas as pd

from analysis.workload import in_kernel, report_of
from testbed.results import Run

__all__ = [
    "Check",
    "baseline",
    "checks",
    "counted",
    "epoch_split",
    "events",
    "faults_fired",
    "records_lost",
    "traffic",
]


@dataclass(frozen=True)
class Check:
    """A tolerance and a backend's distance.

    :param distance: From the reference's value, in `unit`.
    :param tolerance: Largest distance that passes.
    """

    backend: str
    reference: str
    what: str
    distance: float
    tolerance: float
    unit: str

    @property
    def passed(self) -> bool:
        """Whether the distance is within the tolerance; NaN is not."""
        return self.distance <= self.tolerance


def faults_fired(run: Run) -> pd.DataFrame:
    """Return how many frames met each rule, over all turns: one row per fault, as text, and one
    column per backend.

    Empty for a run in which no rule has fired.
    """
    fired = run.metric("faults_fired")
    if fired.empty:
        return pd.DataFrame()
    counts = fired.pivot_table(
        index="fault", columns="backend", values="value", aggfunc="sum", fill_value=0
    )
    return counts.reindex(columns=run.backends, fill_value=0).astype(int)


def events(run: Run) -> pd.DataFrame:
    """Return in how many turns each event has happened, and out of how many: one row per event, as
    text, and backend.

    Columns `happened` and `turns`; empty for a run without events.
    """
    rows = run.metric("fault_events")
    if rows.empty:
        nothing = pd.MultiIndex.from_arrays([[], []], names=["fault", "backend"])
        return pd.DataFrame(columns=["happened", "turns"], index=nothing)
    counts = rows.groupby(["fault", "backend"], sort=False)["value"].agg(
        happened="sum", turns="count"
    )
    return (
        counts.reindex([(fault, name) for fault in rows["fault"].unique() for name in run.backends])
        .dropna()
        .astype(int)
    )


def records_lost(run: Run) -> dict[str, int]:
    """Return the number of records missing from the log of faults, by backend; backends that lost
    none are left out.
    """
    lost = run.metric("fault_log_lost").groupby("backend")["value"].sum()
    return {name: int(lost[name]) for name in run.backends if lost.get(name, 0)}


def epoch_split(run: Run) -> pd.DataFrame:
    """Return seconds per epoch, one row per backend, one column per part, and further ones.

    The row is a backend's median epoch: of all epochs of all trials, each a mean over ranks, the
    one whose `epoch_time` is in the middle (of an even number, the faster of the two). So the parts
    of a row belong together and add up to `epoch`, and an epoch that something else on the machine
    disturbed does not count. Epochs in which telemetry counted are left out: it slows them down.
    `fastest` and `slowest` are the shortest and longest `epoch_time`.

    `communication` is the wall-clock time in collectives (all-reduce; of full-graph training
    exchanges, too), `straggler` the part of it before the last rank entered, `exchange` the rest,
    and `cpu` the CPU time that the ranks' processes spent in it.
    """
    metrics = {part: f"{part}_time" for part in report_of(run).parts} | {
        "epoch": "epoch_time",
        "communication": "communication_time",
        "straggler": "straggler_time",
        "exchange": "exchange_time",
        "cpu": "communication_cpu_time",
    }
    ranks = run.frame[run.frame["rank"].notna() & run.frame["metric"].isin(metrics.values())]
    epochs = ranks.pivot_table(
        index=["backend", "trial", "epoch"], columns="metric", values="value", aggfunc="mean"
    )
    epochs = epochs[list(metrics.values())].set_axis(list(metrics), axis=1)
    counted = run.metric("counted_time").set_index(["backend", "trial", "epoch"]).index
    epochs = epochs[~epochs.index.isin(counted)]
    epochs.index.names = ["backend", "trial", "number"]  # "epoch" is a column now
    rows = {}
    for name in run.backends:
        if name not in epochs.index:  # of a run that has ended early
            continue
        ordered = epochs.loc[name].sort_values("epoch")
        rows[name] = {
            **ordered.iloc[(len(ordered) - 1) // 2],
            "fastest": ordered["epoch"].iloc[0],
            "slowest": ordered["epoch"].iloc[-1],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def baseline(run: Run) -> str | None:
    """Return the socket backend with the shortest median epoch; None if none was measured."""
    split = epoch_split(run)
    sockets = [name for name in split.index if not in_kernel(run, name)]
    return str(split.loc[sockets, "epoch"].idxmin()) if sockets else None


def reference(run: Run) -> str:
    """Return the backend that others are compared with: the first that sums float32, else the
    first.
    """
    return next((name for name in run.backends if not in_kernel(run, name)), run.backends[0])


def curve(run: Run, metric: str) -> pd.DataFrame:
    """Return a group's metric by (trial, epoch), one column per backend."""
    rows = run.metric(metric)
    rows = rows[rows["rank"].isna() & rows["epoch"].notna()]
    table = rows.pivot_table(index=["trial", "epoch"], columns="backend", values="value")
    return table.reindex(columns=run.backends)


def test_accuracy(run: Run) -> pd.DataFrame:
    """Return test accuracy by trial, one column per backend."""
    table = run.metric("test_accuracy").pivot_table(
        index="trial", columns="backend", values="value"
    )
    return table.reindex(columns=run.backends)


def traffic(run: Run) -> pd.DataFrame:
    """Return packets, bytes on the wire and retransmissions of all ranks per step, one row per
    backend.
    """
    metrics = ("packets", "wire_bytes", "retransmissions")
    sums = run.frame[run.frame["metric"].isin(metrics)].pivot_table(
        index="backend", columns="metric", values="value", aggfunc="sum"
    )
    steps = run.metric("steps")
    counts = steps[steps["rank"] == 0].groupby("backend")["value"].sum()
    table = sums.reindex(run.backends)[list(metrics)].div(counts.reindex(run.backends), axis=0)
    table["retransmissions_total"] = sums.reindex(run.backends)["retransmissions"]
    return table


def counted(run: Run) -> pd.DataFrame:
    """Return the workload's further counts, summed over ranks, one row per backend, mean over
    epochs and trials.

    For full-graph training, these are the `syscalls` and `page_faults` of an epoch's collectives
    and their sum `crossings`, counted in a separate epoch, and the counts of exchanges,
    `redundant_bytes`, ... Empty if there are none.
    """
    known = {"steps", "packets", "wire_bytes", "retransmissions"}
    rows = run.frame[
        run.frame["rank"].notna()
        & (run.frame["unit"] != "s")
        & ~run.frame["metric"].isin({*known, "loss"})
    ]
    epochs = (
        rows.fillna({"epoch": -1}).groupby(["backend", "metric", "trial", "epoch"])["value"].sum()
    )
    return (
        epochs.groupby(["backend", "metric"]).mean().unstack().reindex(run.backends)
        if len(epochs)
        else pd.DataFrame()
    )


def checks(run: Run) -> list[Check]:
    """Compare each backend with the reference: loss at every epoch, test accuracy in percentage
    points.

    The distance is the largest over all trials and epochs. Empty for a workload that does not
    train.
    """
    tolerance = run.manifest["scenario"].get("tolerance")
    if tolerance is None:
        return []
    base = reference(run)
    found = []
    for what, table, scale, key, unit in (
        ("loss", curve(run, "loss"), 1.0, "loss", "nat"),
        ("test accuracy", test_accuracy(run), 100.0, "accuracy", "points"),
    ):
        for name in run.backends:
            if name != base:
                distances = (table[name] - table[base]).abs() * scale
                distance = float(distances.max(skipna=False))
                found.append(Check(name, base, what, distance, float(tolerance[key]), unit))
    return found
