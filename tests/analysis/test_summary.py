"""Numbers and sentences of a report, on invented measurements with known answers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.narrative import answer, duration, times
from analysis.summary import baseline, checks, epoch_split, traffic
from testbed.core.medians import Median, compare
from testbed.results import Run, Table, load_run
from testbed.workloads.data_parallel import WORKLOAD

RunMaker = Callable[..., Path]


def test_split_adds_up(make_run: RunMaker) -> None:
    split = epoch_split(load_run(make_run()))
    assert list(split.index) == ["xdp-ring", "tcp-ring", "gloo"]
    assert split.loc["gloo", "epoch"] == pytest.approx(1.8)
    assert split.loc["gloo", "wait"] == pytest.approx(0.16)
    for _, row in split.iterrows():
        assert row[list(WORKLOAD.report.parts)].sum() == pytest.approx(row["epoch"])
        assert row["straggler"] + row["exchange"] == pytest.approx(row["communication"])


def test_the_median_epoch_is_an_actual_epoch(make_run: RunMaker) -> None:
    run = load_run(make_run())
    slow = (run.frame["epoch"] == 1) & (run.frame["unit"] == "s")
    run.frame.loc[slow, "value"] *= 100  # another program was running
    row = epoch_split(run).loc["gloo"]
    assert row["epoch"] == pytest.approx(1.8)
    assert row[list(WORKLOAD.report.parts)].sum() == pytest.approx(1.8)
    assert row["low"] == 0
    assert row["high"] > 180


def test_traffic_is_per_step_over_all_ranks(make_run: RunMaker) -> None:
    row = traffic(load_run(make_run())).loc["gloo"]
    assert row["packets"] == pytest.approx(4 * 3 * 100 / 30)
    assert row["wire_bytes"] == pytest.approx(4 * 3 * 50_000 / 30)
    assert row["retransmissions_total"] == 12


def test_baseline_is_the_best_socket_backend(make_run: RunMaker) -> None:
    assert baseline(load_run(make_run({"xdp-ring": 0.1, "gloo": 0.3, "tcp-ring": 0.5}))) == "gloo"


def test_no_baseline_without_sockets(make_run: RunMaker) -> None:
    assert baseline(load_run(make_run({"xdp-ring": 0.1}))) is None


def test_answer_names_winner_ratio_and_reason(make_run: RunMaker) -> None:
    text = " ".join(answer(load_run(make_run())))
    assert (
        "xdp-ring was fastest: its median epoch took 1.2 s, that with tcp-ring 1.4 s (1.17×)"
        in text
    )
    assert "best socket baseline, tcp-ring, an epoch with xdp-ring was 1.17× as fast" in text
    assert "its all-reduce 2.00× as fast" in text
    assert (
        "of the 200 ms per epoch between xdp-ring and tcp-ring, +200 ms are in all-reduce, 0 s in"
        " computing" in text
    )
    assert (
        "The largest piece of all-reduce is with xdp-ring move and add (60% of 200 ms), with"
        " tcp-ring move and add (60% of 400 ms) and with gloo move, add and wait for data (55% of"
        " 800 ms)." in text
    )
    assert "and so holds their noise." in text


def test_answer_when_sockets_win(make_run: RunMaker) -> None:
    text = " ".join(answer(load_run(make_run({"xdp-ring": 0.9, "tcp-ring": 0.3, "gloo": 0.5}))))
    assert text.startswith("tcp-ring was fastest")
    assert "an epoch with xdp-ring was 1.46× as slow and its all-reduce 3.00× as slow" in text
    assert (
        "of the 600 ms per epoch between tcp-ring and xdp-ring, +600 ms are in all-reduce" in text
    )


def test_answer_does_not_rank_equals(make_run: RunMaker) -> None:
    text = " ".join(answer(load_run(make_run({"xdp-ring": 0.400, "tcp-ring": 0.404}))))
    assert "treat them as equal" in text
    assert "Where the difference lies" not in text


def test_answer_of_one_backend(make_run: RunMaker) -> None:
    assert "needs a second backend" in answer(load_run(make_run({"gloo": 0.5})))[0]


def test_answer_of_a_quiet_machine(make_run: RunMaker) -> None:
    assert "Caution" not in " ".join(answer(load_run(make_run())))


def test_answer_of_a_busy_machine(make_run: RunMaker) -> None:
    run = load_run(make_run(load=3.0))
    assert "other work took 100% of the time of its 2 processors" in answer(run)[0]
    run.manifest["busy"] = 0.01  # what ran in the minute before has ended
    assert "Caution" not in answer(run)[0]
    run.manifest["busy"] = 0.3
    assert "other work took 30% of the time of its 2 processors" in answer(run)[0]


def add_faults(table: Table) -> None:
    """An event that was too late in some turns, one that always happened, and lost records."""
    for epoch, happened in enumerate((1, 0, 0)):
        for backend in ("xdp-ring", "tcp-ring"):
            late = {"fault": "link-down host=h3 at=1.3s"}
            table.add(
                0,
                backend,
                "fault_events",
                happened if backend == "xdp-ring" else 0,
                "1",
                epoch=epoch,
                labels=late,
            )
            table.add(
                0, backend, "fault_events", 1, "1", epoch=epoch, labels={"fault": "pause host=h2"}
            )
        table.add(0, "xdp-ring", "fault_log_lost", 0, "frames", epoch=epoch)
        table.add(0, "tcp-ring", "fault_log_lost", 700, "frames", epoch=epoch)


def test_answer_of_events_that_never_happened_and_lost_records(make_run: RunMaker) -> None:
    late, lost, first, *_ = answer(
        load_run(make_run({"xdp-ring": 0.2, "tcp-ring": 0.4}, faults=add_faults))
    )
    assert (
        late
        == "Caution: the fault 'link-down host=h3 at=1.3s' happened in 1 of 3 turns with xdp-ring,"
        " 0 of 3 turns with tcp-ring; other turns ended before its time."
    )
    assert (
        lost
        == "Caution: faults.parquet lacks 2,100 records (2,100 of tcp-ring), which arrived faster"
        " than they could be written; faults are counted all the same."
    )
    assert first.startswith("xdp-ring was fastest")


def test_answer_of_one_backend_cautions_too(make_run: RunMaker) -> None:
    def never(table: Table) -> None:
        table.add(
            0, "gloo", "fault_events", 0, "1", epoch=0, labels={"fault": "kill host=h3 at=9s"}
        )

    text = answer(load_run(make_run({"gloo": 0.5}, faults=never)))
    assert text[0].startswith(
        "Caution: the fault 'kill host=h3 at=9s' happened in 0 of 1 turns with gloo; other turns"
    )
    assert "needs a second backend" in text[1]


def test_answer_mentions_noise(make_run: RunMaker) -> None:
    run = load_run(make_run())
    slow(run, 0.1)
    text = " ".join(answer(run))
    assert "the median epoch of one backend is known to within 143 ms." in text
    assert "xdp-ring was fastest" in text


def test_answer_names_no_winner_within_the_spread(make_run: RunMaker) -> None:
    run = load_run(make_run())
    slow(run, 0.3, backend="xdp-ring")
    text = " ".join(answer(run))
    assert (
        "No backend was fastest for certain: the median epoch took 1.2 s with xdp-ring, that with"
        " tcp-ring 1.4 s (1.17×, within their spread), gloo 1.8 s (1.50×); medians are of 3 epochs"
        " each." in text
    )
    assert (
        "an epoch with xdp-ring was as fast as far as can be told (1.17×, within their spread)"
        in text
    )
    assert "Where the difference lies" not in text


def slow(run: Run, seconds: float, backend: str = "tcp-ring") -> None:
    """Make the last epoch of a backend longer."""
    of = (run.frame["metric"] == "epoch_time") & (run.frame["backend"] == backend)
    run.frame.loc[of & (run.frame["epoch"] == 2), "value"] += seconds


def test_tolerances_kept(make_run: RunMaker) -> None:
    found = checks(load_run(make_run(loss={"xdp-ring": 2.01}, accuracy={"xdp-ring": 0.804})))
    assert len(found) == 4
    assert all(check.passed for check in found)
    assert {check.reference for check in found} == {"tcp-ring"}
    assert found[0].distance == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("changed", "what", "distance"),
    [
        ({"loss": {"xdp-ring": 2.05}}, "loss", 0.05),
        ({"loss": {"xdp-ring": float("nan")}}, "loss", float("nan")),
        ({"accuracy": {"xdp-ring": 0.79}}, "test accuracy", 1.0),
    ],
)
def test_tolerances_broken(
    make_run: RunMaker, changed: dict[str, dict[str, float]], what: str, distance: float
) -> None:
    failed = [check for check in checks(load_run(make_run(**changed))) if not check.passed]
    assert [(check.backend, check.what) for check in failed] == [("xdp-ring", what)]
    assert failed[0].distance == pytest.approx(distance, nan_ok=True)


def test_words_for_numbers() -> None:
    assert [duration(value) for value in (2.345, 0.0123, 4.56e-5, 7e-9, 0.0)] == [
        "2.35 s",
        "12.3 ms",
        "45.6 µs",
        "7 ns",
        "0 s",
    ]
    said = [
        times(compare(Median.of(one), Median.of(other)))
        for one, other in (([1, 1], [2, 2]), ([2, 2], [1, 1]), ([1, 3], [2, 4]), ([1], [2]))
    ]
    assert said == [
        "2.00× as fast",
        "2.00× as slow",
        "as fast as far as can be told (1.50×, within their spread)",
        "as fast as far as can be told (2.00×, of one measurement)",
    ]
