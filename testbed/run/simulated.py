"""One run of a scenario in the simulator, with the same files as one that is emulated."""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from testbed.faults.rule_table import NO_RULES, compile_rules
from testbed.faults.spec import format_fault, rules_of
from testbed.host.machine import describe
from testbed.results import FaultLog, RunFolder, Table
from testbed.run.faults import frame_columns
from testbed.run.manifest import Output, facts, manifested
from testbed.run.progress import Display
from testbed.sim.calibration import hardware_of
from testbed.sim.faults import Faults
from testbed.sim.group import Wanted, make_group
from testbed.workloads.measures import RankEpoch
from testbed.workloads.scenario import Scenario
from testbed.workloads.simulated import check_simulated
from testbed.workloads.workload import Turn

__all__ = ["simulate_into"]


def simulate_into(
    folder: RunFolder, scenario: Scenario, quiet: bool, command: Sequence[str]
) -> None:
    """Simulate a scenario and write ``manifest.json`` and ``results.parquet``.

    Each backend has new connections in each epoch, as in an emulated run. Without faults all epochs
    of a backend are alike, so that one is computed.

    :raises TestbedError: As `testbed.run.run_into`.
    """
    check_simulated(scenario)
    named = scenario.simulation.named
    hardware = hardware_of(scenario.simulation, "simulation.")
    simulation = scenario.workload.simulate(scenario)
    plan = scenario.fabric.plan()
    rules = rules_of(scenario.faults)
    table, log = Table(scenario.model_dump(mode="json"), scenario.scenario.engine), FaultLog()
    outputs: list[Output] = [table, log] if rules else [table]
    manifest = {
        **facts(scenario, plan, command),
        **simulation.facts(),
        "hardware": {"name": named, "source": hardware.source},
        # How busy the machine is changes nothing, and nothing uses what the doctor finds.
        **describe({"load_average": os.getloadavg()[0]}),
    }
    wanted = Wanted(
        plan,
        hardware,
        scenario.system,  # type: ignore[arg-type]
        simulation.capacity,
    )
    known: dict[str, Sequence[RankEpoch]] = {}
    groups = itertools.count()
    with Display(quiet) as display, manifested(folder, manifest, outputs, {}):
        display.say(f"simulating {len(plan.hosts)} hosts, {plan.topology}, {named}")
        for trial in range(scenario.scenario.trials):
            display.start(scenario.backends, simulation.steps * scenario.epochs)
            for epoch, backend in itertools.product(range(scenario.epochs), scenario.backends):
                turn = Turn(trial, backend, epoch)
                if backend not in known or rules:
                    seed = (scenario.fault_seed + trial * scenario.epochs + epoch) % (1 << 64)
                    rule_table = compile_rules(rules, plan, seed) if rules else NO_RULES
                    group = make_group(
                        backend, replace(wanted, table=rule_table, number=next(groups))
                    )
                    known[backend] = simulation.epoch(group, turn)
                    if group.faults:
                        record_faults(scenario, turn, group.faults, table, log)
                note = simulation.record(table, turn, known[backend])
                done = (epoch + 1) * simulation.steps
                display.epoch(backend, epoch + 1, scenario.epochs, done, note)


def record_faults(
    scenario: Scenario, turn: Turn, faults: Faults, table: Table, log: FaultLog
) -> None:
    """Add what rules have done in a turn, as `testbed.run.faults.Faults` does."""
    names = [host.name for host in scenario.fabric.plan().hosts]
    rules, records = rules_of(scenario.faults), faults.log()

    def add(metric: str, count: int, labels: dict[str, str] | None = None) -> None:
        table.add(
            turn.trial, turn.backend, metric, count, "frames", epoch=turn.epoch, labels=labels
        )

    met = Counter(records[["rule", "sender", "receiver"]].tolist())
    for (rule, sender, receiver), count in sorted(met.items()):
        link = f"{names[sender]}->{names[receiver]}"
        add("faults_fired", count, {"fault": format_fault(rules[rule]), "link": link})
    add("fault_frames", faults.frames)
    numbers = [index for index, fault in enumerate(scenario.faults) if fault in rules]
    log.add(turn.trial, turn.backend, turn.epoch, frame_columns(records, rules, numbers, names))
