"""Validation of a scenario's faults against its fabric, its backends and each other, before
anything is built.
"""

from collections.abc import Mapping, Sequence

from testbed.core.errors import SpecError
from testbed.faults.events import Flood, check_floods, check_overlap
from testbed.faults.limits import bucket_table, each_limited
from testbed.faults.netem import netem_table
from testbed.faults.rules import check_number
from testbed.faults.spec import Fault, events_of, hosts_of, limits_of, rules_of
from testbed.plan import Datapath, FabricOptions, FabricPlan, plan_fabric

__all__ = ["check_faults"]


def check_faults(
    fabric: FabricOptions, faults: Sequence[Fault], needs: Mapping[str, Datapath]
) -> None:
    """Check all faults.

    :param needs: The datapath of each backend.
    :raises ValueError: One does not fit; the text starts with its key.
    """
    plan = _plan(fabric)
    known = [host.name for host in plan.hosts] if plan else _usual_names(fabric.hosts)
    _check_hosts(known, faults)
    floods = [event for event in events_of(faults) if isinstance(event, Flood)]
    if plan:
        _check_switches(faults, plan)
    rules = rules_of(faults)
    emulated = [rule for rule in rules if rule.backend == "netem"]
    try:
        check_number([rule for rule in rules if rule.backend == "engine"])
        check_overlap(events_of(faults))
        if plan:
            check_floods(floods, plan)
        ports = netem_table(emulated, known)
        _check_limits(faults, plan, needs)
    except SpecError as error:
        raise ValueError(f"faults: {str(error).removeprefix('faults: ')}") from None
    for limit in limits_of(faults):
        if (both := ports.keys() & set(limit.hosts)) and "down" in limit.directions:
            raise ValueError(
                f"faults: limit of {min(both)}: direction = {limit.direction}: must be up beside"
                " netem, which has the only queue of the port towards the host"
            )
    if emulated and floods:
        raise ValueError(
            f"faults: {emulated[0].action}: backend = netem: must be engine beside a flood, since"
            " netem would meet what is flooded to the port, too"
        )
    redirected = [name for name, datapath in needs.items() if datapath == fabric.switch == "xdp"]
    if emulated and redirected:
        raise ValueError(
            f"faults: {emulated[0].action}: backend = netem: must be engine with switch xdp and"
            f" {redirected[0]}, whose frames pass no qdisc"
        )


def _usual_names(hosts: int) -> list[str]:
    return [f"h{number + 1}" for number in range(hosts)]


def _check_hosts(known: Sequence[str], faults: Sequence[Fault]) -> None:
    for index, fault in enumerate(faults):
        key, names = hosts_of(fault)
        if strangers := [name for name in names if name not in known]:
            usual = len(known) > 1 and known == _usual_names(len(known))
            allowed = f"h1 to {known[-1]}" if usual else ", ".join(known)
            raise ValueError(
                f"faults[{index}].{key}: {strangers[0]} is not a host of this fabric: must be"
                f" {allowed}"
            )


def _check_switches(faults: Sequence[Fault], plan: FabricPlan) -> None:
    known = [switch.name for switch in plan.switches]
    for index, fault in enumerate(faults):
        for name in fault.switches if isinstance(fault, Flood) else ():
            if name not in known:
                raise ValueError(
                    f"faults[{index}].switches: {name} is not a switch of this fabric: must be"
                    f" {', '.join(known)}"
                )


def _plan(fabric: FabricOptions) -> FabricPlan | None:
    """Plan the fabric; ``None`` if that fails, since the code that builds it reports the error."""
    try:
        return plan_fabric(fabric.topology, fabric.hosts, fabric.switch, fabric.mtu, k=fabric.k)
    except SpecError:
        return None


def _check_limits(
    faults: Sequence[Fault], plan: FabricPlan | None, needs: Mapping[str, Datapath]
) -> None:
    """Check limits in the way in which they will be put in force, on each datapath that a backend
    needs.
    """
    limits = limits_of(faults)
    if not limits or not plan:
        return
    if "xdp" in needs.values():
        bucket_table(limits, plan)
    for _ in each_limited(limits, plan):
        pass
