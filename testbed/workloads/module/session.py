"""The controller's side of the training of a torch module."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from testbed.core.errors import SpecError
from testbed.host import estimates
from testbed.workloads.data_parallel.gradients import GradientSession
from testbed.workloads.module import calls
from testbed.workloads.module.scenario import ModuleScenario
from testbed.workloads.workload import OPTIMIZERS, Stage

__all__ = ["ModuleSession"]


class ModuleSession(GradientSession[ModuleScenario]):
    """Trains by ``[module]``."""

    modules = (calls.__name__, "testbed.workloads.module.train", OPTIMIZERS)
    prepare_rank = staticmethod(calls.prepare_rank)

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """See `Session.prepare`.

        :raises SpecError: The task refuses its arguments, or does not fit the fabric.
        """
        from testbed.gnn.weights import Gradients
        from testbed.workloads.module.train import (
            PARTS,
            ModuleTrainer,
            make_dataset,
            make_model,
            make_task,
        )

        table, hosts = self.scenario.module, self.scenario.fabric.hosts
        say(f"making task {table.task}")
        task = make_task(table)
        trained = [each for each in make_model(table, task).parameters() if each.requires_grad]
        self._parameters = sum(each.numel() for each in trained)
        self._capacity = Gradients(trained, ModuleTrainer.tells_use).vector.numel()
        workers = hosts * (1 + ("mpi" in table.backends))
        need = estimates.gradients(
            self._parameters * len(table.backends), self._parameters, hosts, workers
        )
        estimates.check(need, f"fabric.hosts = {hosts}, module.task = {table.task}")
        samples = {part: len(make_dataset(table, task, part)) for part in PARTS}  # type: ignore[arg-type]  # it has a length
        if samples["train"] < hosts:
            raise SpecError(
                f"fabric.hosts = {hosts}: must be at most the size of the training set,"
                f" {samples['train']}"
            )
        self.steps = self.scenario.training.steps_of(samples["train"] // hosts)
        return {
            "parameters": self._parameters,
            "gradient_bytes": 4 * self._parameters,
            "samples": samples,
        }

    @contextmanager
    def ranks(self, stage: Stage, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Session.ranks`. Each backend begins with the same weights, whatever they are drawn
        with; a backend gives those of its rank 0 to the others.
        """
        with super().ranks(stage, trial) as ranks:
            (first, names), *others = ranks.items()
            if others:
                values = stage.workers[names[0]].call(calls.snapshot_rank, backend=first)
                for backend, (root, *_) in others:
                    stage.workers[root].call(calls.restore_rank, backend=backend, values=values)
            yield ranks

    @property
    def capacity(self) -> int:
        """See `GradientSession.capacity`."""
        return self._capacity
