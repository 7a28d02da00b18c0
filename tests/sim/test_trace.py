"""The trace of a simulation, and what it says while it runs and when it is stuck."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.comm.options import CollectiveOptions
from testbed.core.errors import CollectiveError, StorageError
from testbed.faults.rule_table import compile_rules
from testbed.faults.spec import parse_fault, rules_of
from testbed.plan import plan_fabric
from testbed.sim.hardware import Hardware, HostCosts, LinkModel
from testbed.sim.ring import SimulatedRing
from testbed.sim.ring_over_tcp import RingOverTcp
from testbed.sim.stations import Cpu, Transmitter
from testbed.sim.trace import Trace
from testbed.sim.train_ring import TrainRing
from testbed.sim.watching import watched
from testbed.sim.wiring import Wiring

HARDWARE = Hardware(
    host=HostCosts(frame=2e-6, byte=0.5e-9, wakeup=5e-6, syscall=1e-6),
    link=LinkModel(rate=1e9, queue=20_000),
)
OPTIONS = CollectiveOptions(lanes="int16", window=2, timeout=5.0)
SIZE = 4000


def written(trace: Trace, folder: Path) -> dict[str, Any]:
    place = folder / "trace.json"
    trace.write(place)
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def spans(document: dict[str, Any], process: int, thread: int) -> list[tuple[float, float]]:
    return sorted(
        (event["ts"], event["dur"])
        for event in document["traceEvents"]
        if (event["ph"], event["pid"], event.get("tid")) == ("X", process, thread)
    )


def check_spans(document: dict[str, Any], wiring: Wiring, gaps: bool) -> None:
    """Each station does one thing at a time, for as long as it was busy.

    :param gaps: A span may contain idle time, between the frames of a train.
    """
    stations: list[tuple[int, list[Cpu] | list[Transmitter]]]
    stations = [(1, wiring.cpus), (2, wiring.transmitters)]
    for process, each in stations:
        for thread, station in enumerate(each):
            found = spans(document, process, thread)
            for (begin, length), (following, _) in pairwise(found):
                assert begin + length <= following + 1e-3
            total = sum(length for _, length in found) / 1e6
            assert total >= station.busy * (1 - 1e-9)
            assert gaps or total == pytest.approx(station.busy, rel=1e-6)


def test_every_piece_of_work_is_in_the_trace(tmp_path: Path) -> None:
    ring = SimulatedRing(plan_fabric("star", 3), HARDWARE, OPTIONS, capacity=SIZE)
    trace = Trace(ring.wiring)
    ring.all_reduce([np.ones(SIZE, np.float32)] * 3)
    document = written(trace, tmp_path)
    check_spans(document, ring.wiring, gaps=False)
    names = {event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"}
    assert {"hosts", "links", "queues", "h1 programs", "h3 process", "h1->s1", "s1->h2"} <= names
    queues = [event for event in document["traceEvents"] if event["ph"] == "C"]
    assert 0 < max(event["args"]["bytes"] for event in queues) <= HARDWARE.link.queue
    last = {event["name"]: event["args"]["bytes"] for event in sorted(queues, key=_when)}
    assert set(last.values()) == {0}


def _when(event: dict[str, Any]) -> float:
    return float(event["ts"])


def test_so_are_trains(tmp_path: Path) -> None:
    ring = TrainRing(plan_fabric("leaf-spine", 4), HARDWARE, OPTIONS, SIZE)
    trace = Trace(ring.wiring)
    ring.run()
    check_spans(written(trace, tmp_path), ring.wiring, gaps=True)


def test_drops_are_marked_where_they_happen(tmp_path: Path) -> None:
    tight = Hardware(host=HARDWARE.host, link=LinkModel(rate=1e8, queue=1600))
    ring = SimulatedRing(plan_fabric("star", 2), tight, OPTIONS, capacity=SIZE)
    trace = Trace(ring.wiring)
    ring.all_reduce([np.ones(SIZE, np.float32)] * 2)
    events = written(trace, tmp_path)["traceEvents"]
    for thread, line in enumerate(ring.wiring.transmitters):
        marks = [event for event in events if event["ph"] == "i" and event["tid"] == thread]
        assert len(marks) == line.dropped
    assert sum(line.dropped for line in ring.wiring.transmitters)


def test_a_long_trace_ends_and_says_so(tmp_path: Path) -> None:
    ring = TrainRing(plan_fabric("star", 2), HARDWARE, OPTIONS, SIZE)
    trace = Trace(ring.wiring, most=10)
    ring.run()
    document = written(trace, tmp_path)
    assert len([event for event in document["traceEvents"] if event["ph"] != "M"]) == 10
    assert document["otherData"]["events_left_out"] == trace.left_out > 0
    with pytest.raises(StorageError, match="cannot be written"):
        trace.write(tmp_path)


def test_a_simulation_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.sim.watching._INTERVAL", 0.001)
    ring = TrainRing(plan_fabric("star", 4), HARDWARE, OPTIONS, 1 << 20)
    told: list[str] = []
    with watched(ring, told.append):
        ring.run()
        while not told:
            pass
    assert "events" in told[-1]
    assert "simulated" in told[-1]


def test_tcp_that_gets_nowhere_says_who_waits_for_what() -> None:
    plan = plan_fabric("star", 3)
    table = compile_rules(rules_of([parse_fault("drop p=1 kind=tcp link=h1->h2")]), plan, 1)
    ring = RingOverTcp(plan, HARDWARE, table=table)
    with pytest.raises(CollectiveError, match=r"rank 1 \(h2\) waits for \d+ segments from h1"):
        ring.all_reduce(30_000)
