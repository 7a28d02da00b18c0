"""Turns of iterations, and what telemetry has seen of some of them. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.comm.collective import Counters
from testbed.core.medians import Median
from testbed.telemetry.profile import Profile, combined

__all__ = [
    "Observed",
    "Overhead",
    "Turn",
    "overhead",
    "telemetry_dict",
    "times_of",
    "windows_of",
]


@dataclass(frozen=True)
class Turn:
    """One rank's results of a turn of several iterations.

    :param starts: CLOCK_MONOTONIC at the start of each iteration, seconds.
    :param ends: At its end.
    :param sent: Counters of all iterations together.
    :param wrong: Elements of the last iteration's result whose error exceeds the backend's bound.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    sent: Counters
    wrong: int


@dataclass(frozen=True)
class Observed:
    """The turns of a row that were repeated with telemetry.

    :param profile: Samples of these turns.
    :param times: Seconds of their iterations, by turn.
    :param counts: What was counted in one more turn, whose times are not used.
    :param counted: How many collectives that was.
    """

    profile: Profile
    times: tuple[tuple[float, ...], ...]
    counts: Profile
    counted: int

    @classmethod
    def of(
        cls, turns: Sequence[tuple[Sequence[Turn], Profile]], counts: Profile, counted: int
    ) -> "Observed":
        """Combine turns, each with all ranks' results; there is at least one."""
        profile = combined(profile for _, profile in turns)
        assert profile
        times = tuple(tuple(times_of(ranks)) for ranks, _ in turns)
        return cls(profile, times, counts, counted)

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        counts = {"collectives": self.counted, "counts": self.counts.to_dict()["counts"]}
        return {**self.profile.to_dict(), **counts}


@dataclass(frozen=True)
class Overhead:
    """By what share telemetry makes an iteration longer.

    :param low: Where the share is with a confidence of 95 %, as of `Median`; `high` is the other
        end.
    :param pairs: Of turns with and without telemetry.
    """

    share: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Overhead":
        """From the ratio of each pair."""
        found = Median.of(ratio - 1 for ratio in ratios)
        return cls(found.value, found.low, found.high, found.count)

    def to_dict(self) -> dict[str, float]:
        """For the JSON file."""
        return {
            "overhead": self.share,
            "overhead_low": self.low,
            "overhead_high": self.high,
            "overhead_pairs": self.pairs,
        }


def overhead(plain: Sequence[Sequence[Turn]], observed: Observed | None) -> Overhead | None:
    """By what share telemetry makes an iteration longer; None without it.

    Each pair of turns that follow each other gives the ratio of their medians: what changes from
    pair to pair, such as other work on the machine, has no part in it.

    :param plain: The turns without telemetry, by turn, then by rank.
    """
    if observed is None:
        return None
    return Overhead.of(
        [
            float(np.median(with_) / np.median(times_of(without)))
            for with_, without in zip(observed.times, plain, strict=True)
        ]
    )


def telemetry_dict(observed: Observed | None, cost: Overhead | None) -> dict[str, Any] | None:
    """What a row of the JSON file has of telemetry; None without it."""
    if observed is None:
        return None
    return {**(cost.to_dict() if cost else {}), **observed.to_dict()}


def _spans(ranks: Sequence[Turn]) -> Iterator[tuple[float, float]]:
    for starts, ends in zip(
        zip(*(turn.starts for turn in ranks), strict=True),
        zip(*(turn.ends for turn in ranks), strict=True),
        strict=True,
    ):
        yield min(starts), max(ends)


def times_of(ranks: Sequence[Turn]) -> list[float]:
    """The time of each iteration, in seconds: from the first rank's start to the last rank's
    end.
    """
    return [end - start for start, end in _spans(ranks)]


def windows_of(ranks: Sequence[Turn]) -> dict[str, tuple[list[float], list[float]]]:
    """When all nodes were in collectives, for `testbed.telemetry.recorder.Recorder.take`."""
    spans = list(_spans(ranks))
    return {"*": ([start for start, _ in spans], [end for _, end in spans])}
