"""One run of a scenario: data, fabric and workers, the training, results."""

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.core.errors import StorageError
from testbed.fabric import Fabric
from testbed.plan import FabricPlan
from testbed.probes.mtu import check_mtu
from testbed.results import FaultLog, RunFolder, StackLog, Table, digest, environment
from testbed.run.faults import Faults
from testbed.run.progress import Display
from testbed.run.turns import take_turns
from testbed.run.watch import Watch
from testbed.worker import Workers
from testbed.workloads.programs import attached, check_programs
from testbed.workloads.scenario import Scenario
from testbed.workloads.workload import Stage

__all__ = ["check", "plan_of", "run_into", "run_scenario"]

Output = Table | FaultLog | StackLog


def plan_of(scenario: Scenario) -> FabricPlan:
    """Return the fabric that a scenario asks for.

    :raises SpecError: The fabric cannot be as asked.
    """
    check_mtu(scenario.fabric.mtu, scenario.backends, "fabric.mtu", scenario.workload.backends)
    return scenario.fabric.plan()


def check(scenario: Scenario) -> None:
    """Refuse bad input before anything is read or built.

    :raises SpecError: The fabric cannot be as asked, or the workload asks for too much.
    """
    check_programs(scenario.programs, plan_of(scenario))
    scenario.workload.begin(scenario).check()


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
    check(scenario)
    with RunFolder(out, overwrite) as folder:
        run_into(folder, scenario, quiet=quiet, command=command)
        folder.publish()
    return out


def run_into(
    folder: RunFolder, scenario: Scenario, *, quiet: bool = False, command: Sequence[str] = ()
) -> None:
    """Run a scenario and write ``manifest.json`` and ``results.parquet``.

    :param quiet: Show no progress.
    :param command: The command line that asked for this, for the manifest.
    :raises TestbedError: The run failed; the manifest's status says so as well, and the
        measurements so far are kept.
    """
    plan = plan_of(scenario)
    session = scenario.workload.begin(scenario)
    session.check()
    with Display(quiet) as display:
        prepared = session.prepare(lambda text: display.say(f"{scenario.scenario.name}: {text}"))
        table, log, stacks = Table(scenario.model_dump(mode="json")), FaultLog(), StackLog()
        outputs: list[Output] = [table]
        outputs += [log] if scenario.faults else []
        outputs += [stacks] if scenario.telemetry.enabled else []
        display.say("finding out what this machine can do")
        found: dict[str, Any] = {}
        with manifested(
            folder, {**facts(scenario, plan, command), **prepared, **environment()}, outputs, found
        ):
            display.say(
                f"building {len(plan.hosts)} hosts, {plan.topology}, switch {plan.switch_kind}"
            )
            with (
                Fabric(plan, results=folder.path) as fabric,
                Workers(fabric, scenario.system.affinity, session.modules) as workers,
                attached(scenario.programs, fabric, found),
                Watch(scenario, fabric, table, stacks, display) as watch,
            ):
                faults = Faults(scenario, fabric, workers, table, log)
                take_turns(
                    session,
                    Stage(fabric, workers, table, display.say, display.step),
                    faults,
                    watch,
                    display,
                )


def facts(scenario: Scenario, plan: FabricPlan, command: Sequence[str]) -> dict[str, Any]:
    """Return the part of the manifest that follows from the scenario."""
    return {
        "scenario": scenario.model_dump(mode="json"),
        "command": list(command),
        "seed": scenario.scenario.seed,
        "plan_hash": digest(plan.to_dict()),
    }


@contextmanager
def manifested(
    folder: RunFolder,
    manifest: dict[str, Any],
    outputs: Sequence[Output],
    found: Mapping[str, Any],
) -> Iterator[None]:
    """Keep the status in ``manifest.json`` up to date: running, then complete, failed (with the
    error) or interrupted.

    In each case, the measurements so far are kept.

    :param found: What only the run can tell; it is added at the end.
    """
    manifest = {**manifest, "status": "running", "started": now()}
    folder.write_manifest(manifest)
    started = time.monotonic()

    def end(status: str, error: str | None = None) -> None:
        seconds = round(time.monotonic() - started, 3)
        folder.write_manifest(
            {
                **manifest,
                **found,
                "status": status,
                "error": error,
                "finished": now(),
                "seconds": seconds,
            }
        )

    try:
        yield
        for output in outputs:
            output.write(folder)
    except BaseException as error:
        # A full disk must not hide the original error, which it may have caused.
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
