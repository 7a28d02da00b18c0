"""What was measured of one thing: its values, and their median.

A metric of ranks is the mean over ranks first. The values of a single trial are its epochs; those
of several are the median epoch of each, because epochs of one trial resemble each other. Epochs in
which telemetry counted are left out, since it slows them down.
"""

from collections.abc import Sequence

import pandas as pd

from testbed.core.errors import SpecError
from testbed.core.medians import Median
from testbed.results import Run

__all__ = ["RATIOS", "medians", "medians_of", "middle", "spread", "with_ratio", "without_counted"]

RATIOS = {
    "steps_per_second": ("steps", "epoch_time", "1/s"),
    "communication_share": ("communication_time", "epoch_time", "1"),
}
"""Metrics that are the ratio of two: above, below, unit."""


def medians(runs: pd.DataFrame, metric: str, by: Sequence[str]) -> dict[tuple[object, ...], Median]:
    """Return the median of a metric for each combination of `by`.

    :param metric: Any, or one of `RATIOS`.
    :raises SpecError: No run has the metric, or a column of `by`.
    """
    check_columns(runs, by)
    runs = with_ratio(runs, metric)
    rows = runs[runs["metric"] == metric]
    if rows.empty:
        known = ", ".join(sorted(set(runs["metric"]))[:40])
        raise SpecError(f"metric {metric}: is in none of these runs: must be one of {known}")
    # Each run, cell and trial has its own median first: their epochs are not pooled.
    inner = [name for name in ("run", "cell", "trial") if name in rows and name not in by]
    keys = [*by, *inner]
    epochs = [*keys, "epoch"] if "epoch" in rows and rows["epoch"].notna().any() else keys
    rows = without_counted(rows, runs)
    computed = bool((rows["engine"] == "simulation").all())
    each = rows.groupby(epochs, sort=False, dropna=False)["value"].mean()
    trials = each.groupby(keys, sort=False, dropna=False).median()
    groups = trials.groupby(list(by), sort=False).size()
    found = {}
    for name, count in groups.items():
        key = name if isinstance(name, tuple) else (name,)
        values = (each if count == 1 else trials).xs(key, level=list(by))
        found[key] = Median.of(values, exact=computed and count == 1)
    return found | (_of_benches(rows, by) if metric == "time_median" else {})


def _of_benches(rows: pd.DataFrame, by: Sequence[str]) -> dict[tuple[object, ...], Median]:
    """Return the medians that a bench has made of its iterations, where they stand alone."""
    if not {"iterations", "time_low", "time_high"} <= set(rows):
        return {}
    found = {}
    for name, group in rows.groupby(list(by), sort=False):
        if len(group) == 1 and group["time_low"].notna().all():
            row = group.iloc[0]
            low, high, count = row["time_low"], row["time_high"], int(row["iterations"])
            key = name if isinstance(name, tuple) else (name,)
            found[key] = Median(float(row["value"]), float(low), float(high), count)
    return found


def check_columns(runs: pd.DataFrame, by: Sequence[str]) -> None:
    """Check that there are columns to group by.

    :raises SpecError: One is missing.
    """
    for name in by:
        if name not in runs:
            known = ", ".join(sorted(map(str, runs.columns)))
            raise SpecError(f"by: {name!r}: is no column of these runs: must be one of {known}")


def spread(runs: pd.DataFrame, metric: str, by: str | Sequence[str] = ("backend",)) -> pd.DataFrame:
    """Return `medians` as a table: `median`, `low`, `high` and `count` for each combination of one
    or more columns.
    """
    names = [by] if isinstance(by, str) else list(by)
    found = medians(runs, metric, names)
    index = pd.MultiIndex.from_tuples(found, names=names)
    return pd.DataFrame(
        {
            "median": [each.value for each in found.values()],
            "low": [each.low for each in found.values()],
            "high": [each.high for each in found.values()],
            "count": [each.count for each in found.values()],
        },
        index=index if len(names) > 1 else index.get_level_values(0),
    )


def medians_of(run: Run, metric: str) -> dict[str, Median]:
    """Return the median of a metric for each backend of a run, in the run's order; backends that
    ended before there was one are left out.
    """
    frame = with_ratio(run.frame, metric)
    if not (frame["metric"] == metric).any():
        return {}
    found = medians(frame, metric, ["backend"])
    return {name: found[name,] for name in run.backends if (name,) in found}


def middle(table: pd.DataFrame, by: str) -> "pd.Series[float]":
    """Return the row of a table that is in the middle by one column; of an even number the mean of
    the two there. So what adds up in each row adds up in this one, and `by` is the median.
    """
    ordered = table.sort_values(by)
    first, last = (len(ordered) - 1) // 2, len(ordered) // 2
    return ordered.iloc[first : last + 1].mean()


def without_counted(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out the rows of epochs in which telemetry counted."""
    counted = runs[runs["metric"] == "counted_time"]
    if counted.empty:
        return rows
    marks = [name for name in ("run", "cell", "backend", "trial", "epoch") if name in rows]
    left_out = pd.MultiIndex.from_frame(counted[marks])
    return rows[~pd.MultiIndex.from_frame(rows[marks]).isin(left_out)]


def with_ratio(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Add the rows of a metric that is the ratio of two, for each rank's epoch."""
    if metric not in RATIOS or metric in set(runs["metric"]):
        return runs
    above, below, unit = RATIOS[metric]
    keys = [name for name in ("run", "cell", "backend", "trial", "epoch", "rank") if name in runs]
    upper = runs[(runs["metric"] == above) & runs["epoch"].notna()].set_index(keys)["value"]
    lower = runs[runs["metric"] == below]
    value = upper.reindex(pd.MultiIndex.from_frame(lower[keys])).to_numpy() / lower["value"]
    return pd.concat([runs, lower.assign(metric=metric, unit=unit, value=value)])
