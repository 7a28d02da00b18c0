"""Rules carried out by the kernel's network emulator (``netem``, net/sched/sch_netem.c), for
comparison with the fault engine.

It is a qdisc at the switch's port towards the receiver. It knows nothing about chunks or sequence
numbers, cannot be replayed, and does not see frames that an XDP switch redirects. So it takes only
rules that match on nothing but the receiver, on bridges and the datapath ``sockets``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from testbed.core.closing import Closing
from testbed.core.errors import FaultError, SpecError
from testbed.faults.qdisc import Qdisc, QdiscCounters
from testbed.faults.rules import Burst, Corrupt, Delay, Drop, Duplicate, PacketRule, Reorder, Rule
from testbed.faults.spec import text_of

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Netem", "netem_options", "netem_table"]

LIMIT = 65536  # frames: as many as the delay line holds


def netem_options(rules: Sequence[PacketRule]) -> tuple[str, ...]:
    """Return the arguments after ``tc qdisc add dev DEV root`` that carry out the rules.

    :raises SpecError: netem cannot; the text names rule and key.
    """
    words: list[str] = []
    taken: dict[str, str] = {}
    for rule in rules:
        first, *rest = _text(rule)
        if first in taken:
            raise SpecError(
                f"netem: {rule.action} and {taken[first]} of one receiver: must be one of them"
            )
        taken[first] = rule.action
        words += [first, *rest]
    return ("netem", "limit", str(LIMIT), *words)


def netem_table(rules: Sequence[PacketRule], hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return :func:`netem_options` by receiving host.

    :param hosts: Names of all hosts.
    :raises SpecError: A rule names a sender, or a host that does not exist; or as in
        `netem_options`.
    """
    by_host: dict[str, list[PacketRule]] = {name: [] for name in hosts}
    for rule in rules:
        receivers: set[str] = set()
        for sender, receiver in rule.link:
            if sender != "*":
                raise SpecError(
                    f"netem: {rule.action}: link = {sender}->{receiver}: must be *->{receiver},"
                    " since a port's qdisc sees what all hosts send"
                )
            if receiver not in ("*", *hosts):
                allowed = ", ".join(hosts)
                raise SpecError(
                    f"netem: {rule.action}: link = *->{receiver}: must be a receiver of this"
                    f" fabric: {allowed}"
                )
            receivers |= by_host.keys() if receiver == "*" else {receiver}
        for name in receivers:
            by_host[name].append(rule)
    return {name: netem_options(found) for name, found in by_host.items() if found}


class Netem(Closing):
    """Rules carried out by netem, from the constructor to :meth:`close`.

    As with an injector, offloads are off, so that frames are as on a real wire. If there is also an
    injector, it is entered first and left last.

    :raises SpecError: As in :func:`netem_table`.
    :raises FaultError: Datapath and switches are of kind ``xdp``, or the kernel has no netem; the
        text is the kernel's.
    """

    def __init__(self, fabric: Fabric, rules: Sequence[PacketRule]) -> None:
        table = netem_table(rules, [host.name for host in fabric.plan.hosts])
        if fabric.datapath == fabric.plan.switch_kind == "xdp":
            raise FaultError(
                "netem: frames that XDP redirects pass no qdisc: use the fault engine on the"
                " datapath xdp"
            )
        self._qdiscs: dict[str, Qdisc] = {}
        with ExitStack() as stack:
            if not fabric.faults:
                fabric.set_faults(True)
                stack.callback(fabric.set_faults, False)
            for name, options in table.items():
                host = fabric.plan.host(name)
                port = fabric.plan.switch(host.switch).ifname(host.port)
                self._qdiscs[name] = stack.enter_context(Qdisc(fabric, host.switch, port, options))
            self._stack = stack.pop_all()

    def counters(self) -> dict[str, QdiscCounters]:
        """Return the counts so far, by receiving host; netem does not say which option has dropped
        or delayed a frame.
        """
        return {name: qdisc.counters() for name, qdisc in self._qdiscs.items()}

    def close(self) -> None:
        """Remove the rules."""
        self._stack.close()


def _text(rule: PacketRule) -> tuple[str, ...]:
    """One rule's arguments, as in tc-netem(8)."""
    for key, field in Rule.model_fields.items():
        value = getattr(rule, key)
        if key not in ("link", "p", "backend") and value != field.get_default():
            given = f"{key} = {text_of(value, key)}"
            raise SpecError(
                f"netem: {rule.action}: {given}: only link and p can be set, since netem reads no"
                " such header"
            )
    match rule:
        case Drop():
            return "loss", "random", _percent(rule.p)
        case Burst():  # the Gilbert model: good and bad lose 0 and p
            return (
                "loss",
                "gemodel",
                _percent(rule.enter),
                _percent(rule.leave),
                _percent(rule.p),
                "0%",
            )
        case Duplicate():
            _only(rule, "copies", rule.copies, 1)
            return "duplicate", _percent(rule.p)
        case Corrupt():
            _only(rule, "bits", rule.bits, 1)
            return "corrupt", _percent(rule.p)
        case Delay():
            return "delay", *_delay(rule), *_undelayed(rule.p)
        case Reorder():
            # Chosen frames are delayed by `within`, and all that follow in this time pass them:
            # netem does not count frames.
            _only(rule, "behind", rule.behind, 1)
            return "delay", _time(rule.within), *_undelayed(rule.p)


def _delay(rule: Delay) -> tuple[str, ...]:
    if not rule.jitter:
        return (_time(rule.delay),)
    distribution = rule.distribution or "uniform"
    if distribution == "pareto":
        raise SpecError(
            "netem: delay: distribution = pareto: must be constant, uniform or normal, since its"
            " pareto differs"
        )
    named = () if distribution == "uniform" else ("distribution", distribution)
    return _time(rule.delay), _time(rule.jitter), *named


def _undelayed(p: float) -> tuple[str, ...]:
    """netem's notion of reordering: the share of frames that overtake delayed ones."""
    return () if p == 1 else ("reorder", _percent(1 - p))


def _only(rule: PacketRule, key: str, value: int, allowed: int) -> None:
    if value != allowed:
        raise SpecError(
            f"netem: {rule.action}: {key} = {value}: must be {allowed}, since netem supports"
            " nothing else"
        )


def _percent(p: float) -> str:
    return f"{100 * p:.6g}%"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.12g}us"
