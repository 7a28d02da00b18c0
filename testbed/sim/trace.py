"""What hosts, links and queues do over time, in Chrome's trace format, which Perfetto opens
(https://ui.perfetto.dev).

The format is Google's "Trace Event Format": complete events ("X") for work, counters ("C") for
queues, instant events ("i") for drops; times in microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.core.errors import StorageError
from testbed.core.files import write_whole
from testbed.sim.stations import Note, Transmitter
from testbed.sim.wiring import Wiring

__all__ = ["MOST_EVENTS", "Trace"]

MOST_EVENTS = 1_000_000
"""Some 100 MB, which Perfetto still opens."""
_HOSTS, _LINKS, _QUEUES = 1, 2, 3


class Trace:
    """Records from now on what a fabric's stations do.

    :param most: Events after which no more are recorded.
    :ivar left_out: How many were not.
    """

    def __init__(self, wiring: Wiring, most: int = MOST_EVENTS) -> None:
        self.left_out = 0
        self._most = most
        self._events: list[dict[str, Any]] = []
        self._names: list[dict[str, Any]] = []
        self._drained: dict[str, float] = {}  # when a queue will be empty, by its link's name
        for process, name in ((_HOSTS, "hosts"), (_LINKS, "links"), (_QUEUES, "queues")):
            self._name("process_name", process, 0, name)
        for thread, cpu in enumerate(wiring.cpus):
            self._name("thread_name", _HOSTS, thread, cpu.name)
            cpu.note = self._noting(thread)
        for thread, line in enumerate(wiring.transmitters):
            self._name("thread_name", _LINKS, thread, line.name)
            line.note = self._noting_line(thread, line)

    def write(self, place: Path) -> None:
        """Write the file.

        :raises StorageError: It cannot be written.
        """
        for name, when in self._drained.items():
            self._count(name, when, 0)
        self._drained.clear()
        document = {
            "traceEvents": self._names + self._events,
            "displayTimeUnit": "ns",
            "otherData": {"engine": "simulation", "events_left_out": self.left_out},
        }
        try:
            write_whole(place, json.dumps(document) + "\n")
        except OSError as error:
            raise StorageError(f"{place}: cannot be written: {error.strerror}") from error

    def _name(self, kind: str, process: int, thread: int, name: str) -> None:
        self._names.append(
            {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
        )

    def _add(self, event: dict[str, Any]) -> None:
        if len(self._events) < self._most:
            self._events.append(event)
        else:
            self.left_out += 1

    def _span(self, process: int, thread: int, begin: float, end: float, frames: int) -> None:
        self._add(
            {
                "ph": "X",
                "name": f"{frames} frames" if frames > 1 else "work",
                "pid": process,
                "tid": thread,
                "ts": begin * 1e6,
                "dur": (end - begin) * 1e6,
            }
        )

    def _noting(self, thread: int) -> Note:
        def note(begin: float, end: float, frames: int) -> None:
            self._span(_HOSTS, thread, begin, end, frames)

        return note

    def _noting_line(self, thread: int, line: Transmitter) -> Note:
        def note(begin: float, end: float, frames: int) -> None:
            now = float(line.env.now)
            if not frames:
                self._drop(thread, now)
                return
            self._span(_LINKS, thread, begin, end, frames)
            if frames > 1:  # trains are booked ahead of time, so their queues are not known
                return
            if self._drained.get(line.name, now) < now:
                self._count(line.name, self._drained[line.name], 0)
            self._count(line.name, now, round(line.backlog))
            self._drained[line.name] = end

        return note

    def _drop(self, thread: int, when: float) -> None:
        event = {"ph": "i", "name": "dropped", "pid": _LINKS, "tid": thread, "s": "t"}
        self._add({**event, "ts": when * 1e6})

    def _count(self, name: str, when: float, size: int) -> None:
        event = {"ph": "C", "name": name, "pid": _QUEUES, "ts": when * 1e6}
        self._add({**event, "args": {"bytes": size}})
