"""A scenario on a fabric that is up: in each trial, backends take turns at the workload."""

import logging
from typing import Any

from testbed.core.logs import logger_of, timed
from testbed.run.faults import Faults
from testbed.run.progress import Display
from testbed.run.watch import Watch
from testbed.workloads.workload import Session, Stage, Turn

__all__ = ["take_turns"]

logger = logger_of(__name__)


def take_turns(
    session: Session[Any], stage: Stage, faults: Faults, watch: Watch, display: Display
) -> None:
    """Run all trials."""
    for trial in range(session.scenario.scenario.trials):
        _Trial(session, stage, faults, watch, display, trial).run()


class _Trial:
    def __init__(
        self,
        session: Session[Any],
        stage: Stage,
        faults: Faults,
        watch: Watch,
        display: Display,
        trial: int,
    ) -> None:
        self._session, self._stage, self._faults, self._display = session, stage, faults, display
        self._watch = watch
        self._trial = trial

    def run(self) -> None:
        """Run some epochs with each backend in turn."""
        session, scenario = self._session, self._session.scenario
        backends = scenario.backends
        trials = scenario.scenario.trials
        which = f" for trial {self._trial + 1} of {trials}" if trials > 1 else ""
        self._display.say(f"preparing the ranks{which}")
        with session.ranks(self._stage, self._trial) as ranks:
            self._display.start(backends, session.steps * scenario.epochs)
            for number, begin in enumerate(range(0, scenario.epochs, scenario.epochs_a_turn)):
                first = number % len(backends)
                for backend in (*backends[first:], *backends[:first]):
                    self._turn(Turn(self._trial, backend, begin), ranks[backend])
            for backend in backends:
                self._display.note(backend, "finishing")
                session.finish(self._stage, self._trial, backend, ranks[backend])

    def _turn(self, turn: Turn, names: list[str]) -> None:
        session, scenario, backend = self._session, self._session.scenario, turn.backend
        end = min(turn.epoch + scenario.epochs_a_turn, scenario.epochs)
        what = (backend, turn.trial + 1, turn.epoch + 1, end)
        self._display.note(backend, "connecting the ranks")
        with (
            timed(logger, logging.INFO, "%s: trial %d, epochs %d to %d", *what),
            session.opened(self._stage, backend, names, self._faults.in_force(turn)),
            self._faults.happening(turn),
        ):
            for epoch in range(turn.epoch, end):
                now = Turn(turn.trial, backend, epoch)
                with self._watch.epoch(now):
                    note = session.train(self._stage, now, names)
                self._display.epoch(
                    backend, epoch + 1, scenario.epochs, (epoch + 1) * session.steps, note
                )
