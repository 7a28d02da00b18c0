"""Faults in force during a block of a test, and their effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from testbed.core.closing import Stacked
from testbed.faults.events import Partition, check_events
from testbed.faults.injector import Injector
from testbed.faults.spec import events_of, format_fault, limits_of, parse_fault, rules_of
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.faults.timeline import Timeline

__all__ = ["FaultsInForce"]


class FaultsInForce(Stacked):
    """Rules, limits and events that are in force while the context is entered; times of events
    count from its start.

    :param fabric: A fabric that is up, with workers, on the intended datapath.
    :param texts: Faults, such as ``drop p=0.01 link=h1->h2``.
    :param seed: Seed of all draws.
    :param trace: Also log frames that met no rule.
    :raises SpecError: A fault is not understood, names a host or switch that does not exist, or
        conflicts with another.
    """

    def __init__(
        self, fabric: Fabric, texts: Sequence[str], seed: int, trace: bool = False
    ) -> None:
        self.faults = [parse_fault(text) for text in texts]
        self.seed = seed
        self._fabric = fabric
        self._events = events_of(self.faults)
        check_events(self._events, fabric.plan)
        self._limits = limits_of(self.faults)
        #: The engine: counters of links, the log, the delay lines' counters.
        self.injector = Injector(fabric, rules_of(self.faults), seed, trace)
        #: The events; set once the context is entered.
        self.timeline: Timeline | None = None
        self._limited: Callable[[], int] = int

    def _enter(self, stack: ExitStack) -> None:
        from testbed.faults.partition import Blockade
        from testbed.faults.shaper import limited
        from testbed.faults.timeline import Timeline  # Mininet

        fabric = self._fabric
        workers = Workers.of(fabric)
        stack.enter_context(self.injector)
        partitions = any(isinstance(event, Partition) for event in self._events)
        blockade = stack.enter_context(Blockade(fabric)) if partitions else None
        if self._limits:
            self._limited = stack.enter_context(limited(fabric, self._limits, self.injector))
            stack.callback(self._keep_count)
        self.timeline = Timeline(fabric, workers, self._events, blockade)
        stack.enter_context(self.timeline)

    def fired(self) -> dict[str, int]:
        """How often faults have happened, by action: frames that met a rule or a full queue, events
        that have begun.
        """
        total: Counter[str] = Counter(
            {str(getattr(fault, "action", "")): 0 for fault in self.faults}
        )
        for (rule, _, _), count in self.injector.counters().items():
            total[self.injector.table.sources[rule].action] += count
        if self._limits:
            total["limit"] += self._limited()
        if self.timeline:
            total.update(occurrence.event.action for occurrence in self.timeline.log())
        return dict(total)

    def frames(self) -> int:
        """Frames that were judged."""
        return self.injector.frames()

    def check_replay(self, at_most: int | None = None) -> int:
        """Decide the fates of logged frames again, in Python.

        :param at_most: Check at most this many records, evenly spaced, since Python checks some
            30,000 per second.
        :returns: The number of records checked; all agree.
        :raises FaultError: One does not, or the log lacks some; the text names the first.
        """
        return self.injector.check_replay(at_most)

    def summary(self) -> list[str]:
        """A line for each fault and what it did, by link."""
        occurred = {entry.number for entry in self.timeline.log()} if self.timeline else set()
        lines = self.injector.met()
        for number, event in enumerate(self._events):
            lines.append(
                f"{format_fault(event)}: {'happened' if number in occurred else 'did not happen'}"
            )
        if self._limits:
            lines.append(
                f"{'; '.join(map(format_fault, self._limits))}: {self._limited()} frames dropped"
            )
        return lines

    def _keep_count(self) -> None:
        """Count the limited frames one last time, because the counters disappear with the
        limits.
        """
        dropped = self._limited()
        self._limited = lambda: dropped
