"""Whether a scenario's faults fit its fabric, its transports and each other; checked before anything is built."""

from typing import TYPE_CHECKING

from testbed.core.errors import SpecError
from testbed.faults.events import Flood, check_floods, check_overlap
from testbed.faults.limits import bucket_table, each_limited
from testbed.faults.netem import netem_table
from testbed.faults.rules import check_number
from testbed.faults.spec import events_of, hosts_of, limits_of, rules_of
from testbed.plan import FabricPlan, plan_fabric

if TYPE_CHECKING:
    from testbed.workloads.scenario import Scenario

__all__ = ["check_faults"]


def check_faults(scenario: "Scenario") -> None:
    """Check all faults.

    :raises ValueError: One does not fit; the text starts with its key.
    """
    _check_hosts(scenario)
    plan = _plan(scenario)
    floods = [event for event in events_of(scenario.faults) if isinstance(event, Flood)]
    if plan:
        _check_switches(scenario, plan)
    known = [f"h{number + 1}" for number in range(scenario.fabric.hosts)]
    rules = rules_of(scenario.faults)
    emulated = [rule for rule in rules if rule.backend == "netem"]
    try:
        check_number([rule for rule in rules if rule.backend == "engine"])
        check_overlap(events_of(scenario.faults))
        if plan:
            check_floods(floods, plan)
        ports = netem_table(emulated, known)
        _check_limits(scenario, plan)
    except SpecError as error:
        raise ValueError(f"faults: {str(error).removeprefix('faults: ')}") from None
    for limit in limits_of(scenario.faults):
        if (both := ports.keys() & set(limit.hosts)) and "down" in limit.directions:
            raise ValueError(
                f"faults: limit of {min(both)}: direction = {limit.direction}: allowed is up beside netem, which has the "
                "only queue of the port towards the host"
            )
    if emulated and floods:
        raise ValueError(
            f"faults: {emulated[0].action}: backend = netem: allowed is engine beside a flood, since netem would meet "
            "what is flooded to the port, too"
        )
    redirected = [name for name in scenario.transports if scenario.needs(name) == scenario.fabric.switch == "xdp"]
    if emulated and redirected:
        raise ValueError(
            f"faults: {emulated[0].action}: backend = netem: allowed is engine with switch xdp and {redirected[0]}, whose "
            "frames pass no qdisc"
        )


def _check_hosts(scenario: "Scenario") -> None:
    known = [f"h{number + 1}" for number in range(scenario.fabric.hosts)]
    for index, fault in enumerate(scenario.faults):
        key, names = hosts_of(fault)
        if strangers := [name for name in names if name not in known]:
            allowed = f"h1 to {known[-1]}" if len(known) > 1 else "h1"
            raise ValueError(f"faults[{index}].{key}: {strangers[0]} is no host of this fabric: allowed is {allowed}")


def _check_switches(scenario: "Scenario", plan: FabricPlan) -> None:
    known = [switch.name for switch in plan.switches]
    for index, fault in enumerate(scenario.faults):
        for name in fault.switches if isinstance(fault, Flood) else ():
            if name not in known:
                raise ValueError(f"faults[{index}].switches: {name} is no switch of this fabric: allowed is {', '.join(known)}")


def _plan(scenario: "Scenario") -> FabricPlan | None:
    """Plan the fabric; ``None`` if that cannot be, of which whoever builds it tells."""
    fabric = scenario.fabric
    try:
        return plan_fabric(fabric.topology, fabric.hosts, fabric.switch, fabric.mtu, k=fabric.k)
    except SpecError:
        return None


def _check_limits(scenario: "Scenario", plan: FabricPlan | None) -> None:
    """Check limits as they are put in force, on each datapath that a transport needs."""
    limits = limits_of(scenario.faults)
    if not limits or not plan:
        return
    if any(scenario.needs(name) == "xdp" for name in scenario.transports):
        bucket_table(limits, plan)
    for _ in each_limited(limits, plan):
        pass
