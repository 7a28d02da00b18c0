"""What differs between a run and its repetition: machine, kernel, versions, plan, results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from testbed.results import Run

__all__ = ["Result", "differences", "results"]

_MACHINE = ("kernel", "machine", "cpu", "cpus", "memory_bytes", "python", "git_commit")


@dataclass(frozen=True)
class Result:
    """A figure of a backend, then and now.

    :param allowed: How far they may be apart, in `unit`; None: they are not judged, as times of
        different machines are not.
    """

    backend: str
    what: str
    unit: str
    then: float
    now: float
    allowed: float | None = None

    @property
    def passed(self) -> bool:
        """Whether they are as close as they have to be; NaN is not."""
        return self.allowed is None or abs(self.now - self.then) <= self.allowed


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What two manifests differ in that may explain different results: its name, then, now."""
    pairs: dict[str, tuple[Any, Any]] = {
        "plan of the fabric": (then.get("plan_hash"), now.get("plan_hash")),
        "seed": (then.get("seed"), now.get("seed")),
    }
    pairs |= {name: (then.get(name), now.get(name)) for name in _MACHINE}
    for name, of in (("version of ", _versions), ("doctor: ", _levels), ("", _keys)):
        one, other = of(then), of(now)
        pairs |= {name + key: (one.get(key), other.get(key)) for key in {**one, **other}}
    for name, (before, after) in pairs.items():
        if before != after:
            yield _text(name), _text(before), _text(after)


def _versions(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    found = manifest.get("versions")
    return found if isinstance(found, dict) else {}


def _levels(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    found = manifest.get("doctor")
    listed = found if isinstance(found, list) else []
    return {
        str(each["name"]): each["level"]
        for each in listed
        if isinstance(each, dict) and {"name", "level"} <= set(each)
    }


def _keys(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        f"{table}.{key}": value
        for table, keys in manifest.get("scenario", {}).items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    }


def _text(value: Any) -> str:
    """For a terminal, whatever the archive has in it."""
    text = "none" if value is None else str(value)
    return "".join(each if each.isprintable() else "?" for each in text)[:200]


def results(then: Run, now: Run) -> Iterator[Result]:
    """Figures of each backend in both runs.

    Median time of an epoch and of communication, over epochs and trials, each a mean over ranks;
    frames sent again; the last loss and the accuracy, which the scenario's tolerances judge.
    """
    tolerance = now.manifest["scenario"].get("tolerance") or {}
    accuracy = tolerance.get("accuracy")
    for backend in (name for name in then.backends if name in now.backends):
        for metric, what, unit, allowed, of in (
            ("epoch_time", "an epoch", "s", None, _median),
            ("communication_time", "communication", "s", None, _median),
            ("retransmissions", "sent again, an epoch", "frames", None, _median),
            ("loss", "last loss", "nat", tolerance.get("loss"), _last),
            (
                "test_accuracy",
                "test accuracy",
                "1",
                None if accuracy is None else accuracy / 100,
                _mean,
            ),
        ):
            one, other = of(then, backend, metric), of(now, backend, metric)
            if not (math.isnan(one) and math.isnan(other)):
                yield Result(backend, what, unit, one, other, allowed)


def _rows(run: Run, backend: str, metric: str) -> pd.DataFrame:
    rows = run.metric(metric)
    return rows[rows["backend"] == backend]


def _median(run: Run, backend: str, metric: str) -> float:
    rows = _rows(run, backend, metric)
    return float(rows.groupby(["trial", "epoch"])["value"].mean().median())


def _last(run: Run, backend: str, metric: str) -> float:
    rows = _rows(run, backend, metric)
    rows = rows[rows["rank"].isna()]
    return float(rows[rows["epoch"] == rows["epoch"].max()]["value"].mean())


def _mean(run: Run, backend: str, metric: str) -> float:
    return float(_rows(run, backend, metric)["value"].mean())
