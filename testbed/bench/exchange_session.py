"""Measure exchanges in turns on one fabric: the common part of ``testbed bench broadcast`` and
``testbed bench aggregate``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from testbed.bench import exchange_calls as calls
from testbed.bench.barrier import BarrierBroken
from testbed.bench.observed import Observed, Overhead, overhead, telemetry_dict
from testbed.bench.observer import Observer
from testbed.bench.row import MAX_ITERATIONS, Turn, turns_of
from testbed.comm.collective import Counters
from testbed.comm.entry import check_generic
from testbed.comm.group import GroupSpec, make_groups
from testbed.comm.options import GroupOptions
from testbed.core.closing import Stacked
from testbed.core.errors import KernelError, SpecError, TestbedError
from testbed.core.logs import logger_of
from testbed.core.medians import Median
from testbed.datapath import set_datapath
from testbed.exchange.cover import cover_halos
from testbed.exchange.halo import Halo
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.options import ExchangeOptions, ExchangeTerms
from testbed.exchange.registry import EXCHANGES, modules_of
from testbed.fabric import Fabric
from testbed.host.machine import describe, load
from testbed.plan import FabricPlan
from testbed.probes.mtu import check_mtu
from testbed.telemetry.options import TelemetryOptions
from testbed.telemetry.profile import Profile
from testbed.worker import Workers

__all__ = ["Case", "Measured", "Options", "Session"]

logger = logger_of(__name__)

TURN_TIMEOUT = 300.0  # seconds


@dataclass(frozen=True)
class Options:
    """The options that all benches of exchanges share.

    :param exchanges: Names in `EXCHANGES`.
    :param iterations: Timed exchanges of each name and case.
    :param warmup: Untimed exchanges before each turn.
    :param terms: The terms of all exchanges.
    :param telemetry: With it, each turn is repeated with telemetry on.
    :raises SpecError: A value is not allowed; the text names the command's option.
    """

    plan: FabricPlan
    exchanges: Sequence[str]
    iterations: int = 20
    warmup: int = 3
    terms: ExchangeOptions = ExchangeOptions()
    seed: int = 0
    telemetry: TelemetryOptions = TelemetryOptions()

    def __post_init__(self) -> None:
        for name in self.exchanges or ("",):
            if name not in EXCHANGES:
                raise SpecError(
                    f"--exchanges: {name!r}: must be one or more of {', '.join(EXCHANGES)}"
                )
        if not 1 <= self.iterations <= MAX_ITERATIONS:
            raise SpecError(f"-n: {self.iterations}: must be 1 to {MAX_ITERATIONS} iterations")
        if not 0 <= self.warmup <= MAX_ITERATIONS:
            raise SpecError(f"-w: {self.warmup}: must be 0 to {MAX_ITERATIONS}")
        if len(self.plan.hosts) < 2:
            raise SpecError("--hosts: 1: must be 2 to 32, as one rank exchanges nothing")
        check_mtu(self.plan.mtu, self.exchanges, "--mtu", EXCHANGES)
        check_generic(self.plan.xdp, self.exchanges, "--xdp", EXCHANGES)

    @property
    def turns(self) -> list[int]:
        """The iterations of each turn, as equal as possible."""
        return turns_of(self.iterations, self.telemetry.enabled)

    @property
    def parameters(self) -> dict[str, Any]:
        """The columns that each row of the JSON file repeats."""
        fabric = self.plan.summary()
        kept = {key: fabric[key] for key in ("mtu", "offload", "topology")}
        return {**kept, **self.terms.model_dump(), "seed": self.seed}


@dataclass(frozen=True)
class Case:
    """What is exchanged: `halos`, one per rank, on the first hosts; `dim` elements per embedding;
    `words` is its description.

    :param exponent: `ExchangeSpec`'s: the exponent if it is known beforehand, or None.
    """

    words: str
    halos: tuple[Halo, ...]
    dim: int
    exponent: int | None = None


@dataclass(frozen=True)
class Measured:
    """One exchange in one case; times in seconds, by iteration.

    :param times: From the start of the first sender until the last receiver has its aggregates.
    :param send_times: From the start of the first sender until the last sender is done.
    :param wrong: Number of wrong elements in the last results of the turns.
    :param sent: What all ranks have sent, in all iterations.
    :param send_syscalls: System calls of one exchange, mean over the senders; None: not counted.
    :param receive_syscalls: The same for the receivers.
    :param observed: Turns with telemetry, if there were any; `overhead`: by what share these were
        longer.
    :param words: The case's description.
    """

    exchange: str
    times: tuple[float, ...]
    send_times: tuple[float, ...]
    wrong: int
    sent: Counters
    send_syscalls: float | None
    receive_syscalls: float | None
    observed: Observed | None = None
    overhead: Overhead | None = None
    words: str = ""

    @property
    def time(self) -> Median:
        """Of an exchange, seconds."""
        return Median.of(self.times)

    @property
    def median(self) -> float:
        """Median of the times."""
        return self.time.value

    def to_dict(self) -> dict[str, Any]:
        """The columns that the JSON rows of all benches have; counts are per exchange."""
        count = len(self.times)
        telemetry = telemetry_dict(self.observed, self.overhead)
        return {
            "exchange": self.exchange,
            "iterations": count,
            "time_us": {
                "min": round(min(self.times) * 1e6, 3),
                "median": round(self.median * 1e6, 3),
                "p99": round(float(np.percentile(self.times, 99)) * 1e6, 3),
                "low": round(self.time.low * 1e6, 3),
                "high": round(self.time.high * 1e6, 3),
            },
            "send_time_us": round(float(np.median(self.send_times)) * 1e6, 3),
            "wrong": self.wrong,
            "packets": round(self.sent.packets / count),
            "wire_bytes": round(self.sent.wire_bytes / count),
            "retransmissions": self.sent.retransmissions,
            "send_syscalls": self.send_syscalls,
            "receive_syscalls": self.receive_syscalls,
            **({"telemetry": telemetry} if telemetry else {}),
        }


def combine(
    case: Case,
    name: str,
    turns: Sequence[Sequence[Turn]],
    syscalls: Sequence[int] | None,
    observed: Observed | None = None,
) -> Measured:
    """Combine the turns of all ranks, indexed by turn, then by rank."""
    senders = [halo.rank for halo in case.halos if any(map(len, halo.sends))]
    receivers = [halo.rank for halo in case.halos if halo.num_halo]
    times, send_times = [], []
    for ranks in turns:
        for number in range(len(ranks[0].starts)):
            start = min(ranks[sender].starts[number] for sender in senders)
            times.append(max(ranks[receiver].ends[number] for receiver in receivers) - start)
            send_times.append(max(ranks[sender].ends[number] for sender in senders) - start)
    return Measured(
        exchange=name,
        times=tuple(times),
        send_times=tuple(send_times),
        wrong=sum(turn.wrong for ranks in turns for turn in ranks),
        sent=sum((turn.sent for ranks in turns for turn in ranks), Counters()),
        send_syscalls=_mean(syscalls, senders),
        receive_syscalls=_mean(syscalls, receivers),
        observed=observed,
        overhead=overhead(turns, observed),
        words=case.words,
    )


def _mean(counts: Sequence[int] | None, ranks: Sequence[int]) -> float | None:
    return None if counts is None else round(sum(counts[rank] for rank in ranks) / len(ranks), 1)


class Session(Stacked):
    """A fabric on which cases are measured. A context manager.

    :ivar environment: What the results depend on, after entering.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.environment: dict[str, object] = {}
        self._groups = self._ranks = 0

    def _enter(self, stack: ExitStack) -> None:
        before, options = load(), self.options
        self._fabric = stack.enter_context(Fabric(options.plan))
        modules = [calls.__name__, *modules_of(options.exchanges)]
        self._workers = stack.enter_context(Workers(self._fabric, options.terms.affinity, modules))
        self._observer = stack.enter_context(Observer(self._fabric, options.telemetry))
        shown = {name: getattr(options, name) for name in ("iterations", "warmup", "seed")}
        self.environment = {
            **describe(before),
            **options.plan.summary(),
            **options.terms.model_dump(),
            **shown,
        }

    def run(
        self, case: Case, progress: Callable[[str], None] = lambda text: None
    ) -> Iterator[Measured]:
        """Measure a case: exchanges take turns, so that drift of the machine affects all of them
        equally. With telemetry, each turn is followed, or every second time preceded, by one that
        is observed, whose times count for the overhead only.

        :param progress: Called with a description of each step.
        """
        names, options = self.options.exchanges, self.options
        progress(f"{case.words}: inputs")
        terms = options.terms
        inputs = {
            "dim": case.dim,
            "seed": options.seed,
            "tolerance": calls.tolerance_of(terms, names),
            "choice": terms.halo,
        }
        self._call(calls.prepare_case, [{"halo": halo, **inputs} for halo in case.halos])
        self._ranks = len(case.halos)
        for name in names:
            self._set_datapath(name)
            self._open(name, case)
        turns: dict[str, list[list[Turn]]] = {name: [] for name in names}
        watched: dict[str, list[tuple[Sequence[Turn], Profile]]] = {name: [] for name in names}
        for number, iterations in enumerate(options.turns):
            for name in names:
                progress(f"{case.words}, turn {number + 1} of {len(options.turns)}: {name}")
                self._set_datapath(name)
                turn = partial(
                    self._same, calls.run_turn, name, iterations=iterations, warmup=options.warmup
                )
                if self._observer and number % 2:
                    watched[name].append(self._observer.sample(turn))
                turns[name].append(turn())
                if self._observer and not number % 2:
                    watched[name].append(self._observer.sample(turn))
        for name in names:
            progress(f"{case.words}, system calls: {name}")
            self._set_datapath(name)
            observed = None
            if watched[name]:
                progress(f"{case.words}, counting: {name}")
                count = options.turns[-1]
                counted = self._observer.count(
                    partial(
                        self._same, calls.run_turn, name, iterations=count, warmup=options.warmup
                    )
                )
                observed = Observed.of(watched[name], counted, options.warmup + count)
            yield combine(case, name, turns[name], self._syscalls(name), observed)
            self._same(calls.close_rank, name)

    def _open(self, name: str, case: Case) -> None:
        groups, terms = self._make_groups(), self.options.terms.only(ExchangeTerms)
        barrier = str(self._fabric.directory / f"barrier-{self._groups}")
        covered = self.options.terms.halo == "cover"
        halos = cover_halos(case.halos) if covered else case.halos
        specs = [
            ExchangeSpec(group, halo, case.dim, exponent=case.exponent, **terms)
            for group, halo in zip(groups, halos, strict=True)
        ]
        self._call(
            calls.open_rank, [{"name": name, "spec": spec, "barrier": barrier} for spec in specs]
        )

    def _make_groups(self) -> tuple[GroupSpec, ...]:
        self._groups += 1
        plan = self.options.plan
        return make_groups(
            plan.hosts[: self._ranks],
            group_id=self._groups,
            mtu=plan.mtu,
            rendezvous=str(self._fabric.directory),
            **self.options.terms.only(GroupOptions),
        )

    def _set_datapath(self, name: str) -> None:
        if self._fabric.datapath != EXCHANGES[name].needs:
            set_datapath(self._fabric, EXCHANGES[name].needs)

    def _syscalls(self, name: str) -> list[int] | None:
        try:
            return self._same(calls.count_syscalls, name)
        except KernelError as error:
            logger.warning("system calls are not counted: %s", error)
            return None

    def _same(self, function: Callable[..., Any], name: str, **arguments: Any) -> list[Any]:
        return self._call(function, [{"name": name, **arguments}] * self._ranks)

    def _call(
        self, function: Callable[..., Any], arguments: Sequence[Mapping[str, Any]]
    ) -> list[Any]:
        """Call a function in the first hosts' workers, one per call.

        :raises Exception: What a rank has raised: preferably a bug in the program, then an error
            that a rank met itself, and only then one that a rank was told about.
        """
        by_worker = dict(zip(self._fabric.hosts, arguments, strict=False))
        answers = self._workers.call_all(function, by_worker, timeout=TURN_TIMEOUT, errors="return")
        failures = [answer for answer in answers.values() if isinstance(answer, Exception)]
        for failure in sorted(
            failures,
            key=lambda error: (isinstance(error, BarrierBroken), isinstance(error, TestbedError)),
        ):
            raise failure
        return list(answers.values())
