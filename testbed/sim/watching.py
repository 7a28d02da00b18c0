"""How far a simulation is, told while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import simpy

__all__ = ["Simulation", "watched"]

_INTERVAL = 0.5  # seconds


class Simulation(Protocol):
    """A simulation that may run."""

    env: simpy.Environment

    @property
    def events(self) -> int:
        """Events so far."""


@contextmanager
def watched(simulation: Simulation, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell the simulated time, and events a second, twice a second until the end of the context.

    A thread of its own looks, so that the simulation's loop costs nothing.
    """
    done = threading.Event()

    def look() -> None:
        began, before, events = time.perf_counter(), time.perf_counter(), 0
        while not done.wait(_INTERVAL):
            now, found = time.perf_counter(), simulation.events
            tell(
                f"simulated {float(simulation.env.now) * 1e3:.3f} ms in {now - began:.0f} s:"
                f" {found} events, {round((found - events) / (now - before))} per second"
            )
            before, events = now, found

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
