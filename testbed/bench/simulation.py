"""``testbed bench sim``: one simulated all-reduce, and how fast it was simulated."""

from __future__ import annotations

import heapq
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testbed.bench.operations import ALL_REDUCE
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.core.numbers import format_size
from testbed.host import estimates
from testbed.plan import FabricPlan, SimulatedFabricOptions
from testbed.sim.calibration import hardware_of
from testbed.sim.hardware import Hardware
from testbed.sim.options import SimulationOptions
from testbed.sim.ring import SimulatedRing
from testbed.sim.trace import Trace
from testbed.sim.train_ring import TrainRing
from testbed.sim.watching import watched
from testbed.sim.wiring import Wiring

__all__ = ["Options", "Result", "measure", "text_lines"]

MAX_TRAIN = 65536  # frames
_SAMPLE = 200_000  # events
_COPIES = 6  # of a tensor, as floats, lanes and chunks


@dataclass(frozen=True)
class Options:
    """What to simulate.

    :param size: Bytes of the float32 tensor.
    :param exact: Every frame by the reference model, with its payload, instead of trains.
    :param train: Most frames of a train; 0: as `TrainRing` chooses.
    :param trace: Where a trace in Chrome's format is written, if at all.
    """

    fabric: SimulatedFabricOptions
    collective: CollectiveOptions
    size: int
    hardware: SimulationOptions = SimulationOptions()
    exact: bool = False
    train: int = 0
    trace: Path | None = None


@dataclass(frozen=True)
class Result:
    """What it took.

    :param simulated: Seconds of the all-reduce.
    :param events: Of the simulation.
    :param seconds: By part: ``plan``, ``build``, ``run``.
    :param heap: Seconds that a bare heap takes for as many events.
    :param busy: Share of the simulated time that links and CPUs work: mean and most.
    :param peak: Bytes of memory that the process has had at most.
    """

    options: Options
    hardware: Hardware
    simulated: float
    events: int
    frames: int
    seconds: dict[str, float]
    heap: float
    busy: dict[str, dict[str, float]]
    peak: int

    def to_dict(self) -> dict[str, Any]:
        """In types that JSON has."""
        options, run = self.options, self.seconds["run"]
        return {
            "engine": "simulation",
            "fabric": options.fabric.model_dump(),
            "collective": options.collective.only(CollectiveOptions),
            "size": options.size,
            "hardware": {
                "name": options.hardware.named,
                "costs": options.hardware.costs,
                "source": self.hardware.source,
                "cpus": self.hardware.host.cores,
                "cpus_are_shared": self.hardware.host.shared,
            },
            "model": "frames" if options.exact else "trains",
            "simulated_seconds": self.simulated,
            "busbw_gb_per_s": ALL_REDUCE.busbw(options.size, self.simulated, options.fabric.hosts),
            "frames": self.frames,
            "events": self.events,
            "events_per_second": round(self.events / run) if run else 0,
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "bare_heap_seconds": round(self.heap, 3),
            "peak_memory_bytes": self.peak,
            "busy": self.busy,
        }


def measure(options: Options, tell: Callable[[str], None] = lambda text: None) -> Result:
    """Simulate one all-reduce.

    :param tell: Shows the user how far the simulation is.
    :raises SpecError: An option is out of range, or memory does not suffice.
    :raises CollectiveError: There was no progress for the timeout.
    :raises StorageError: The trace cannot be written.
    """
    hardware = hardware_of(options.hardware, "--")
    if not options.size:
        raise SpecError("--size: 0: must be at least 4 bytes, a float32")
    if not 0 <= options.train <= MAX_TRAIN:
        raise SpecError(f"--train: {options.train}: must be 0 to {MAX_TRAIN} frames")
    ranks = options.fabric.hosts
    if options.exact:  # inputs and results of all ranks, as lanes and as floats
        what = f"--exact: {format_size(options.size)} on {ranks} hosts"
        estimates.check({"tensors": _COPIES * ranks * options.size}, what)
    began = time.perf_counter()
    plan = options.fabric.plan()
    planned = time.perf_counter()
    in_flight = options.collective.window * ranks
    ring, run = (_exact if options.exact else _trains)(options, plan, hardware, in_flight)
    wiring = ring.wiring
    trace = Trace(wiring) if options.trace else None
    built = time.perf_counter()
    with watched(ring, tell):
        simulated = run()
    ended = time.perf_counter()
    if trace and options.trace:
        trace.write(options.trace)
    events = ring.events
    return Result(
        options,
        hardware,
        simulated,
        events,
        sum(host.nic.frames for host in wiring.hosts),
        {"plan": planned - began, "build": built - planned, "run": ended - built},
        _heap_seconds(events, ranks),
        _busy(wiring, simulated),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _trains(
    options: Options, plan: FabricPlan, hardware: Hardware, in_flight: int
) -> tuple[TrainRing, Callable[[], float]]:
    ring = TrainRing(
        plan,
        hardware,
        options.collective,
        options.size // 4,
        in_flight,
        options.train or None,
    )
    return ring, ring.run


def _exact(
    options: Options, plan: FabricPlan, hardware: Hardware, in_flight: int
) -> tuple[SimulatedRing, Callable[[], float]]:
    elements = options.size // 4
    ring = SimulatedRing(
        plan,
        hardware,
        options.collective,
        capacity=elements,
        in_flight=in_flight,
    )

    def run() -> float:
        ring.all_reduce([np.ones(elements, np.float32)] * len(plan.hosts))
        return ring.seconds[0]

    return ring, run


def _heap_seconds(events: int, waiting: int) -> float:
    """How long a bare heap takes for these events, if as many wait as there are ranks."""
    sample = min(events, _SAMPLE)
    heap = [(number / waiting, number) for number in range(waiting)]
    began = time.perf_counter()
    for number in range(sample):
        now, _ = heapq.heappop(heap)
        heapq.heappush(heap, (now + 1.0, number))
    return (time.perf_counter() - began) * (events / sample if sample else 0)


def _busy(wiring: Wiring, seconds: float) -> dict[str, dict[str, float]]:
    shares = {
        "links": [line.busy / seconds for line in wiring.transmitters],
        "cpus": [cpu.busy / seconds for cpu in wiring.cpus],
    }
    return {
        name: {"mean": round(float(np.mean(found)), 4), "most": round(max(found), 4)}
        for name, found in shares.items()
    }


def text_lines(result: Result) -> Iterator[str]:
    """The result for people."""
    found = result.to_dict()
    fabric = result.options.fabric
    yield (
        f"simulation, {found['model']}: {fabric.topology}, {fabric.hosts} hosts,"
        f" {format_size(result.options.size)}, {result.options.hardware.named}"
    )
    if result.hardware.host.shared:
        yield (
            f"hosts       share the {result.hardware.host.cores} CPUs of the machine that was"
            " calibrated; --costs instead of --hardware gives each its own, and links"
        )
    yield (
        f"all-reduce  {result.simulated * 1e3:.3f} ms simulated,"
        f" bus bandwidth {found['busbw_gb_per_s']:.3f} GB/s"
    )
    for name, shares in result.busy.items():
        yield f"{name:<11} busy {shares['mean']:.1%} of the time, at most {shares['most']:.1%}"
    yield (
        f"events      {result.events} in {result.seconds['run']:.2f} s,"
        f" {found['events_per_second']} per second; a bare heap takes {result.heap:.2f} s"
    )
    yield (
        f"memory      {result.peak >> 20} MiB at most;"
        f" plan {result.seconds['plan']:.2f} s, build {result.seconds['build']:.2f} s"
    )
