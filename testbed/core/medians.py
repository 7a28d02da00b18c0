"""Medians, how far they can be trusted, and what may be said of two of them. Pure.

All comparisons of times are made here, so that a table, a figure and a sentence about the same
measurements agree: which is less, how many times, and whether that can be told from chance.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev

__all__ = ["Comparison", "Median", "compare", "counts", "fastest"]

_QUANTILE = 1.96  # of the normal distribution, for 95 %
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # of Student's, by the number of measurements
NEGLIGIBLE = 0.02
"""Ratios closer to 1 are ties: two runs on a shared machine differ as much."""


@dataclass(frozen=True)
class Median:
    """The median of some measurements.

    :param low: From here to `high` is the median of what was measured, with a confidence of 95 %:
        the interval of the sign test, by the normal approximation to its binomial distribution
        (Hollander and Wolfe, Nonparametric Statistical Methods, 3.6), which needs no assumption
        but that measurements are independent. Fewer than nine do not suffice for less than all of
        their range, and fewer than six not even for that: it is at least Student's interval, which
        takes them as normally distributed (ibid., 3.2).
    :param count: Of measurements.
    :param exact: They are computed, not measured, and each repetition would give the same.
    """

    value: float
    low: float
    high: float
    count: int
    exact: bool = False

    @classmethod
    def of(cls, values: Iterable[float], exact: bool = False) -> "Median":
        """From one measurement or more."""
        ordered = sorted(map(float, values))
        count = len(ordered)
        skipped = max(0, int((count + 1 - _QUANTILE * count**0.5) / 2) - 1)
        middle, low, high = median(ordered), ordered[skipped], ordered[count - 1 - skipped]
        if count in _STUDENT and not exact:
            reach = _STUDENT[count] * stdev(ordered) / count**0.5
            low, high = min(low, middle - reach), max(high, middle + reach)
            low = max(low, 0.0) if ordered[0] >= 0 else low
        return cls(middle, low, high, count, exact)

    @property
    def known(self) -> bool:
        """Whether anything is known of how far another measurement would be from this one."""
        return self.exact or self.count > 1


@dataclass(frozen=True)
class Comparison:
    """How many times as fast one is as another.

    :param ratio: Above 1: it is faster.
    :param low: With `high`, the ratios that both medians' intervals allow.
    :param known: Whether there is an interval at all: see `Median.known`.
    """

    ratio: float
    low: float
    high: float
    known: bool = True

    @property
    def tie(self) -> bool:
        """Whether neither may be called faster."""
        if not self.known or abs(self.ratio - 1) < NEGLIGIBLE:
            return True
        return self.low <= 1 <= self.high

    @property
    def why(self) -> str:
        """Why it is a tie; empty if it is none."""
        if not self.tie:
            return ""
        if not self.known:
            return "of one measurement"
        if self.low <= 1 <= self.high:
            return "within their spread"
        return f"less than {NEGLIGIBLE:.0%}"

    @property
    def note(self) -> str:
        """What stands behind the two times in a table; empty if it is no tie."""
        return f"  tie: {self.why}" if self.tie else ""


def compare(one: Median, other: Median) -> Comparison:
    """How many times as fast `one` is as `other`; both are times."""
    return Comparison(
        _ratio(other.value, one.value),
        _ratio(other.low, one.high),
        _ratio(other.high, one.low),
        one.known and other.known,
    )


def _ratio(above: float, below: float) -> float:
    if below:
        return above / below
    return float("inf") if above else 1.0


def counts(medians: Iterable[Median]) -> str:
    """How many measurements each median is of: ``10``, or ``8 to 10``."""
    found = sorted({each.count for each in medians})
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"


def fastest(times: Mapping[str, Median]) -> Sequence[str]:
    """The one with the least median, and after it all that are not told from it, in their order."""
    best = min(times, key=lambda name: times[name].value)
    others = sorted(times.keys() - {best}, key=lambda name: times[name].value)
    return [best, *(name for name in others if compare(times[best], times[name]).tie)]
