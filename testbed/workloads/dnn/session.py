"""The controller's side of the training of a deep network."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from testbed.collectives.mpi.launch import rank_workers
from testbed.comm.options import CollectiveOptions
from testbed.core.errors import CollectiveError
from testbed.host import estimates
from testbed.workloads.dnn import calls
from testbed.workloads.dnn.scenario import DNNScenario
from testbed.workloads.measures import record_times
from testbed.workloads.workload import Session, Stage, Turn

__all__ = ["DNN"]


class DNN(Session[DNNScenario]):
    """Trains by ``[dnn]``."""

    modules = (calls.__name__, "testbed.workloads.dnn.train")

    def __init__(self, scenario: DNNScenario) -> None:
        super().__init__(scenario)
        table = scenario.dnn
        self.steps = table.steps
        self._parameters = table.architecture.parameters
        self._largest = max(bucket.end - bucket.start for bucket in table.buckets)
        self._units = 0

    def check(self) -> None:
        """See `Session.check`."""
        table, hosts = self.scenario.dnn, self.scenario.fabric.hosts
        workers = hosts * (1 + ("mpi" in table.backends))
        need = estimates.gradients(self._parameters, self._largest, hosts, workers)
        estimates.check(need, f'fabric.hosts = {hosts}, dnn.model = "{table.model}"')

    def prepare(self, say: Callable[[str], None]) -> dict[str, Any]:
        """See `Session.prepare`."""
        from testbed.workloads.dnn.matrix_work import unit_seconds

        say("measuring how long matrix work takes")
        table, seconds = self.scenario.dnn, unit_seconds()
        self._units = round(table.compute / seconds)
        return {
            "parameters": self._parameters,
            "gradient_bytes": 4 * self._parameters,
            "buckets": len(table.buckets),
            "largest_bucket_bytes": 4 * self._largest,
            "multiplications": self._units,
            "multiplication_seconds": seconds,
        }

    @contextmanager
    def ranks(self, stage: Stage, trial: int) -> Iterator[dict[str, list[str]]]:
        """See `Session.ranks`."""
        table, world = self.scenario.dnn, self.scenario.fabric.hosts
        shared = {
            "table": table,
            "units": self._units,
            "world": world,
            "seed": self.scenario.scenario.seed + trial,
        }
        with ExitStack() as stack:
            ranks: dict[str, list[str]] = {}
            for backend in self.scenario.backends:
                names = stack.enter_context(rank_workers(backend, stage.workers, stage.hosts))
                if names not in ranks.values():
                    arguments = {name: {**shared, "rank": rank} for rank, name in enumerate(names)}
                    stage.workers.call_all(calls.prepare_rank, arguments)
                ranks[backend] = names
            yield ranks

    def open(self, stage: Stage, backend: str, names: list[str]) -> None:
        """See `Session.open`."""
        groups = stage.groups(capacity=self._largest, **self.scenario.dnn.only(CollectiveOptions))
        arguments = {
            name: {"backend": backend, "group": group}
            for name, group in zip(names, groups, strict=True)
        }
        stage.workers.call_all(calls.open_rank, arguments)

    def train(self, stage: Stage, turn: Turn, names: list[str]) -> str:
        """See `Session.train`.

        :raises CollectiveError: Ranks ended the epoch with different weights.
        """

        def on_progress(_name: str, step: int) -> None:
            stage.step(turn.backend, turn.epoch * self.steps + step)

        call = {"epoch": turn.epoch}
        answers = stage.workers.call_all(
            calls.train_rank, dict.fromkeys(names, call), on_progress=on_progress
        )
        epochs = [answers[name] for name in names]
        if differing := [
            str(rank) for rank, each in enumerate(epochs) if each.digest != epochs[0].digest
        ]:
            raise CollectiveError(
                f"{turn.backend}: after epoch {turn.epoch} the weights of rank"
                f" {', '.join(differing)} differ from rank 0's: an all-reduce gave ranks different"
                " sums"
            )
        record_times(stage.table, turn.trial, turn.backend, epochs)
        seconds = max(each.times["epoch_time"] for each in epochs)
        exposed = max(each.times["exposed"] for each in epochs)
        return f"{seconds:.2f} s, {exposed:.2f} s of it waiting for sums"
