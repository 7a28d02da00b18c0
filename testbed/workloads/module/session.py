"""The controller's side of the training of a torch module."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from testbed.collectives.mpi.launch import rank_workers
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import SpecError
from testbed.host import estimates
from testbed.workloads.data_parallel import calls as common
from testbed.workloads.module import calls
from testbed.workloads.module.scenario import ModuleScenario
from testbed.workloads.training.measures import record_epoch, record_test
from testbed.workloads.workload import Session, Stage, Turn

__all__ = ["ModuleSession"]


class ModuleSession(Session[ModuleScenario]):
    """Trains by ``[module]``."""

    modules = (calls.__name__, "testbed.workloads.module.train")

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """See `Session.prepare`.

        :raises SpecError: The task refuses its arguments, or does not fit the fabric.
        """
        from testbed.workloads.module.train import make_model, make_task

        table, hosts = self.scenario.module, self.scenario.fabric.hosts
        say(f"making task {table.task}")
        task = make_task(table)
        self._parameters = sum(each.numel() for each in make_model(table, task).parameters())
        workers = hosts * (1 + ("mpi" in table.backends))
        need = estimates.gradients(
            self._parameters * len(table.backends), self._parameters, hosts, workers
        )
        estimates.check(need, f"fabric.hosts = {hosts}, module.task = {table.task}")
        samples = {part: len(task.dataset(part)) for part in ("train", "val", "test")}  # type: ignore[arg-type]
        if samples["train"] < hosts:
            raise SpecError(
                f"fabric.hosts = {hosts}: must be at most the size of the training set,"
                f" {samples['train']}"
            )
        training = self.scenario.training
        steps = math.ceil(samples["train"] // hosts / training.batch_size)
        self.steps = min(steps, training.steps or steps)
        return {
            "parameters": self._parameters,
            "gradient_bytes": 4 * self._parameters,
            "samples": samples,
        }

    @contextmanager
    def ranks(self, stage: Stage, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Session.ranks`."""
        seed = self.scenario.scenario.seed + trial
        with ExitStack() as stack:
            ranks: dict[str, list[str]] = {}
            for backend in self.scenario.backends:
                names = stack.enter_context(rank_workers(backend, stage.workers, stage.hosts))
                shared = {"backend": backend, "scenario": self.scenario, "seed": seed}
                stage.workers.call_all(
                    calls.prepare_rank,
                    {name: {**shared, "rank": number} for number, name in enumerate(names)},
                )
                ranks[backend] = names
            yield ranks

    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """See `Session.open`."""
        options = self.scenario.module.only(CollectiveOptions)
        groups = stage.groups(capacity=self._parameters, **options)
        arguments = {
            name: {"backend": backend, "group": group}
            for name, group in zip(names, groups, strict=True)
        }
        stage.workers.call_all(common.open_rank, arguments)

    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """See `Session.train`."""

        def on_progress(_name: str, value: common.StepDone) -> None:
            stage.step(turn.backend, turn.epoch * self.steps + value.step)

        call = {"backend": turn.backend, "epoch": turn.epoch}
        answers = stage.workers.call_all(
            common.train_rank, dict.fromkeys(names, call), on_progress=on_progress
        )
        return record_epoch(stage.table, turn, [answers[name] for name in names])

    def finish(self, stage: Stage, trial: int, backend: str, names: list[str]) -> None:
        """See `Session.finish`."""
        accuracy, seconds = stage.workers[names[0]].call(common.test_rank, backend=backend)
        stage.say(record_test(stage.table, trial, backend, accuracy, seconds))
