"""Telemetry of a run, from its scenario to its table."""

import pytest

from testbed.results import load_run
from testbed.run import run_scenario
from testbed.run.watch import mode_of
from testbed.scenario import parse_scenario

pytestmark = pytest.mark.usefixtures("cache")


def scenario(backends, **tables):
    return parse_scenario(
        {
            "scenario": {"name": "watched", "seed": 1},
            "fabric": {"hosts": 2},
            "dataset": {"name": "synthetic", "scale": 9},
            "collective": {"backends": backends},
            "model": {"hidden": 8},
            "training": {"epochs": 1, "steps": 2},
            "telemetry": {"enabled": True, "rate": 2003},
            **tables,
        }
    )


MUCH = {
    "dataset": {"name": "synthetic", "scale": 10},
    "model": {"hidden": 4096, "fanout": [2, 2]},
    "training": {"epochs": 2, "batch_size": 8},
}
"""An epoch of 39 sums of 2.4 MB: hundreds of samples of communication, and thousands of others.

Few samples would prove nothing: on a fast machine, none may be of communication.
"""


def test_epochs_take_turns():
    assert [mode_of(epoch, 5) for epoch in range(5)] == [
        "counts",
        "samples",
        None,
        "counts",
        "samples",
    ]
    assert mode_of(0, 1) == "samples"


@pytest.mark.net
@pytest.mark.needs("BCC")
def test_a_watched_run(tmp_path):
    run_scenario(scenario(["xdp-ring", "tcp-ring"], **MUCH), tmp_path / "run", quiet=True)
    frame = load_run(tmp_path / "run").frame
    for backend in ("xdp-ring", "tcp-ring"):
        rows = frame[frame["backend"] == backend]
        epochs = {name: set(rows[rows["metric"] == name]["epoch"]) for name in rows["metric"]}
        assert (epochs["counted_time"], epochs["sampled_time"]) == ({0}, {1})
        cpu = rows[rows["metric"].str.startswith("cpu.") & rows["node"].isin(["h1", "h2", "s1"])]
        inside = rows[rows["metric"].str.startswith("communication_cpu.")]
        inside = inside[inside["node"].isin(["h1", "h2", "s1"])]
        assert {"h1", "h2"} <= set(cpu["node"])
        assert 0 < inside["value"].sum() < cpu["value"].sum()
        unclassified = cpu[cpu["metric"] == "cpu.unclassified"]["value"].sum()
        assert unclassified < 0.03 * cpu["value"].sum()
        metrics = set(rows["metric"])
        assert {"cpu.model", "cpu.python", "cpu.idle", "softirq_time.net_rx"} <= metrics
        assert {"copied_bytes.in", "copied_bytes.out"} <= metrics
        assert any(name.startswith("off_cpu.") for name in metrics)
        assert ("program_time.dispatch_link" in metrics) == (backend == "xdp-ring")


@pytest.mark.net
def test_without_headers_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    run_scenario(scenario(["tcp-ring"]), tmp_path / "run", quiet=True)
    frame = load_run(tmp_path / "run").frame
    assert not frame["metric"].str.startswith("cpu.").any()
    assert (frame["metric"] == "epoch_time").any()
