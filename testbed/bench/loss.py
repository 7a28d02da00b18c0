"""``testbed bench faults``: the controller's side."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from testbed.bench import calls
from testbed.bench.barrier import BarrierBroken
from testbed.bench.loss_row import Cell, recovery_times
from testbed.bench.observed import Observed
from testbed.bench.observer import Observer
from testbed.bench.row import MAX_ITERATIONS, Turn, make_row, shares
from testbed.bench.sizes import check_room
from testbed.collectives.registry import BACKENDS, modules_of
from testbed.comm.collective import Counters
from testbed.comm.group import make_groups
from testbed.comm.options import CollectiveOptions
from testbed.core.closing import Stacked
from testbed.core.errors import CollectiveError, SpecError, WorkerTimeout
from testbed.core.logs import logger_of
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults import attach
from testbed.faults.injector import Injector
from testbed.faults.rules import Drop
from testbed.host.estimates import allowance
from testbed.host.machine import describe, load
from testbed.plan import FabricPlan
from testbed.probes.mtu import check_mtu
from testbed.telemetry.options import TelemetryOptions
from testbed.telemetry.profile import Profile
from testbed.worker import Workers

__all__ = ["VARIANTS", "Options", "Session"]

logger = logger_of(__name__)

#: The variants by their names in the table: the backend, and the terms that define the variant.
VARIANTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "xdp-ring/upstream": ("xdp-ring", {"recovery": "upstream"}),
    "xdp-ring/origin": ("xdp-ring", {"recovery": "origin"}),
    "xdp-ring/timer": ("xdp-ring", {"recovery": "upstream", "reorder_threshold": 0}),
    "tcp-ring": ("tcp-ring", {}),
    "gloo": ("gloo", {}),
}

MAX_TURNS = 4  # into which a variant's iterations at a rate of loss are split
TRACED = 3  # all-reduces in which the ring's recoveries are traced
# seconds for an abandoned all-reduce to end after losses have stopped, because TCP has backed off
SETTLING = 180.0


def variant_of(name: str) -> tuple[str, dict[str, Any]]:
    """Return a variant's backend and terms; another package's backend has no others."""
    return VARIANTS.get(name) or (name, {})


@dataclass(frozen=True)
class Options:
    """What is measured, and how.

    :param plan: The fabric.
    :param variants: Names in `VARIANTS`, or of other packages' backends.
    :param size: Bytes of the tensor.
    :param losses: Shares of frames that are dropped, 0..1; 0 is always measured.
    :param iterations: Timed all-reduces of each variant at each rate of loss.
    :param budget: Seconds for all of these together, 1 to 600.
    :param collective: The options of all variants, except those that `VARIANTS` sets.
    :param telemetry: With it, as many iterations more of each cell are sampled, as far as the
        budget allows, and `TRACED` are counted.
    :raises SpecError: A value is not allowed; the text names the command's option.
    """

    plan: FabricPlan
    variants: Sequence[str]
    size: int
    losses: Sequence[float]
    iterations: int = 20
    budget: float = 30.0
    collective: CollectiveOptions = CollectiveOptions()
    seed: int = 0
    telemetry: TelemetryOptions = TelemetryOptions()

    def __post_init__(self) -> None:
        for name in self.variants or ("",):
            if name not in VARIANTS and (name not in BACKENDS or BACKENDS.owns(name)):
                near = [variant for variant in VARIANTS if variant.startswith(f"{name}/")]
                raise SpecError(
                    f"--backends: {name!r}: must be one or more of {', '.join(VARIANTS)}"
                    + (f"; {name} as usual is {near[0]}" if near else "")
                )
        if bad := [loss for loss in self.losses if not 0 <= loss <= 0.5]:
            raise SpecError(f"--loss: {bad[0] * 100:g}: must be 0 to 50 percent")
        if self.size <= 0:
            raise SpecError(f"--size: {self.size}: must be at least a float32")
        if len(self.plan.hosts) < 2:
            raise SpecError(
                "--hosts: 1: must be at least 2, as one rank sends nothing that could be lost"
            )
        if not 1 <= self.iterations <= MAX_ITERATIONS:
            raise SpecError(f"-n: {self.iterations}: must be 1 to {MAX_ITERATIONS} iterations")
        if not 1 <= self.budget <= 600:
            raise SpecError(f"--budget: {self.budget:g}: must be 1 to 600 seconds")
        backends = [variant_of(name)[0] for name in self.variants]
        check_mtu(self.plan.mtu, backends, "--mtu", BACKENDS)
        check_room(self.size, len(self.plan.hosts), backends, allowance(), "--size")

    @property
    def rates(self) -> list[float | None]:
        """Rates of loss in the order in which they are measured; None: no fault engine
        is attached.
        """
        return [None, *sorted({0.0, *self.losses})]


@dataclass
class _Progress:
    """The measurements of a cell so far."""

    turns: list[Sequence[Turn]] = field(default_factory=list)
    spent: float = 0.0
    lost: int = 0
    recoveries: tuple[float, ...] = ()
    failure: str | None = None
    observed: Observed | None = None


class Session(Stacked):
    """A fabric on which cells are measured. A context manager.

    :ivar environment: What the results depend on, after entering.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.environment: dict[str, object] = {}
        self._groups = 0
        self._open: set[str] = set()
        self._absmax: float | None = None

    def _enter(self, stack: ExitStack) -> None:
        before, options = load(), self.options
        self._fabric = stack.enter_context(Fabric(options.plan))
        modules = {
            calls.__name__,
            attach.__name__,
            *modules_of(variant_of(name)[0] for name in options.variants),
        }
        self._workers = stack.enter_context(
            Workers(self._fabric, options.collective.affinity, sorted(modules))
        )
        self._observer = stack.enter_context(Observer(self._fabric, options.telemetry))
        shown = {name: getattr(options, name) for name in ("seed", "iterations", "budget")}
        self.environment = {
            **describe(before),
            **options.plan.summary(),
            **options.collective.model_dump(),
            **shown,
        }

    def run(self, progress: Callable[[str], None] = lambda text: None) -> Iterator[Cell]:
        """Measure: yields the cells of each rate of loss when it is done, starting with those
        without the fault engine.

        Variants take turns at each rate, so that drift of the machine affects all of them equally.

        :param progress: Called with a description of each step.
        """
        options = self.options
        for loss in options.rates:
            cells = {name: _Progress() for name in options.variants}
            turns = shares(options.iterations, MAX_TURNS)
            for turn, count in enumerate(turns):
                for name, cell in cells.items():
                    if cell.failure is None:
                        progress(f"{_text(loss)}, turn {turn + 1} of {len(turns)}: {name}")
                        self._turn(name, cell, loss, count, turn)
            for name, cell in cells.items():
                if loss and cell.failure is None and variant_of(name)[0] == "xdp-ring":
                    progress(f"{_text(loss)}, recoveries: {name}")
                    self._trace(name, cell, loss)
                if self._observer and cell.failure is None:
                    progress(f"{_text(loss)}, telemetry: {name}")
                    self._observe(name, cell, loss)
                yield self._cell(name, cell, loss)

    def _turn(self, name: str, cell: _Progress, loss: float | None, count: int, turn: int) -> None:
        """Run some iterations, or as many as fit into the rest of the budget."""
        self._ready(name)
        with ExitStack() as stack:
            injector = None
            if loss is not None:
                rules = [Drop.model_validate({"p": loss})]
                injector = stack.enter_context(
                    Injector(self._fabric, rules, self.options.seed + turn)
                )
            self._iterate(name, cell, count, injector)
        if cell.failure is not None:
            self._shut(name)

    def _iterate(self, name: str, cell: _Progress, count: int, injector: Injector | None) -> None:
        # The first one is not counted: senders have to adapt to the links.
        for number in range(count + 1):
            started, before = time.monotonic(), _lost(injector)
            try:
                turn = self._turn_of_all(
                    name, check=True, seconds=max(0.0, self.options.budget - cell.spent)
                )
            except WorkerTimeout:
                cell.failure = f"more than the budget of {self.options.budget:g} s"
            except (CollectiveError, BarrierBroken) as error:
                cell.failure = str(error)
            else:
                if number:
                    cell.turns.append(turn)
                    cell.lost += _lost(injector) - before
            cell.spent += time.monotonic() - started
            if cell.failure is not None:
                return

    def _trace(self, name: str, cell: _Progress, loss: float) -> None:
        """Measure how long recoveries take; iterations are untimed, because logging every frame
        takes time.
        """
        self._ready(name)
        rules = [Drop.model_validate({"p": loss})]
        broken = False
        with Injector(self._fabric, rules, self.options.seed, trace=True) as injector:
            for _ in range(TRACED):
                try:
                    self._turn_of_all(name, check=False, seconds=self.options.budget)
                except (WorkerTimeout, CollectiveError, BarrierBroken) as error:
                    logger.warning(
                        "%s, %s: recoveries are not all measured: %s", name, _text(loss), error
                    )
                    broken = True
                    break
        if broken:
            self._shut(name)
        if injector.lost:
            logger.warning("%s, %s: the log lacks %d frames", name, _text(loss), injector.lost)
        cell.recoveries = recovery_times(injector.log())

    def _observe(self, name: str, cell: _Progress, loss: float | None) -> None:
        """Sample and count some more iterations, whose times are not used."""
        self._ready(name)
        with ExitStack() as stack:
            if loss is not None:
                rules = [Drop.model_validate({"p": loss})]
                stack.enter_context(Injector(self._fabric, rules, self.options.seed))
            turn = partial(self._turn_of_all, name, check=False, seconds=self.options.budget)
            try:
                sampled: list[tuple[Sequence[Turn], Profile]] = []
                deadline = time.monotonic() + self.options.budget
                while len(sampled) < self.options.iterations and time.monotonic() < deadline:
                    sampled.append(self._observer.sample(turn))
                counted = self._observer.count(lambda: [turn() for _ in range(TRACED)])
            except (WorkerTimeout, CollectiveError, BarrierBroken) as error:
                logger.warning("%s, %s: is not observed: %s", name, _text(loss), error)
            else:
                cell.observed = Observed.of(sampled, counted, TRACED)
                return
        self._shut(name)

    def _cell(self, name: str, cell: _Progress, loss: float | None) -> Cell:
        options = self.options
        rows = make_row(name, options.size, cell.turns, None) if cell.turns else None
        return Cell(
            backend=name,
            hosts=len(options.plan.hosts),
            size=options.size,
            loss=loss,
            times=rows.times if rows else (),
            sent=sum((turn.sent for turns in cell.turns for turn in turns), Counters()),
            lost=cell.lost,
            recoveries=cell.recoveries,
            wrong=rows.wrong if rows else 0,
            failure=cell.failure,
            observed=cell.observed,
        )

    def _ready(self, name: str) -> None:
        """Configure the links for a variant, and open it unless it is open."""
        backend, terms = variant_of(name)
        needs = BACKENDS[backend].needs
        if self._fabric.datapath != needs:
            set_datapath(self._fabric, needs)
        if name in self._open:
            return
        options, directory = self.options, self._fabric.directory
        self._groups += 1
        specs = make_groups(
            options.plan.hosts,
            group_id=self._groups,
            **{**options.collective.model_dump(), **terms},
            mtu=options.plan.mtu,
            capacity=options.size // 4,
            rendezvous=str(directory),
        )
        barrier = str(directory / f"barrier-{self._groups}")
        shared = {"name": name, "backend": backend, "barrier": barrier, "patience": SETTLING}
        arguments = [{**shared, "spec": spec} for spec in specs]
        self._call_all(calls.open_rank, arguments)
        fill = self._absmax is None
        reference = {"reference": str(directory / "reference"), "fill": fill}
        inputs = {"name": name, "count": options.size // 4, "seed": options.seed, **reference}
        most: list[float] = self._call_all(calls.prepare_size, [inputs] * len(specs))
        if fill:
            self._absmax = max(most)
        self._open.add(name)

    def _shut(self, name: str) -> None:
        """Close a variant that has failed; if it is still busy, it ends now that nothing is lost
        any more.
        """
        self._open.discard(name)
        self._call_all(calls.close_rank, [{"name": name}] * len(self.options.plan.hosts))

    def _turn_of_all(self, name: str, check: bool, seconds: float) -> list[Turn]:
        """One iteration on all ranks."""
        call = {
            "name": name,
            "iterations": 1,
            "warmup": 0,
            "absmax": self._absmax if check else None,
        }
        return self._call_all(calls.run_turn, [call] * len(self.options.plan.hosts), seconds)

    def _call_all(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Mapping[str, Any]],
        timeout: float = SETTLING,
    ) -> list[Any]:
        """Call a function in all ranks' workers; the error of a rank that was only told of
        another's failure is raised only if there is no other.
        """
        by_worker = dict(zip(self._fabric.hosts, arguments, strict=True))
        answers = self._workers.call_all(function, by_worker, timeout=timeout, errors="return")
        failures = [answer for answer in answers.values() if isinstance(answer, Exception)]
        for failure in sorted(failures, key=lambda error: isinstance(error, BarrierBroken)):
            raise failure
        return list(answers.values())


def _text(loss: float | None) -> str:
    return "no fault engine" if loss is None else f"{loss * 100:g} % loss"


def _lost(injector: Injector | None) -> int:
    return sum(injector.counters().values()) if injector else 0
