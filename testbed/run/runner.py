"""One run of a scenario: data, fabric and workers, the training, results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.comm.entry import check_generic
from testbed.fabric import Fabric
from testbed.plan import FabricPlan
from testbed.probes.mtu import check_mtu
from testbed.results import FaultLog, RunFolder, StackLog, Table, environment
from testbed.run.faults import Faults
from testbed.run.manifest import facts, manifested
from testbed.run.progress import Display
from testbed.run.simulated import simulate_into
from testbed.run.turns import take_turns
from testbed.run.watch import Watch
from testbed.worker import Workers
from testbed.workloads.programs import attached, check_programs
from testbed.workloads.scenario import Scenario
from testbed.workloads.simulated import check_simulated
from testbed.workloads.workload import Stage

__all__ = ["check", "plan_of", "run_into", "run_scenario"]

Output = Table | FaultLog | StackLog


def plan_of(scenario: Scenario) -> FabricPlan:
    """Return the fabric that a scenario asks for.

    :raises SpecError: The fabric cannot be as asked.
    """
    if scenario.simulated:
        return scenario.fabric.plan()
    check_mtu(scenario.fabric.mtu, scenario.backends, "fabric.mtu", scenario.workload.backends)
    check_generic(scenario.fabric.xdp, scenario.backends, "fabric.xdp", scenario.workload.backends)
    return scenario.fabric.plan()


def check(scenario: Scenario) -> None:
    """Refuse bad input before anything is read or built.

    :raises SpecError: The fabric cannot be as asked, the workload asks for too much, or the
        scenario has what cannot be simulated.
    """
    if scenario.simulated:
        check_simulated(scenario)
        return
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
    if scenario.simulated:
        simulate_into(folder, scenario, quiet, command)
        return
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
