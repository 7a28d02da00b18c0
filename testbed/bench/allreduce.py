"""``testbed bench allreduce``, ``reducescatter`` and ``allgather``: the controller's side."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from testbed.bench import calls
from testbed.bench.barrier import BarrierBroken
from testbed.bench.observed import Observed, times_of
from testbed.bench.observer import Observer
from testbed.bench.operations import ALL_REDUCE, Operation
from testbed.bench.row import (
    MAX_ITERATIONS,
    Row,
    Turn,
    backend_of,
    make_row,
    turns_of,
    width_of,
)
from testbed.bench.sizes import check_room
from testbed.collectives.mpi.launch import rank_workers
from testbed.collectives.mpi.mpi import initialize
from testbed.collectives.registry import BACKENDS, check_names, modules_of
from testbed.comm.group import make_groups
from testbed.comm.options import DATATYPES, OPS, CollectiveOptions
from testbed.core.closing import Stacked
from testbed.core.errors import KernelError, SpecError
from testbed.core.logs import logger_of
from testbed.core.numbers import shown
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.host.estimates import allowance
from testbed.host.machine import describe, load
from testbed.plan import FabricPlan
from testbed.probes.mtu import check_mtu
from testbed.telemetry.options import TelemetryOptions
from testbed.telemetry.profile import Profile
from testbed.worker import Workers

__all__ = ["Options", "Session"]

logger = logger_of(__name__)

SOCKETS_MTU = 1500
COPIES = 9
TURN_TIMEOUT = 300.0  # seconds; MPI has no deadline of its own


@dataclass(frozen=True)
class Options:
    """What is measured, and how.

    :param sizes: Bytes of the tensors.
    :param iterations: Timed all-reduces of each backend at each size.
    :param warmup: Untimed ones before each turn.
    :param check: Whether results are compared with the reference.
    :param collective: The options of all backends.
    :param operation: What is measured. Where tensors have a block for each rank, sizes are rounded
        down to what the ranks can share.
    :param op: How values are reduced, one of `OPS`.
    :param datatype: Their type, one of `DATATYPES`. Sizes are rounded down to whole values.
    :param out_of_place: Whether each turn is done once more with results in memory of their own.
    :param telemetry: With it, each turn is repeated with telemetry on, and only then.
    :raises SpecError: A value is not allowed; the text names the command's option.
    """

    plan: FabricPlan
    backends: Sequence[str]
    sizes: Sequence[int]
    iterations: int
    warmup: int
    check: bool
    collective: CollectiveOptions = CollectiveOptions()
    seed: int = 0
    telemetry: TelemetryOptions = TelemetryOptions()
    operation: Operation = ALL_REDUCE
    op: str = "sum"
    datatype: str = "float"
    out_of_place: bool = False

    def __post_init__(self) -> None:
        check_names(self.backends)
        if self.op not in OPS:
            raise SpecError(f"--op: {shown(self.op)}: must be one of {', '.join(OPS)}")
        if self.datatype not in DATATYPES:
            raise SpecError(f"-d: {shown(self.datatype)}: must be one of {', '.join(DATATYPES)}")
        if self.operation.reduces:
            self._check_reductions()
        if not 1 <= self.iterations <= MAX_ITERATIONS:
            raise SpecError(f"-n: {self.iterations}: must be 1 to {MAX_ITERATIONS} iterations")
        if not 0 <= self.warmup <= MAX_ITERATIONS:
            raise SpecError(f"-w: {self.warmup}: must be 0 to {MAX_ITERATIONS}")
        check_mtu(self.plan.mtu, self.backends, "--mtu", BACKENDS)
        check_room(max(self.sizes), len(self.plan.hosts), self.backends, allowance())

    def _check_reductions(self) -> None:
        """Check that all backends reduce such values in this way."""
        for name in self.backends:
            entry = BACKENDS[name]
            for flag, given, allowed in (
                ("--op", self.op, entry.ops),
                ("-d", self.datatype, entry.datatypes),
            ):
                if given not in allowed:
                    few = f"one of {', '.join(allowed)}" if len(allowed) > 1 else allowed[0]
                    raise SpecError(
                        f"{flag}: {given}: must be {few} with {name}; --backends chooses others"
                    )
        if self.op == "avg" and np.dtype(DATATYPES[self.datatype]).kind != "f":
            others = ", ".join(op for op in OPS if op != "avg")
            raise SpecError(f"--op: avg: must be one of {others} with -d {self.datatype}")

    @property
    def fitting(self) -> list[int]:
        """The sizes that are measured."""
        ranks, width = len(self.plan.hosts), width_of(self.datatype)
        return list(dict.fromkeys(self.operation.fit(size, ranks, width) for size in self.sizes))

    @property
    def parameters(self) -> dict[str, Any]:
        """The options that each row of the JSON file repeats."""
        fabric = self.plan.summary()
        kept = {key: fabric[key] for key in ("mtu", "offload", "topology")}
        return {**kept, **self.collective.model_dump(), "seed": self.seed}

    @property
    def labels(self) -> list[str]:
        """What is measured: the backends, and those over sockets once more with packets of
        `SOCKETS_MTU` bytes where links carry larger ones, because TCP may be faster so.
        """
        small = [
            f"{name}@{SOCKETS_MTU}"
            for name in self.backends
            if BACKENDS[name].needs == "sockets" and self.plan.mtu > SOCKETS_MTU
        ]
        return [*self.backends, *small]

    @property
    def turns(self) -> list[int]:
        """Iterations of each turn, as equal as possible."""
        return turns_of(self.iterations, self.telemetry.enabled)


class Session(Stacked):
    """A fabric with all backends of a bench open on it.

    :ivar environment: What the results depend on, after entering.
    :ivar down_seconds: How long the fabric took to be removed, after leaving.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.environment: dict[str, object] = {}
        self.down_seconds = 0.0

    def _enter(self, stack: ExitStack) -> None:
        before, start = load(), time.monotonic()
        self._fabric = stack.enter_context(self._timed_fabric())
        fabric_up = time.monotonic() - start
        modules = [calls.__name__, *modules_of(self.options.backends)]
        self._workers = stack.enter_context(
            Workers(self._fabric, self.options.collective.affinity, modules)
        )
        workers_up = time.monotonic() - start - fabric_up
        extra: dict[str, object] = {
            **self.options.collective.model_dump(),
            "seed": self.options.seed,
            "iterations": self.options.iterations,
            "warmup": self.options.warmup,
            "fabric_up_seconds": round(fabric_up, 3),
            "workers_up_seconds": round(workers_up, 3),
        }
        self._names: dict[str, list[str]] = {}
        for group, name in enumerate(self.options.backends):
            self._open(stack, name, group)
            if name == "mpi":
                extra["mpi"] = self._workers[self._names[name][0]].call(initialize)
        self._observer = stack.enter_context(Observer(self._fabric, self.options.telemetry))
        self.environment = {**describe(before), **self.options.plan.summary(), **extra}

    @contextmanager
    def _timed_fabric(self) -> Iterator[Fabric]:
        with Fabric(self.options.plan) as fabric:
            yield fabric
            leaving = time.monotonic()  # workers have exited by now
        self.down_seconds = time.monotonic() - leaving

    def _open(self, stack: ExitStack, name: str, group: int) -> None:
        options, directory = self.options, self._fabric.directory
        set_datapath(self._fabric, BACKENDS[name].needs)
        hosts = list(self._fabric.hosts)
        self._names[name] = stack.enter_context(rank_workers(name, self._workers, hosts))
        specs = make_groups(
            options.plan.hosts,
            group_id=group,
            mtu=options.plan.mtu,
            capacity=max(options.sizes) // 4,
            **options.collective.model_dump(),
            rendezvous=str(directory),
        )
        arguments = [
            {
                "name": name,
                "spec": spec,
                "barrier": str(directory / f"barrier-{name}"),
                "operation": options.operation,
                "op": options.op,
                "dtype": DATATYPES[options.datatype],
            }
            for spec in specs
        ]
        self._call(calls.open_rank, name, arguments)

    def _call(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: Mapping[str, Any] | list[dict[str, Any]],
    ) -> list[Any]:
        """Call a function in all ranks of a backend, with the same arguments or a list with those
        of each rank.
        """
        name = backend_of(name)
        workers = self._names[name]
        each = (
            arguments
            if isinstance(arguments, list)
            else [{"name": name, **arguments}] * len(workers)
        )
        by_worker = dict(zip(workers, each, strict=True))
        answers = self._workers.call_all(function, by_worker, timeout=TURN_TIMEOUT, errors="return")
        failures = [answer for answer in answers.values() if isinstance(answer, Exception)]
        # The error of a rank that only reports another's failure is not informative.
        for failure in sorted(failures, key=lambda error: isinstance(error, BarrierBroken)):
            raise failure
        return list(answers.values())

    def run(self, progress: Callable[[str], None] = lambda text: None) -> Iterator[Row]:
        """Measure: yields the rows of a size when it is done.

        Backends take turns within a size, so that a drift in the machine's speed affects all alike.
        What comes before a turn (attaching and detaching the switches' programs, and the warm-up)
        is not timed. With telemetry, each turn is followed, or every second time preceded, by one
        that is observed, whose times count for the overhead only.

        :param progress: Told what is going on.
        """
        for size in self.options.fitting:
            absmax = self._prepare(size, progress)
            turns: dict[str, list[list[Turn]]] = {name: [] for name in self.options.labels}
            apart: dict[str, list[list[Turn]]] = {name: [] for name in turns}
            watched: dict[str, list[tuple[Sequence[Turn], Profile]]] = {name: [] for name in turns}
            for number, iterations in enumerate(self.options.turns):
                for name in self.options.labels:
                    progress(f"{size} B, turn {number + 1} of {len(self.options.turns)}: {name}")
                    self._set_datapath(name)
                    arguments = {
                        "iterations": iterations,
                        "warmup": self.options.warmup,
                        "absmax": absmax,
                    }
                    turn = partial(self._call, calls.run_turn, name, arguments)
                    turn_apart = partial(
                        self._call, calls.run_turn, name, {**arguments, "in_place": False}
                    )
                    if self._observer and number % 2:
                        watched[name].append(self._observer.sample(turn))
                    turns[name].append(turn())
                    if self.options.out_of_place:
                        apart[name].append(turn_apart())
                    if self._observer and not number % 2:
                        watched[name].append(self._observer.sample(turn))
            bound = self._copy(progress, size)
            for name in self.options.labels:
                progress(f"{size} B, counting: {name}")
                self._set_datapath(name)
                counted = self._count_all(name, arguments) if watched[name] else None
                observed = counted and Observed.of(watched[name], *counted)
                kind = self.options.operation, self.options.op, self.options.datatype
                other = (
                    make_row(name, size, apart[name], None, None, None, *kind)
                    if apart[name]
                    else None
                )
                syscalls = self._syscalls(name)
                yield make_row(name, size, turns[name], syscalls, observed, bound, *kind, other)

    def _copy(self, progress: Callable[[str], None], size: int) -> float:
        """Seconds in which all ranks at once copy a tensor, the median."""
        progress(f"{size} B, copying")
        copied = self._call(calls.copy_turn, self.options.backends[0], {"iterations": COPIES})
        return float(np.median(times_of(copied)))

    def _count_all(self, name: str, arguments: dict[str, Any]) -> tuple[Profile, int]:
        profile = self._observer.count(
            partial(self._call, calls.run_turn, name, {**arguments, "absmax": None})
        )
        return profile, arguments["warmup"] + arguments["iterations"]

    def _prepare(self, size: int, progress: Callable[[str], None]) -> float | None:
        """Make the inputs and the reference; returns the largest magnitude of any element, None
        without the check.
        """
        path = self._fabric.directory / "reference"
        path.unlink(missing_ok=True)
        absmax = 0.0
        for index, name in enumerate(self.options.backends):
            progress(f"{size} B, inputs: {name}")
            fill = self.options.check and index == 0
            arguments = {
                "count": size // width_of(self.options.datatype),
                "seed": self.options.seed,
                "reference": str(path),
                "fill": fill,
            }
            absmax = max(absmax, *self._call(calls.prepare_size, name, arguments))
        return absmax if self.options.check else None

    def _set_datapath(self, name: str) -> None:
        needs = BACKENDS[backend_of(name)].needs
        if self._fabric.datapath != needs:
            set_datapath(self._fabric, needs)
        self._fabric.limit_sockets(SOCKETS_MTU if name != backend_of(name) else None)

    def _syscalls(self, name: str) -> list[int] | None:
        try:
            return self._call(calls.count_syscalls, name, {})
        except KernelError as error:
            logger.warning("system calls are not counted: %s", error)
            return None
