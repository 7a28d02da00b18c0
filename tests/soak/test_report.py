"""The coverage of a soak: totals and tables."""

from collections import Counter

from testbed.comm.collective import Counters
from testbed.soak.draw import draw
from testbed.soak.report import Coverage, Report


def make_coverage():
    coverage = Coverage(seconds=90.0)
    for number in range(40):
        fired = Counter({fault.split()[0]: 3 for fault in draw(1, number).faults})
        done = Counter({"all-reduces": 4, "aggregations": 1})
        coverage.add(
            Report(
                draw(1, number),
                2.0 + number,
                done,
                10,
                1,
                Counters(100, 10_000, 5),
                fired,
                7,
                number << 10,
            )
        )
    return coverage


def test_totals_add_up():
    found = make_coverage().to_dict()
    assert sum(found["scenarios"].values()) == 40
    assert (found["results_compared"], found["expected_errors"], found["records_judged"]) == (
        400,
        40,
        280,
    )
    assert (found["packets"], found["wire_bytes"], found["retransmissions"]) == (4000, 400_000, 200)
    assert found["collectives"] == {"all-reduces": 160, "aggregations": 40}
    assert found["growth_bytes"] == 39 << 10, "the most that any scenario has shown"
    assert (found["seconds"], found["longest_seconds"]) == (90.0, 41.0)
    scenarios = [draw(1, number) for number in range(40)]
    drawn = Counter(
        action
        for scenario in scenarios
        for action in {fault.split()[0] for fault in scenario.faults}
    )
    drawn["strays"] = sum(scenario.strays > 0 for scenario in scenarios)
    assert {action: counts["scenarios"] for action, counts in found["faults"].items()} == drawn
    assert sum(found["factors"]["hosts"].values()) == 40
    assert list(found["factors"]["hosts"]) == sorted(found["factors"]["hosts"], key=int)


def test_both_texts_have_all_totals():
    coverage = make_coverage()
    for name, value in coverage.totals():
        assert f"{name:<26} {value}" in coverage.text().splitlines()
        assert f"| {name} | {value} |" in coverage.markdown(5).splitlines()
    assert coverage.markdown(5).startswith("`testbed soak --seed 5`\n")
