"""The controller's side of training in which a backend sums gradients after each step."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, TypeVar

from testbed.collectives.mpi.launch import rank_workers
from testbed.comm.options import CollectiveOptions
from testbed.workloads.data_parallel import calls
from testbed.workloads.scenario import Scenario
from testbed.workloads.training.measures import record_epoch, record_test
from testbed.workloads.workload import Session, Stage, Turn

__all__ = ["GradientSession"]

S = TypeVar("S", bound=Scenario)


class GradientSession(Session[S]):
    """Each backend trains a model of its own from the same seed; ranks keep theirs in
    `data_parallel.calls.State`.

    :cvar prepare_rank: The call that makes a rank's model; it takes `rank_arguments`.
    """

    prepare_rank: ClassVar[Callable[..., None]]

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Parameters of the model: elements of the all-reduce."""

    def rank_arguments(self) -> dict[str, Any]:
        """What `prepare_rank` takes besides backend, scenario, rank and seed."""
        return {}

    @contextmanager
    def ranks(self, stage: Stage, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Session.ranks`."""
        shared = {
            "scenario": self.scenario,
            "seed": self.scenario.scenario.seed + trial,
            **self.rank_arguments(),
        }
        with ExitStack() as stack:
            ranks: dict[str, list[str]] = {}
            for backend in self.scenario.backends:
                names = stack.enter_context(rank_workers(backend, stage.workers, stage.hosts))
                stage.workers.call_all(
                    type(self).prepare_rank,
                    {
                        name: {**shared, "backend": backend, "rank": number}
                        for number, name in enumerate(names)
                    },
                )
                ranks[backend] = names
            yield ranks

    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """See `Session.open`."""
        groups = stage.groups(
            capacity=self.capacity, **self.scenario.system.only(CollectiveOptions)
        )
        arguments = {
            name: {"backend": backend, "group": group}
            for name, group in zip(names, groups, strict=True)
        }
        stage.workers.call_all(calls.open_rank, arguments)

    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """See `Session.train`."""

        def on_progress(_name: str, value: calls.StepDone) -> None:
            stage.step(turn.backend, turn.epoch * self.steps + value.step)

        call = {"backend": turn.backend, "epoch": turn.epoch}
        answers = stage.workers.call_all(
            calls.train_rank, dict.fromkeys(names, call), on_progress=on_progress
        )
        return record_epoch(stage.table, turn, [answers[name] for name in names])

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """See `Session.finish`."""
        accuracy, seconds = stage.workers[names[0]].call(calls.test_rank, backend=backend)
        stage.say(record_test(stage.table, trial, backend, accuracy, seconds))
