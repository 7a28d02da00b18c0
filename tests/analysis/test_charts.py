"""The library for notebooks, on invented and on recorded measurements."""

import json
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pandas as pd
import pytest

from analysis import breakdown, cdf, load, speedup, spread, throughput, trend
from analysis.bench import draw as draw_bench
from analysis.goodput import draw as draw_goodput
from analysis.loading import origin
from analysis.style import BACKEND_STYLES, CLASS_COLOURS, PART_COLOURS, scale_of, style_of
from testbed.bench.loss_row import Cell
from testbed.comm.collective import Counters
from testbed.core.errors import SpecError

EXAMPLES = Path(__file__).parents[2] / "analysis" / "examples"


@pytest.fixture
def runs(make_run) -> pd.DataFrame:
    return load(make_run())


def test_load_gives_tidy_rows_with_units(runs: pd.DataFrame) -> None:
    assert set(runs["run"]) == {"run"}
    assert set(runs["kernel"]) == {"Linux 6.1"}
    assert set(runs[runs["metric"] == "epoch_time"]["unit"]) == {"s"}
    assert origin(runs) == "emulated · 4 hosts · Linux 6.1 · seed 1 · 1 trial"


def test_what_is_no_run_is_left_out_of_a_pattern(make_run, tmp_path: Path) -> None:
    make_run()
    (tmp_path / "other").mkdir()
    assert set(load(tmp_path / "*")["run"]) == {"run"}
    with pytest.raises(SpecError, match=r"no run, sweep or bench is there$"):
        load(tmp_path / "o*")


def test_interrupted_runs_are_read(make_run) -> None:
    path = make_run()
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    assert set(load(path)["status"]) == {"interrupted"}


def test_spread_of_one_trial_is_over_its_epochs(runs: pd.DataFrame) -> None:
    slow = (runs["metric"] == "epoch_time") & (runs["epoch"] == 2) & (runs["backend"] == "gloo")
    runs.loc[slow, "value"] = 2.5
    row = spread(runs, "epoch_time").loc["gloo"]
    reach = 4.303 * np.std([1.8, 1.8, 2.5], ddof=1) / 3**0.5  # Student's, of 3
    expected = {"median": 1.8, "low": 1.8 - reach, "high": 1.8 + reach, "count": 3}
    assert row.to_dict() == pytest.approx(expected)


def test_a_benchs_medians_are_of_its_iterations(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    rows = bench_rows("gloo", 4096) + bench_rows("xdp-ring", 4096)
    for row, middle in zip(rows, (200.0, 100.0), strict=True):
        row["time_us"] |= {"median": middle, "low": middle - 9, "high": middle + 9}
        row["iterations"] = 20
    file.write_text(json.dumps({"environment": {"hosts": 2}, "rows": rows}))
    found = spread(load(file), "time_median", "backend").loc["gloo"].to_dict()
    assert found == pytest.approx({"median": 2e-4, "low": 1.91e-4, "high": 2.09e-4, "count": 20})
    (row,) = speedup(load(file)).data.to_dict("records")
    assert (row["speedup"], row["tie"], row["count"]) == (2, False, 20)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda runs: trend(runs, "epoch_time", by="nosuch"), "by: 'nosuch': is no column of the"),
        (lambda runs: throughput(runs, by="nosuch"), "by: 'nosuch': is no column of these runs"),
        (lambda runs: spread(runs, "epoch_time", "nosuch"), "by: 'nosuch': is no column of these"),
        (lambda runs: breakdown(runs, of="cpu"), "of: cpu: no epoch was sampled: run with --tel"),
        (lambda runs: speedup(runs, baseline="mpi"), "baseline mpi: was not measured at run = run"),
        (
            lambda runs: speedup(runs[runs["backend"] == "xdp-ring"]),
            "baseline: nothing over sockets was measured at run = run",
        ),
    ],
)
def test_what_there_is_not_is_named(runs: pd.DataFrame, ask: Any, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        ask(runs)
    assert str(caught.value).startswith(text)


def test_spread_of_trials_is_over_their_medians(runs: pd.DataFrame) -> None:
    more = runs.assign(trial=1, value=runs["value"] * 1.5)
    row = spread(pd.concat([runs, more]), "epoch_time").loc["gloo"]
    reach = 12.706 * 0.45  # Student's, of 2
    expected = {"median": 2.25, "low": 0.0, "high": 2.25 + reach, "count": 2}
    assert row.to_dict() == pytest.approx(expected, abs=1e-3)


def test_spread_leaves_out_epochs_in_which_telemetry_counted(make_run) -> None:
    runs = load(make_run(telemetry=True))
    slow = (runs["metric"] == "epoch_time") & (runs["epoch"] == 0)
    runs.loc[slow, "value"] = 100.0
    assert (spread(runs, "epoch_time")["high"] < 2).all()


def test_speedup_is_the_ratio_of_medians(runs: pd.DataFrame) -> None:
    data = speedup(runs, baseline="gloo").data.set_index("backend")
    assert data.loc["xdp-ring", "speedup"] == pytest.approx(1.8 / 1.2)
    assert data.loc["gloo", "speedup"] == pytest.approx(1)
    best = speedup(runs).data.set_index("backend")
    assert set(best["baseline"]) == {"tcp-ring"}
    with pytest.raises(SpecError, match="baseline udp: was not measured at run = run"):
        speedup(runs, baseline="udp")


def test_throughput_of_runs_is_steps_per_second(runs: pd.DataFrame) -> None:
    data = throughput(runs).data.set_index("backend")
    assert data.loc["xdp-ring", "median"] == pytest.approx(10 / 1.2)


def test_cdf_reaches_one(runs: pd.DataFrame) -> None:
    data = cdf(runs, "communication_time").data
    assert (data.groupby("backend")["share"].max() == 1).all()
    with pytest.raises(SpecError, match="metric none: is in none of these runs"):
        cdf(runs, "none")


def test_breakdown_by_parts_and_by_cpu_time(make_run) -> None:
    runs = load(make_run(telemetry=True))
    parts = breakdown(runs, of="epoch").data.set_index("run")
    assert parts.loc["gloo", "forward"] == pytest.approx(0.5)
    cpu = breakdown(runs).data
    assert cpu[cpu["class"] == "model"]["seconds"].max() == pytest.approx(1)


def test_benches_are_tidy(tmp_path: Path) -> None:
    rows = [
        {
            "backend": name,
            "hosts": 4,
            "size_bytes": size,
            "time_us": {"min": 1.0, "median": us, "p99": 9.0},
            "algbw_gbps": size / us / 1e3,
            "seed": 0,
        }
        for size in (1024, 4096)
        for name, us in (("xdp-ring", 10.0), ("tcp-ring", 20.0), ("tcp-ring@1500", 15.0))
    ]
    place = tmp_path / "bench.json"
    place.write_text(json.dumps({"environment": {"kernel": "Linux 6.1"}, "rows": rows}))
    runs = load(place)
    assert set(runs["metric"]) == {"time_min", "time_median", "time_p99", "algbw"}
    ratio = speedup(runs, by="size_bytes", metric="time_median").data
    assert set(ratio["baseline"]) == {"tcp-ring@1500"}
    assert ratio[ratio["backend"] == "xdp-ring"]["speedup"].tolist() == pytest.approx([1.5, 1.5])
    data = throughput(runs).data
    assert set(data["size_bytes"]) == {1024, 4096}


@pytest.mark.parametrize(
    "row", [{"telemetry": {"samples": [[1]]}}, {"time_us": {"min": 10**400}}, None, 3, {}]
)
def test_what_is_no_bench_is_left_out(row: Any, tmp_path: Path) -> None:
    rows = [{"backend": "gloo", "hosts": 2, **row} if isinstance(row, dict) and row else row]
    (tmp_path / "x.json").write_text(json.dumps({"rows": rows}))
    with pytest.raises(SpecError, match="no run, sweep or bench is there"):
        load(tmp_path / "x.json")


def test_a_chart_is_saved_in_all_formats_with_its_points(
    runs: pd.DataFrame, tmp_path: Path
) -> None:
    chart = speedup(runs)
    written = [place.name for place in chart.save(tmp_path / "speedup")]
    assert written == ["speedup.png", "speedup.svg", "speedup.pdf"]
    assert "emulated · 4 hosts" in " ".join(text.get_text() for text in chart.figure.texts)
    assert len(pd.read_csv(tmp_path / "speedup.csv")) == 2
    first = (tmp_path / "speedup.svg").read_bytes()
    speedup(runs).save(tmp_path / "speedup")
    assert (tmp_path / "speedup.svg").read_bytes() == first


@pytest.mark.parametrize("colours", [PART_COLOURS, CLASS_COLOURS])
def test_colours_are_valid(colours: dict[str, str]) -> None:
    assert all(matplotlib.colors.is_color_like(colour) for colour in colours.values())


def test_each_transport_has_a_colour_of_its_own_among_those_it_meets() -> None:
    for names in (
        ("xdp-ring", "tcp-ring", "gloo", "mpi"),
        ("pinch", "tcp-push", "tcp-pull", "gloo"),
    ):
        assert len({BACKEND_STYLES[name] for name in names}) == len(names)
        assert len({BACKEND_STYLES[name][0] for name in names}) == len(names)
    assert style_of("tcp-ring@1500") == style_of("tcp-ring")


def test_units_are_chosen_by_magnitude() -> None:
    assert scale_of([0.02, 0.001])[1] == "ms"
    assert scale_of([2.0, 0.001])[1] == "s"
    assert scale_of([2e-5])[1] == "µs"
    assert scale_of([0.0])[1] == "s"


def bench_rows(backend: str, *sizes: int) -> list[dict[str, Any]]:
    """Rows of a bench whose bus bandwidth is 1 GB/s per MiB, known to within a fifth."""
    return [
        {
            "backend": backend,
            "size_bytes": size,
            "busbw_gbps": size / 2**20,
            "time_us": {"median": 10.0, "low": 8.0, "high": 12.5},
            "iterations": 20,
        }
        for size in sizes
    ]


def test_a_bench_draws_bus_bandwidth_and_how_far_it_is_known(tmp_path: Path) -> None:
    rows = bench_rows("xdp-ring", 0, 4096, 1 << 20) + bench_rows("gloo@1500", 0, 1 << 20)
    draw_bench(rows, tmp_path / "busbw.svg")
    table = pd.read_csv(tmp_path / "busbw.csv")
    assert list(table["backend"]) == ["xdp-ring"] * 3 + ["gloo@1500"] * 2
    last = table.iloc[2]
    assert last[["busbw_gbps", "low", "high", "count"]].tolist() == pytest.approx(
        [1, 0.8, 1.25, 20]
    )
    assert "bus bandwidth" in (tmp_path / "busbw.svg").read_text(encoding="utf-8")


def test_goodput_is_drawn_with_its_interval_and_without_what_has_none(tmp_path: Path) -> None:
    cells = [
        Cell("xdp-ring/origin", 4, 1 << 20, loss, times, Counters())
        for loss, times in (
            (0.0, (0.01, 0.02, 0.02, 0.02, 0.02, 0.03)),
            (0.01, ()),
            (None, (0.01,)),
        )
    ]
    draw_goodput([cell.to_dict(None) for cell in cells], tmp_path / "goodput.png")
    table = pd.read_csv(tmp_path / "goodput.csv")
    assert table["low_us"].tolist() == pytest.approx([10_000, float("nan"), 10_000], nan_ok=True)
    assert table["high_us"].tolist() == pytest.approx([30_000, float("nan"), 10_000], nan_ok=True)


def test_small_sizes_are_seen_beside_large_ones(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    rows = [{**row, "algbw_gbps": row["busbw_gbps"]} for row in bench_rows("gloo", 4096, 1 << 24)]
    file.write_text(json.dumps({"environment": {"hosts": 2}, "rows": rows}))
    assert throughput(load(file)).figure.axes[0].get_yscale() == "log"


def test_a_breakdown_of_communication_adds_up_to_it(runs: pd.DataFrame) -> None:
    data = breakdown(runs, of="communication").data.set_index("backend")
    assert data.sum(axis=1).to_dict() == pytest.approx(
        {"xdp-ring": 0.2, "tcp-ring": 0.4, "gloo": 0.8}
    )
    with pytest.raises(SpecError, match=r"^of: memory: must be communication, cpu or epoch$"):
        breakdown(runs, of="memory")
