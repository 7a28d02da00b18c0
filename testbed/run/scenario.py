"""One run of a scenario: the same training from the same seed, an epoch with each transport in turn."""

import datetime
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.collectives.group import MAX_GROUP_ID, make_groups
from testbed.collectives.launch import rank_workers
from testbed.collectives.registry import TRANSPORTS, check_mtu
from testbed.errors import SpecError, StorageError
from testbed.fabric import Fabric
from testbed.gnn.datasets import prepare
from testbed.gnn.graph import GraphData
from testbed.gnn.model import parameter_count
from testbed.gnn.result import EpochResult
from testbed.plan import FabricPlan, plan_fabric
from testbed.results import FaultLog, RunFolder, Table, circumstances, digest
from testbed.run import measures, rank
from testbed.run.faults import Faults, Turn
from testbed.run.progress import Display
from testbed.spec.scenario import Scenario
from testbed.worker import Workers

__all__ = ["plan_of", "run_scenario"]

log = logging.getLogger(__name__)


def plan_of(scenario: Scenario) -> FabricPlan:
    """Return the fabric that a scenario asks for.

    :raises SpecError: The fabric cannot be as asked.
    """
    fabric = scenario.fabric
    check_mtu(fabric.mtu, scenario.collective.transports, "fabric.mtu")
    return plan_fabric(
        topology=fabric.topology,
        hosts=fabric.hosts,
        switch=fabric.switch,
        mtu=fabric.mtu,
        offload=fabric.offload == "on",
        k=fabric.k,
    )


def run_scenario(
    scenario: Scenario,
    out: Path,
    *,
    overwrite: bool = False,
    quiet: bool = False,
    command: Sequence[str] = (),
) -> Path:
    """Run a scenario and write ``manifest.json`` and ``results.parquet``.

    :param out: The run's folder; made where it does not exist.
    :param overwrite: Replace a previous run's results there.
    :param quiet: Show no progress.
    :param command: The command line that asked for this, for the manifest.
    :returns: `out`.
    :raises TestbedError: The run could not be made; the manifest's status says so as well, and what had been measured is kept.
    """
    plan = plan_of(scenario)
    with RunFolder(out, overwrite) as folder, Display(quiet) as display:
        display.say(f"{scenario.scenario.name}: reading data set {scenario.dataset.name}")
        graph = prepare(scenario.dataset)
        data = GraphData.load(graph)
        if len(data.train) < scenario.fabric.hosts:
            raise SpecError(
                f"fabric.hosts = {scenario.fabric.hosts}: allowed is at most the size of the training set, {len(data.train)}"
            )
        table, log = Table(scenario.model_dump(mode="json")), FaultLog()
        outputs = (table, log) if scenario.faults else (table,)
        display.say("finding out what this machine can do")
        with manifested(folder, facts(scenario, plan, data, command), outputs):
            display.say(f"building {len(plan.hosts)} hosts, {plan.topology}, switch {plan.switch_kind}")
            with Fabric(plan) as fabric, Workers(fabric, scenario.collective.affinity) as workers:
                faults = Faults(scenario, fabric, workers, table, log)
                Run(scenario, fabric, workers, graph, data, table, faults, display).all()
    return out


class Run:
    """A scenario on a fabric that is up."""

    def __init__(
        self,
        scenario: Scenario,
        fabric: Fabric,
        workers: Workers,
        graph: Path,
        data: GraphData,
        table: Table,
        faults: Faults,
        display: Display,
    ) -> None:
        self.scenario = scenario
        self.fabric = fabric
        self.workers = workers
        self.graph = graph
        self.data = data
        self.table = table
        self.faults = faults
        self.display = display
        share = len(data.train) // scenario.fabric.hosts
        steps = math.ceil(share / scenario.training.batch_size)
        self.steps = min(steps, scenario.training.steps or steps)
        self._groups = -1
        self.capacity = parameter_count(scenario.model, data.feature_dim, data.num_classes)

    def all(self) -> None:
        """Run all trials."""
        for trial in range(self.scenario.scenario.trials):
            self.trial(trial)

    def trial(self, trial: int) -> None:
        """Train one model a transport from the same seed, an epoch with each in turn.

        Turns are taken by epochs, and who comes first moves on, so that a drift of the machine meets all
        transports alike. A transport is open in its own turns only: links of socket baselines carry none of
        the testbed's programs.
        """
        hosts = [host.name for host in self.fabric.plan.hosts]
        transports = self.scenario.collective.transports
        seed = self.scenario.scenario.seed + trial
        with ExitStack() as stack:
            ranks: dict[str, list[str]] = {}
            for transport in transports:
                names = stack.enter_context(rank_workers(transport, self.workers, hosts))
                shared = {"transport": transport, "scenario": self.scenario, "graph": str(self.graph), "seed": seed}
                self.workers.call_all(
                    rank.prepare_rank, {name: {**shared, "rank": number} for number, name in enumerate(names)}
                )
                ranks[transport] = names
            self.display.start(transports, self.steps * self.scenario.training.epochs)
            for epoch in range(self.scenario.training.epochs):
                first = epoch % len(transports)
                for transport in (*transports[first:], *transports[:first]):
                    with self.opened(Turn(trial, transport, epoch), ranks[transport]):
                        self._epoch(Turn(trial, transport, epoch), ranks[transport])
            for transport in transports:
                accuracy, seconds = self.workers[ranks[transport][0]].call(rank.test_rank, transport=transport)
                measures.record_test(self.table, trial, transport, accuracy, seconds)
                self.display.say(f"{transport}: test accuracy {accuracy:.2%}")

    @contextmanager
    def opened(self, turn: Turn, names: list[str]) -> Iterator[None]:
        """Set the links to what the transport needs, put faults in force on them, and connect its ranks."""
        self.fabric.set_datapath(TRANSPORTS[turn.transport].needs)
        collective = self.scenario.collective
        self._groups = (self._groups + 1) % (MAX_GROUP_ID + 1)
        groups = make_groups(
            self.fabric.plan.hosts,
            group_id=self._groups,
            lanes=collective.lanes,
            mtu=self.fabric.plan.mtu,
            capacity=self.capacity,
            window=collective.window,
            recovery=collective.recovery,
            gap=collective.gap,
            timeout=collective.timeout,
            on_overflow=collective.on_overflow,
            affinity=collective.affinity,
            rendezvous=str(self.fabric.directory),
        )
        with self.faults.in_force(turn):
            self.workers.call_all(
                rank.open_rank,
                {name: {"transport": turn.transport, "group": groups[number]} for number, name in enumerate(names)},
            )
            yield  # after an error the workers end, and close what they hold
            self.workers.call_all(rank.close_rank, names)

    def _epoch(self, turn: Turn, names: list[str]) -> None:
        transport, epoch = turn.transport, turn.epoch

        def on_progress(_name: str, value: rank.StepDone) -> None:
            self.display.step(transport, epoch * self.steps + value.step)

        call = {"transport": transport, "epoch": epoch}
        with self.faults.happening(turn):
            answers = self.workers.call_all(rank.train_rank, dict.fromkeys(names, call), on_progress=on_progress)
        results: list[EpochResult] = [answers[name] for name in names]
        measures.check_agreement(transport, results)
        measures.record_epoch(self.table, turn.trial, transport, results)
        seconds = max(result.times["epoch_time"] for result in results)
        note = (
            f"loss {measures.mean_loss(results):.3f}, validation {measures.validation_accuracy(results):.1%}, {seconds:.2f} s"
        )
        epochs = self.scenario.training.epochs
        self.display.epoch(transport, epoch + 1, epochs, (epoch + 1) * self.steps, note)


def facts(scenario: Scenario, plan: FabricPlan, data: GraphData, command: Sequence[str]) -> dict[str, Any]:
    """Return the manifest's part that is known before anything runs."""
    parameters = parameter_count(scenario.model, data.feature_dim, data.num_classes)
    return {
        "scenario": scenario.model_dump(mode="json"),
        "command": list(command),
        "seed": scenario.scenario.seed,
        "plan_hash": digest(plan.to_dict()),
        "parameters": parameters,
        "gradient_bytes": 4 * parameters,
        "dataset": {
            "name": data.name,
            "vertices": data.num_vertices,
            "edges": data.num_edges // 2,
            "features": data.feature_dim,
            "classes": data.num_classes,
            "train": len(data.train),
            "val": len(data.val),
            "test": len(data.test),
            **data.facts,
        },
        **circumstances(),
    }


@contextmanager
def manifested(folder: RunFolder, manifest: dict[str, Any], outputs: Sequence[Table | FaultLog]) -> Iterator[None]:
    """Keep ``manifest.json`` true: running, then complete, failed (with the error) or interrupted.

    Whatever the end, the measurements so far are kept.
    """
    manifest = {**manifest, "status": "running", "started": now()}
    folder.write_manifest(manifest)
    started = time.monotonic()

    def end(status: str, error: str | None = None) -> None:
        seconds = round(time.monotonic() - started, 3)
        folder.write_manifest({**manifest, "status": status, "error": error, "finished": now(), "seconds": seconds})

    try:
        yield
        for output in outputs:
            output.write(folder)
    except BaseException as error:
        # A full disk must not hide what happened before; it may be just that.
        for output in outputs:
            if output and not isinstance(error, StorageError):
                with suppress(StorageError):
                    output.write(folder)
        with suppress(StorageError):
            if isinstance(error, Exception):
                end("failed", str(error))
            else:
                end("interrupted")
        raise
    end("complete")


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
