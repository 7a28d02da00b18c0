"""The controller's side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.workloads.measures import record_times
from testbed.workloads.workload import Session, Stage, Turn

from . import SummingScenario, calls

__all__ = ["Summing"]


class Summing(Session[SummingScenario]):
    """Sums."""

    modules = (calls.__name__,)

    def check(self) -> None:
        """See `Session.check`."""
        table = self.scenario.summing
        if table.sums * table.elements > 1 << 24:
            raise SpecError(f"summing.sums = {table.sums}: must be at most 2^24 elements in all")

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """See `Session.prepare`."""
        return {"elements": self.scenario.summing.elements}

    @contextmanager
    def ranks(self, stage: Stage, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Session.ranks`."""
        call = {"seed": self.scenario.scenario.seed + trial}
        stage.workers.call_all(calls.seed, dict.fromkeys(stage.hosts, call))
        yield dict.fromkeys(self.scenario.backends, stage.hosts)

    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """See `Session.open`."""
        groups = stage.groups(
            capacity=self.scenario.summing.elements, **self.scenario.summing.only(CollectiveOptions)
        )
        arguments = {
            name: {"backend": backend, "group": group}
            for name, group in zip(names, groups, strict=True)
        }
        stage.workers.call_all(calls.open_rank, arguments)

    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """See `Session.train`."""
        table = self.scenario.summing
        call = {"epoch": turn.epoch, "sums": table.sums, "elements": table.elements}
        answers = stage.workers.call_all(calls.work, dict.fromkeys(names, call))
        record_times(stage.table, turn.trial, turn.backend, list(answers.values()))
        return f"{table.sums} sums"

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """See `Session.finish`."""
        stage.say(f"{backend}: done")
