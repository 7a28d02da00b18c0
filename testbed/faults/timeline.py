"""A timeline: events begin and end at set times after the start, and those still in force end with
it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from testbed.core.closing import Stacked
from testbed.core.logs import logger_of
from testbed.fabric import Fabric
from testbed.faults.events import Event, Flood, Kill, LinkDown, Partition, Pause, Slow, check_events
from testbed.faults.flood import flooded
from testbed.faults.link import link_down
from testbed.faults.partition import Blockade
from testbed.faults.processes import kill, paused, slow
from testbed.host.signals import signals_later
from testbed.worker import Workers

__all__ = ["Occurrence", "Timeline"]


logger = logger_of(__name__)


@dataclass(frozen=True)
class Occurrence:
    """An event that has happened.

    :param number: Index of the event.
    :param begun: When it had taken effect, seconds of the monotonic clock.
    :param ended: When it had been undone; ``None``: never, as with a kill.
    """

    number: int
    event: Event
    begun: float
    ended: float | None = None


class Timeline(Stacked):
    """Runs events in a thread while the context is entered. May be entered again.

    Events at 0 have taken effect when the context has been entered.

    :param fabric: A fabric that is up.
    :param workers: Its workers.
    :param events: In any order.
    :param blockade: Carries out partitions; needed if there are any.
    :raises SpecError: As in
        :func:`testbed.faults.events.check_events`.
    """

    def __init__(
        self,
        fabric: Fabric,
        workers: Workers,
        events: Sequence[Event],
        blockade: Blockade | None = None,
    ) -> None:
        check_events(events, fabric.plan)
        if blockade is None and any(isinstance(event, Partition) for event in events):
            raise ValueError("a partition needs a blockade")
        self._fabric = fabric
        self._workers = workers
        self._events = tuple(events)
        self._blockade = blockade
        self._log: list[Occurrence] = []
        #: Start, seconds of the monotonic clock: times of events count from here.
        self.started = 0.0
        self._thread: threading.Thread | None = None

    def _enter(self, stack: ExitStack) -> None:
        self._over, self._begun = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._log.clear()
        self.started = time.monotonic()
        if self._events:
            self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
            stack.push(self._check)
            with signals_later():  # a thread whose start was interrupted cannot be joined
                self._thread.start()
                stack.callback(self._thread.join)
                stack.callback(self._over.set)
            self._begun.wait()

    def _check(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._error and kind is None:
            raise self._error

    def wait(self, moment: float) -> None:
        """Wait until ``moment``, seconds after the start, or until an event has failed."""
        if self._thread:
            self._thread.join(max(0.0, self.started + moment - time.monotonic()))

    def log(self) -> list[Occurrence]:
        """The events since the start, in the order in which they began."""
        return list(self._log)

    def _run(self) -> None:
        """Take each step at its time; at the end, undo the events still in force, the latest
        first.
        """
        steps: list[
            tuple[float, bool, Callable[[], None]]
        ] = []  # at equal times, ends come before beginnings
        try:
            with ExitStack() as all_in_force:
                for number, event in enumerate(self._events):
                    in_force = all_in_force.enter_context(ExitStack())
                    steps.append((event.at, True, self._beginning(number, event, in_force)))
                    if event.end is not None:
                        steps.append((event.end, False, in_force.close))
                for moment, _, step in sorted(steps, key=lambda entry: entry[:2]):
                    if moment > 0:
                        self._begun.set()
                    if self._over.wait(max(0.0, self.started + moment - time.monotonic())):
                        return
                    step()
                self._begun.set()
                self._over.wait()
        except Exception as error:  # raised again in the thread that leaves the context
            self._error = error
        finally:
            self._begun.set()

    def _beginning(self, number: int, event: Event, in_force: ExitStack) -> Callable[[], None]:
        def begin() -> None:
            place = len(self._log)
            in_force.callback(lambda: self._end(place, event))
            self._apply(event, in_force)
            logger.info("%s begins", event)
            self._log.append(Occurrence(number, event, time.monotonic()))

        return begin

    def _end(self, place: int, event: Event) -> None:
        if place < len(self._log) and not isinstance(event, Kill):
            known = self._log[place]
            logger.info("%s ends", event)
            self._log[place] = Occurrence(known.number, event, known.begun, time.monotonic())

    def _apply(self, event: Event, in_force: ExitStack) -> None:
        match event:
            case LinkDown():
                for host in event.hosts:
                    in_force.enter_context(link_down(self._fabric, host))
            case Partition():
                assert self._blockade
                in_force.enter_context(self._blockade.partition(event.sets))
            case Kill():
                for host in event.hosts:
                    kill(self._workers, host)
            case Pause():
                for host in event.hosts:
                    in_force.enter_context(paused(self._fabric, host))
            case Flood():
                for switch in event.switches:
                    in_force.enter_context(flooded(self._fabric, switch))
            case Slow():
                for host in event.hosts:
                    in_force.enter_context(slow(self._fabric, host, event.share))
