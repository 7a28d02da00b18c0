"""One run of a scenario: data, fabric and workers, the training, results."""

import datetime
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed import memory
from testbed.collectives.registry import check_mtu
from testbed.errors import SpecError, StorageError
from testbed.exchange.registry import EXCHANGES
from testbed.fabric import Fabric
from testbed.gnn.datasets import prepare
from testbed.gnn.full.channel import plan_exchanges
from testbed.gnn.graph import GraphData
from testbed.gnn.synthetic import crowding
from testbed.gnn.weights import parameter_count
from testbed.plan import FabricPlan, plan_fabric
from testbed.results import FaultLog, RunFolder, Table, circumstances, digest
from testbed.run.data_parallel import DataParallel
from testbed.run.faults import Faults
from testbed.run.full_graph import FullGraph, check_full_graph
from testbed.run.progress import Display
from testbed.run.turns import Stage
from testbed.spec.scenario import Scenario, SyntheticSpec
from testbed.worker import Workers

__all__ = ["check_memory", "plan_of", "run_into", "run_scenario"]


def plan_of(scenario: Scenario) -> FabricPlan:
    """Return the fabric that a scenario asks for.

    :raises SpecError: The fabric cannot be as asked.
    """
    fabric = scenario.fabric
    reductions = [EXCHANGES[name].all_reduce if scenario.exchange else name for name in scenario.transports]
    check_mtu(fabric.mtu, reductions, "fabric.mtu")
    return plan_fabric(
        topology=fabric.topology,
        hosts=fabric.hosts,
        switch=fabric.switch,
        mtu=fabric.mtu,
        offload=fabric.offload == "on",
        k=fabric.k,
    )


def check_memory(scenario: Scenario, data: GraphData | None = None) -> None:
    """Check that there is memory for a scenario's training.

    :param data: Its graph; without it, a graph is estimated that is yet to be drawn, and others are not looked at.
    :raises SpecError: There is not; the text has the estimate and what is allowed.
    """
    dataset, hosts = scenario.dataset, scenario.fabric.hosts
    keys = {"fabric.hosts": hosts, "model.hidden": scenario.model.hidden}
    if isinstance(dataset, SyntheticSpec):
        keys |= {f"dataset.{key}": getattr(dataset, key) for key in ("scale", "edge_factor", "feature_dim")}
    if data is not None:
        graph, classes = sizes(data), data.num_classes
    elif isinstance(dataset, SyntheticSpec):
        n, classes = 1 << dataset.scale, dataset.classes
        entries = min(2 * dataset.edge_factor * n, n * n)
        graph = memory.Graph(n, entries, dataset.feature_dim, min(entries, round(entries * crowding(dataset.scale))))
    else:
        return
    model = scenario.model
    widths = [graph.features, *[model.hidden] * (model.layers - 1), classes]
    made = memory.Model(parameter_count(model, graph.features, classes), widths, len(scenario.transports))
    if scenario.exchange:
        planned = plan_exchanges(model, graph.features, classes, scenario.exchange.bound is not None)
        need = memory.full_graph(graph, made, hosts, list(planned.values()))
    else:
        keys["training.batch_size"] = scenario.training.batch_size
        workers = hosts * (1 + ("mpi" in scenario.transports))
        need = memory.data_parallel(graph, made, hosts, workers, scenario.training.batch_size, model.fanout)
    memory.check(need, ", ".join(f"{key} = {value}" for key, value in keys.items()))


def sizes(data: GraphData) -> memory.Graph:
    """Return the sizes of a graph, exactly."""
    batch = min(memory.EVALUATION_BATCH, data.num_vertices)
    crowd = int((data.indptr[batch:] - data.indptr[:-batch]).max(initial=0))
    return memory.Graph(data.num_vertices, data.num_edges, data.feature_dim, crowd)


def run_scenario(
    scenario: Scenario,
    out: Path,
    *,
    overwrite: bool = False,
    quiet: bool = False,
    command: Sequence[str] = (),
) -> Path:
    """Run a scenario in a folder; see `run_into`.

    :param out: The run's folder; made where it does not exist.
    :param overwrite: Replace a previous run there when this one is complete.
    :returns: `out`.
    :raises SpecError: The folder holds something, or another run is being written there.
    :raises TestbedError: As `run_into`.
    """
    plan_of(scenario)
    check_memory(scenario)
    with RunFolder(out, overwrite) as folder:
        run_into(folder, scenario, quiet=quiet, command=command)
        folder.publish()
    return out


def run_into(folder: RunFolder, scenario: Scenario, *, quiet: bool = False, command: Sequence[str] = ()) -> None:
    """Run a scenario and write ``manifest.json`` and ``results.parquet``.

    :param quiet: Show no progress.
    :param command: The command line that asked for this, for the manifest.
    :raises TestbedError: The run could not be made; the manifest's status says so as well, and what had been measured is kept.
    """
    plan = plan_of(scenario)
    check_memory(scenario)
    with Display(quiet) as display:
        display.say(f"{scenario.scenario.name}: reading data set {scenario.dataset.name}")
        graph = prepare(scenario.dataset)
        data = GraphData.load(graph)
        if len(data.train) < scenario.fabric.hosts:
            raise SpecError(
                f"fabric.hosts = {scenario.fabric.hosts}: allowed is at most the size of the training set, {len(data.train)}"
            )
        check_memory(scenario, data)
        if scenario.exchange:
            check_full_graph(scenario, graph, data)
        table, log = Table(scenario.model_dump(mode="json")), FaultLog()
        outputs = (table, log) if scenario.faults else (table,)
        display.say("finding out what this machine can do")
        with manifested(folder, facts(scenario, plan, data, command), outputs):
            display.say(f"building {len(plan.hosts)} hosts, {plan.topology}, switch {plan.switch_kind}")
            affinity = (scenario.exchange or scenario.collective).affinity
            kind = FullGraph if scenario.exchange else DataParallel
            with Fabric(plan) as fabric, Workers(fabric, affinity, kind.modules) as workers:
                faults = Faults(scenario, fabric, workers, table, log)
                kind(Stage(scenario, fabric, workers, graph, data, table, faults, display)).all()


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
