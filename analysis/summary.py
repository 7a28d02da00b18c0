"""Numbers that a report states, each computed from a run's table; formulas are in the
docstrings.
"""

from dataclasses import dataclass

import pandas as pd

from analysis.epochs import medians_of, middle, without_counted
from analysis.workload import in_kernel, report_of
from testbed.comm.backend import PHASES
from testbed.core.errors import SpecError
from testbed.core.medians import fastest
from testbed.results import Run

__all__ = [
    "Check",
    "baseline",
    "checks",
    "counted",
    "epoch_split",
    "events",
    "faults_fired",
    "phases_of",
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

    The row is a backend's median epoch: each of all epochs is a mean over ranks, and the row is the
    one whose `epoch_time` is in the middle (of an even number, the mean of the two there), of the
    middle trial. So the parts of a row belong together and add up to `epoch`, and an epoch that
    something else on the machine disturbed does not count. Epochs in which telemetry counted are
    left out: it slows them down. From `low` to `high` is the median of `count` epochs or trials
    with a confidence of 95 % (`testbed.core.medians.Median`).

    `communication` is the wall-clock time in collectives (all-reduce; of full-graph training
    exchanges, too), `straggler` the part of it before the last rank entered, `exchange` the rest,
    and `cpu` the CPU time that the ranks' processes spent in it. `last_rank` is as much of a rank's
    waiting as the part before the last rank entered can hold. Phases of collectives that run beside
    computing (`phases_of`) have columns, too.

    :raises SpecError: The run ended before an epoch did.
    """
    if run.metric("epoch_time").empty:
        status = run.manifest.get("status", "unknown")
        raise SpecError(f"{run.path}: no epoch was measured before the run ended: it is {status}")
    parts = dict.fromkeys([*report_of(run).parts, *phases_of(run)])
    metrics = {part: f"{part}_time" for part in parts} | {
        "epoch": "epoch_time",
        "communication": "communication_time",
        "straggler": "straggler_time",
        "exchange": "exchange_time",
        "cpu": "communication_cpu_time",
    }
    ranks = run.frame[run.frame["rank"].notna() & run.frame["metric"].isin(metrics.values())]
    values = without_counted(ranks, run.frame).pivot_table(
        index=["backend", "trial", "epoch", "rank"], columns="metric", values="value"
    )
    if missing := [metric for metric in metrics.values() if metric not in values]:
        raise SpecError(f"{run.path}: {missing[0]} of its epochs is not there")
    values = values[list(metrics.values())].set_axis(list(metrics), axis=1)
    values["last_rank"] = values[[name for name in ("wait", "straggler") if name in values]].min(
        axis=1
    )
    values.index.names = ["backend", "trial", "number", "rank"]  # "epoch" is a column now
    epochs = values.groupby(["backend", "trial", "number"]).mean()
    rows = {}
    for name, whole in medians_of(run, "epoch_time").items():
        trials = [middle(trial, "epoch") for _, trial in epochs.loc[name].groupby("trial")]
        ends = {"low": whole.low, "high": whole.high, "count": whole.count}
        rows[name] = {**middle(pd.DataFrame(trials), "epoch"), **ends}
    return pd.DataFrame.from_dict(rows, orient="index")


def phases_of(run: Run) -> list[str]:
    """Return the names of what communication divides into by the backends' own clocks."""
    report = report_of(run)
    if not report.overlapped:
        return list(report.communication)
    measured = set(run.frame["metric"])
    return [phase for phase in PHASES if f"{phase}_time" in measured]


def baseline(run: Run) -> str | None:
    """Return the socket backend with the shortest median epoch; None if none was measured."""
    times = medians_of(run, "epoch_time")
    sockets = {name: time for name, time in times.items() if not in_kernel(run, name)}
    return fastest(sockets)[0] if sockets else None


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
            if name != base and not table.empty:
                distances = (table[name] - table[base]).abs() * scale
                distance = float(distances.max(skipna=False))
                found.append(Check(name, base, what, distance, float(tolerance[key]), unit))
    return found
