"""Reports, tables and charts say the same of the same measurements, whatever these are."""

from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis import speedup, spread
from analysis.epochs import medians_of
from analysis.narrative import answer
from analysis.report import against
from analysis.summary import baseline, epoch_split
from testbed.core.medians import Median, compare, fastest
from testbed.results import Run, Table
from testbed.scenario import parse_scenario
from testbed.workloads.data_parallel import WORKLOAD

BACKENDS = ("xdp-ring", "tcp-ring", "gloo", "mpi")
SECONDS = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)
MEASURED = st.dictionaries(st.sampled_from(BACKENDS), SECONDS, min_size=2)


def make(measured: dict[str, list[float]]) -> Run:
    """A run of one trial and two ranks, which take 10 % less and 10 % more than the given times."""
    scenario = parse_scenario(
        {
            "scenario": {"name": "r"},
            "dataset": {"name": "synthetic"},
            "collective": {"backends": list(measured)},
        }
    ).model_dump(mode="json")
    table = Table(scenario)
    parts = WORKLOAD.report.parts
    for backend, times in measured.items():
        for epoch, seconds in enumerate(times):
            for rank, factor in enumerate((0.9, 1.1)):
                for part in parts:
                    share = factor * seconds / len(parts)
                    table.add(0, backend, f"{part}_time", share, "s", rank=rank, epoch=epoch)
                for name in ("epoch", "communication", "straggler", "exchange"):
                    whole = factor * seconds
                    table.add(0, backend, f"{name}_time", whole, "s", rank=rank, epoch=epoch)
                table.add(0, backend, "communication_cpu_time", 0, "s", rank=rank, epoch=epoch)
                for name in ("steps", "packets", "wire_bytes", "retransmissions"):
                    table.add(0, backend, name, 1, "1", rank=rank, epoch=epoch)
    manifest = {"scenario": scenario, "load_average": 0.0, "cpus": 2, "status": "complete"}
    return Run(Path("run"), manifest, table.frame())


@settings(max_examples=20)
@given(MEASURED)
@example(  # four epochs: the lower of the two in the middle would make xdp-ring the faster one
    {"gloo": [1.401, 2.111, 1.054, 1.420], "xdp-ring": [3.407, 1.613, 1.272, 1.347]}
)
def test_report_table_and_speedup_agree(measured: dict[str, list[float]]) -> None:
    run = make(measured)
    frame = run.frame.assign(run="run", status="complete", kernel="Linux 6.1")
    split, table = epoch_split(run), spread(frame, "epoch_time")
    parts = list(WORKLOAD.report.parts)
    for name, times in measured.items():
        assert split.loc[name, "epoch"] == pytest.approx(median(times))
        assert split.loc[name, parts].sum() == pytest.approx(median(times))
        assert table.loc[name, "median"] == pytest.approx(median(times))
        for end in ("low", "high", "count"):
            assert table.loc[name, end] == split.loc[name, end]
    base = baseline(run)
    if base is None:
        return
    data = speedup(frame, baseline=base).data.set_index("backend")
    cells = dict(zip(split.index, against(medians_of(run, "epoch_time"), base), strict=True))
    for name, row in data.iterrows():
        tie = " (tie)" if name != base and row["tie"] else ""
        assert cells[str(name)] == f"{row['speedup']:.2f}×{tie}"


@settings(max_examples=20)
@given(MEASURED)
def test_no_winner_is_named_within_the_spread(measured: dict[str, list[float]]) -> None:
    run = make(measured)
    (who, *_) = answer(run)
    medians = {name: Median.of(times) for name, times in measured.items()}
    best, *others = sorted(medians, key=lambda name: medians[name].value)
    if who.startswith(f"{best} was fastest"):
        for name in others:
            assert len(measured[best]) > 1
            assert len(measured[name]) > 1
            assert medians[best].high < medians[name].low
            assert medians[best].value < medians[name].value / 1.02
    else:
        assert who.startswith("No backend was fastest for certain: ")
        assert len(fastest(medians)) > 1


def test_a_single_epoch_does_not_make_a_winner() -> None:
    who = answer(make({"gloo": [2.0], "xdp-ring": [1.0]}))[0]
    assert who == (
        "No backend was fastest for certain: the median epoch took 1 s with xdp-ring, that with"
        " gloo 2 s (2.00×, of one measurement); medians are of 1 epoch each."
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_an_interval_has_the_median_in_it(values: list[float]) -> None:
    found = Median.of(values)
    assert found.low <= found.value <= found.high
    if len(values) > 5:
        assert min(values) <= found.low <= found.high <= max(values)
    else:
        assert found.low <= min(values) <= max(values) <= found.high
    assert found.count == len(values)


@pytest.mark.parametrize(("count", "skipped"), [(8, 0), (9, 1), (16, 3), (20, 5), (100, 39)])
def test_the_interval_is_that_of_the_sign_test(count: int, skipped: int) -> None:
    """As tables of the binomial distribution have it."""
    found = Median.of(range(count))
    assert (found.low, found.high) == (skipped, count - 1 - skipped)


@given(SECONDS, SECONDS)
def test_a_comparison_is_that_of_the_other_turned_round(
    one: list[float], other: list[float]
) -> None:
    a, b = Median.of(one), Median.of(other)
    there, back = compare(a, b), compare(b, a)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high)
    assert there.low <= there.ratio <= there.high


def test_the_fastest_comes_first_and_those_it_is_not_told_from() -> None:
    each = {"a": [3.9, 4], "b": [1, 1.01], "c": [1, 1.1]}
    assert fastest({name: Median.of(values) for name, values in each.items()}) == ["b", "c"]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 9, 20])
def test_of_two_equals_neither_is_called_faster(count: int) -> None:
    """However few measurements there are; by chance it happens less often than once in 20."""
    rng = np.random.default_rng(count)
    named = 0
    for _ in range(1000):
        one, other = (Median.of(rng.normal(10, 2, count)) for _ in range(2))
        named += not compare(one, other).tie
    assert named < 50
