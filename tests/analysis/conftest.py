"""A run's folder with invented, known numbers."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analysis.report import make_report
from analysis.style import STYLE
from testbed.results import RunFolder, Table
from testbed.scenario import parse_scenario

SECONDS = {"xdp-ring": 0.2, "tcp-ring": 0.4, "gloo": 0.8}
"""Time in all-reduce per epoch; computing takes one second with any backend."""

TELEMETRY = (
    ("h1", "cpu.model", 0.5),
    ("h2", "cpu.model", 0.5),
    ("h1", "cpu.tcp", 0.2),
    ("h1", "cpu.softirq.tcp", 0.1),
    ("s1", "cpu.softirq.switch", 0.1),
    ("h1", "cpu.program.ring_link", 0.03),
    ("h2", "cpu.softirq.program.ring_execute", 0.02),
    ("machine", "cpu.python", 7.0),
    ("machine", "cpu.idle", 1.0),
    ("h1", "communication_cpu.tcp", 0.2),
    ("h1", "communication_cpu.softirq.tcp", 0.1),
    ("h2", "communication_cpu.reduce", 0.08),
    ("h2", "communication_cpu.scheduler", 0.01),
    ("h2", "communication_cpu.unclassified", 0.01),
    ("machine", "communication_cpu.python", 7.0),
)
"""Node, metric and seconds in the sampled epoch."""


def fill_telemetry(table: Table, backends: Iterable[str]) -> None:
    for backend in backends:
        for metric, epoch in (("counted_time", 0), ("sampled_time", 1)):
            table.add(0, backend, metric, 2.0, "s", epoch=epoch, labels={"node": "all"})
        for node, metric, seconds in TELEMETRY:
            table.add(0, backend, metric, seconds, "s", epoch=1, labels={"node": node})


RunMaker = Callable[..., Path]


def fill(table: Table, backend: str, seconds: float, loss: float, accuracy: float) -> None:
    own = {"sampling": 0.1, "forward": 0.5, "backward": 0.3, "update": 0.05, "other": 0.05}
    phases = {"quantize": 0.1, "communicate": 0.6, "wait": 0.2, "dequantize": 0.1}
    parts = own | {name: share * seconds for name, share in phases.items()}
    for epoch in range(3):
        for rank in range(4):
            times = {f"{name}_time": value for name, value in parts.items()} | {
                "epoch_time": 1 + seconds,
                "communication_time": seconds,
                "straggler_time": 0.25 * seconds,
                "exchange_time": 0.75 * seconds,
                "communication_cpu_time": 0.5 * seconds,
            }
            for metric, value in times.items():
                table.add(0, backend, metric, value, "s", rank=rank, epoch=epoch)
            for metric, value in (
                ("steps", 10),
                ("packets", 100),
                ("wire_bytes", 50_000),
                ("retransmissions", 1),
            ):
                table.add(0, backend, metric, value, "1", rank=rank, epoch=epoch)
        table.add(0, backend, "loss", loss / (epoch + 1), "nat", epoch=epoch)
        table.add(0, backend, "validation_accuracy", 0.2 * (epoch + 1), "1", epoch=epoch)
    table.add(0, backend, "test_accuracy", accuracy, "1")


def fill_full_graph(table: Table, backend: str, seconds: float) -> None:
    """Measurements of full-graph training, as `fill` makes those of data-parallel training; two
    ranks and two epochs.
    """
    parts = {
        "forward": 0.6,
        "backward": 0.3,
        "update": 0.05,
        "other": 0.05,
        "all_reduce": 0.1 * seconds,
    }
    parts |= dict.fromkeys(("quantize", "send", "wait", "aggregate", "dequantize"), 0.18 * seconds)
    whole = {
        "epoch": 1 + seconds,
        "communication": seconds,
        "straggler": 0.5 * seconds,
        "exchange": 0.5 * seconds,
    }
    for rank in range(2):
        for epoch in range(2):
            for name, value in (parts | whole | {"communication_cpu": 0.1}).items():
                table.add(0, backend, f"{name}_time", value, "s", rank=rank, epoch=epoch)
            counts = {"steps": 1, "packets": 10, "wire_bytes": 1000, "retransmissions": 0}
            if backend == "pinch":
                counts["redundant_bytes"] = 5 + 10 * epoch
            for name, count in counts.items():
                table.add(0, backend, name, count, "1", rank=rank, epoch=epoch)
            table.add(0, backend, "loss", 1.0, "nat", rank=rank, epoch=epoch)
        for name, count in {"syscalls": 30, "page_faults": 4, "crossings": 34}.items():
            table.add(0, backend, name, count, "1", rank=rank)
    for epoch in range(2):
        table.add(0, backend, "loss", 1.0, "nat", epoch=epoch)
        table.add(0, backend, "validation_accuracy", 0.5, "1", epoch=epoch)
    table.add(0, backend, "test_accuracy", 0.6, "1")
    partition = {
        "edge_cut": 1234,
        "edge_cut_share": 0.25,
        "replication_factor": 1.5,
        "vertex_balance": 1,
        "edge_balance": 1.2,
    }
    for name, value in partition.items():
        table.add(0, backend, name, value, "1")


@pytest.fixture(autouse=True, scope="session")
def _small_figures() -> Iterator[None]:
    """Draw few pixels, and draw once: most of a report's time is its figures'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STYLE, "figure.dpi", 30)
        patch.delitem(STYLE, "savefig.bbox")
        yield


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    return partial(make_run_in, tmp_path)


def make_run_in(
    directory: Path,
    seconds: dict[str, float] = SECONDS,
    loss: dict[str, float] | None = None,
    accuracy: dict[str, float] | None = None,
    load: float = 0.2,
    full_graph: bool = False,
    scenario_faults: tuple[str, ...] = (),
    offload: str = "on",
    faults: Callable[[Table], None] | None = None,
    telemetry: bool = False,
) -> Path:
    """Make the folder ``run`` in a directory."""
    scenario = parse_scenario(
        {
            "scenario": {"name": "made-up", "description": "Numbers <known> & exact"},
            "dataset": {"name": "synthetic"},
            "fabric": {"offload": offload},
            "faults": list(scenario_faults),
            "exchange" if full_graph else "collective": {"backends": list(seconds)},
        }
    ).model_dump(mode="json")
    table = Table(scenario)
    for backend, value in seconds.items():
        if full_graph:
            fill_full_graph(table, backend, value)
            continue
        fill(
            table,
            backend,
            value,
            (loss or {}).get(backend, 2.0),
            (accuracy or {}).get(backend, 0.8),
        )
    if telemetry:
        fill_telemetry(table, seconds)
    if faults:
        faults(table)
    manifest: dict[str, Any] = {
        "scenario": scenario,
        "command": ["testbed", "run", "made up.toml"],
        "status": "complete",
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 12.3,
        "seed": 1,
        "plan_hash": "0123",
        "parameters": 1000,
        "gradient_bytes": 4000,
        "dataset": {
            "name": "synthetic",
            "vertices": 10,
            "edges": 20,
            "classes": 2,
            "features": 3,
            "train": 6,
            "val": 1,
            "test": 3,
        },
        "git_commit": None,
        "kernel": "Linux 6.1",
        "cpu": "a processor",
        "cpus": 2,
        "load_average": load,
        "memory_bytes": 1 << 30,
        "versions": {"numpy": "2"},
        "doctor": [{"name": "root", "level": "OK", "detail": "user id 0", "remedy": ""}],
    }
    with RunFolder(directory / "run") as folder:
        folder.write_manifest(manifest)
        table.write(folder)
    return folder.path


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with telemetry and its report; tests only read it."""
    path = make_run_in(tmp_path_factory.mktemp("reported"), telemetry=True)
    make_report(path)
    return path
