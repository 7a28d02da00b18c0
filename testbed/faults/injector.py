"""Faults on a fabric: rules in force while a context is entered, with counters, a log, and a check
by replay.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from testbed.core.closing import Stacked
from testbed.core.errors import FabricError, FaultError, TestbedError
from testbed.core.logs import logger_of
from testbed.faults import attach
from testbed.faults.attach import LINK, Counts, Hook
from testbed.faults.delay_counters import DelayCounters
from testbed.faults.log import read_log
from testbed.faults.replay import check_replay
from testbed.faults.rule_table import compile_rules
from testbed.faults.rules import PacketRule
from testbed.faults.spec import format_fault
from testbed.plan import MAX_HOSTS
from testbed.worker import Workers

if TYPE_CHECKING:
    from testbed.fabric import Fabric

__all__ = ["Injector"]

logger = logger_of(__name__)

_NAMED: Final = 4  # links in an error
_GRACE: Final = 10.0  # seconds for a switch's worker to answer


class Injector(Stacked):
    """The fault engine of a whole fabric: it acts on what each host sends, at the switch port to
    which the host is attached.

    With the datapath ``xdp`` on a switch of kind ``xdp``, the engine takes the place of the
    switch's XDP program; otherwise it is attached to TC's ingress of those ports. It is for the
    datapath that is set when it is entered, which must not change meanwhile.

    :param fabric: A fabric that is up, with workers.
    :param rules: The rules, in this order; may be empty, for partitions and limits.
    :param seed: Seed of all draws.
    :param trace: Also log frames that met no rule, so that
        :meth:`check_replay` checks those, too.
    :raises SpecError: A rule names a host that does not exist, or there are too many rules.
    """

    def __init__(
        self, fabric: Fabric, rules: Sequence[PacketRule] = (), seed: int = 1, trace: bool = False
    ) -> None:
        self._fabric, self._trace = fabric, trace
        self.table = compile_rules(rules, fabric.plan, seed)
        self._switches = list(dict.fromkeys(host.switch for host in fabric.plan.hosts))
        self._final: Sequence[Counts] | None = None
        self._attached = False

    def _enter(self, stack: ExitStack) -> None:
        """Attach.

        :raises FabricError: There are no workers, or other faults are in force.
        :raises FaultError: The delay line did not start.
        :raises KernelError: The kernel refused a program or its attachment.
        """
        fabric = self._fabric
        workers = Workers.of(fabric)
        if fabric.faults:
            raise FabricError("faults: an injector is in force on this fabric already")
        xdp = fabric.datapath == "xdp" and fabric.plan.switch_kind == "xdp"
        hook: Hook = "xdp" if xdp else "tc"
        number = next(
            n for n in itertools.count() if not list(fabric.directory.glob(f"faults-{n}-*"))
        )
        self._paths = {
            name: fabric.directory / f"faults-{number}-{name}.log" for name in self._switches
        }
        self._final = None
        common = {"table": self.table, "hook": hook, "trace": self._trace}
        calls = {
            name: {**common, "flooding": fabric.flooding(name).number, "log": path}
            for name, path in self._paths.items()
        }
        stack.callback(fabric.set_faults, False)
        fabric.set_faults(True)
        stack.push(self._detach)
        logger.info(
            "%d fault rules in force, at the %s of switch ports", len(self.table.rules), hook
        )
        workers.call_all(attach.attach, calls)
        self._attached = True

    def _detach(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._attached:  # some switches may be: the error that says why is on its way
            with suppress(TestbedError):
                workers = Workers.of(self._fabric)
                workers.call_all(attach.detach, self._switches, timeout=_GRACE, errors="return")
            return
        try:
            self._final = self._call(attach.detach)
        except Exception:
            if error is None:  # otherwise the first error is more informative
                raise
        finally:
            self._attached = False

    def set_limits(self, limits: Mapping[int, bytes]) -> None:
        """Replace all rate limits; ``testbed.faults.limits.bucket_table`` creates them."""
        self._call(attach.set_limits, limits=limits)

    def counters(self) -> dict[tuple[int, int, int], int]:
        """How often rules have fired, by index of the rule and ranks of sender and receiver; zeros
        are left out.
        """
        fired = np.sum([counts.fired for counts in self._counts()], axis=0)
        return {(rule, a, b): int(fired[rule, a, b]) for rule, a, b in np.argwhere(fired).tolist()}

    def met(self, most: int = 32 * 31) -> list[str]:
        """A line for each rule, with the frames that met it by link, the most first.

        :param most: How many links a line names.
        """
        names = [host.name for host in self._fabric.plan.hosts]
        links: dict[int, list[tuple[int, str]]] = {}
        for (rule, a, b), count in self.counters().items():
            links.setdefault(rule, []).append((count, f"{names[a]}->{names[b]} {count}"))
        lines = []
        for number, source in enumerate(self.table.sources):
            found = sorted(links.get(number, []), key=lambda entry: -entry[0])
            words = [text for _, text in found[:most]]
            words += [f"{len(found) - most} more links"] if len(found) > most else []
            lines.append(f"{format_fault(source)}: {', '.join(words) or 'no frame'}")
        return lines

    def explain(self, error: TestbedError) -> None:
        """Add to an error which faults were in force, and on which links they took frames."""
        with suppress(TestbedError):  # the error may be that workers have died
            if lines := self.met(_NAMED):
                error.also(f"faults were in force, with frames by link: {'; '.join(lines)}")

    def links(self) -> NDArray[Any]:
        """Counters of all links: shape (32, 32) by sender and receiver, of
        :data:`testbed.faults.attach.LINK`.
        """
        total = np.zeros((MAX_HOSTS, MAX_HOSTS), LINK)
        for counts in self._counts():
            for name in LINK.names or ():
                total[name] += counts.links[name]
        return total

    def frames(self) -> int:
        """Frames that had an identity and so could meet a fault."""
        return int(self.links()["frames"].sum())

    @property
    def lost(self) -> int:
        """Number of records for which the log had no room."""
        return int(self.links()["lost"].sum())

    def delays(self) -> DelayCounters | None:
        """The counters of all delay lines; None without rules that delay frames."""
        lines = [counts.delays for counts in self._counts() if counts.delays]
        return sum(lines[1:], lines[0]) if lines else None

    def log(self) -> NDArray[Any]:
        """All records up to now, by time: shape (n,), of :data:`testbed.faults.log.RECORD`."""
        self._counts()  # flushes
        return read_log(self._paths.values())

    def check_replay(self, at_most: int | None = None) -> int:
        """Decide the fates of the log's frames again, in Python.

        :param at_most: Check at most this many records, evenly spaced, since Python checks some
            30,000 per second. None: all.
        :returns: The number of records checked; all agree.
        :raises FaultError: One does not, or the log lacks some; the text names the first.
        """
        links = self.links()
        records = (
            self.log()
        )  # read after the counters: it has all frames that were counted, and later ones
        if lost := links["lost"].sum():
            raise FaultError(
                f"the log of faults lacks {lost} records, which arrived faster than they could be"
                " written"
            )
        judged = int((links["frames"] - links["blocked"] - links["limited"]).sum())
        logged = int((records["order"] == 0).sum())
        if self._trace and logged < judged:
            raise FaultError(f"the programs judged {judged} frames, and the log has {logged}")
        sample = records if at_most is None else records[:: max(1, -(-len(records) // at_most))]
        check_replay(self.table, sample)
        return len(sample)

    def _counts(self) -> Sequence[Counts]:
        if self._final is not None:
            return self._final
        if not self._attached:
            raise FabricError("faults: the injector was not in force, and has counted nothing")
        return self._call(attach.count)

    def _call(self, function: Any, **arguments: Any) -> list[Any]:
        calls = dict.fromkeys(self._switches, arguments)
        return list(Workers.of(self._fabric).call_all(function, calls, timeout=_GRACE).values())
