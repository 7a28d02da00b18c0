"""One scenario of a soak: a fabric's shape, groups and exchanges with their work, faults, and its
ending. Pure.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from testbed.comm.backend import Tensor
from testbed.comm.options import CollectiveOptions
from testbed.exchange.interface import Aggregation
from testbed.exchange.options import ExchangeOptions
from testbed.plan import FabricPlan, plan_fabric
from testbed.testing.graphs import Partitioned, draw_partitioned

__all__ = [
    "Exchange",
    "Group",
    "Scenario",
    "Shape",
    "Summand",
    "Task",
    "make_embeddings",
    "make_graph",
    "make_input",
    "replay_command",
]


@dataclass(frozen=True)
class Shape:
    """A fabric; scenarios of neighbouring numbers share one."""

    hosts: int
    topology: str
    k: int | None
    switch: str
    mtu: int

    def plan(self) -> FabricPlan:
        """The fabric's plan; offloads are off, so that socket baselines send single frames, as on a
        real wire.
        """
        return plan_fabric(
            self.topology, self.hosts, self.switch, self.mtu, offload=False, k=self.k
        )


@dataclass(frozen=True)
class Summand:
    """One all-reduce's tensors.

    :param elements: float32 elements of each rank's.
    :param magnitude: Power of two that normal deviates are scaled by, so that ranks have to agree
        on a new exponent each time.
    """

    elements: int
    magnitude: int


@dataclass(frozen=True)
class Group:
    """One group and what it does.

    :param members: Ranks of its hosts in the fabric, in the group's rank order.
    :param summands: Its all-reduces, one after the other.
    :param times: How often it goes through them.
    :param rounds: 1: all ranks open it before any works, and close it when all have. More: so often
        each rank opens it, works and closes it at once, waiting for nobody.
    """

    members: tuple[int, ...]
    terms: CollectiveOptions
    summands: tuple[Summand, ...]
    times: int = 1
    rounds: int = 1

    def __str__(self) -> str:
        sizes = ",".join(str(summand.elements) for summand in self.summands)
        terms = f"{self.terms.lanes}, window {self.terms.window}, {self.terms.recovery}"
        terms += f", reorder threshold {self.terms.reorder_threshold}"
        return f"ranks {','.join(map(str, self.members))} ({terms}): {sizes} elements{_often(self)}"

    @property
    def kind(self) -> str:
        """What its collectives are called."""
        return "all-reduces"

    @property
    def capacity(self) -> int:
        """Elements of the largest tensor."""
        return max(summand.elements for summand in self.summands)

    @property
    def turns(self) -> int:
        """All-reduces of a round."""
        return self.times * len(self.summands)


@dataclass(frozen=True)
class Exchange:
    """One exchange in the kernel and what it does. See `testbed.exchange.interface.ExchangeSpec`.

    :param members: Ranks of its hosts in the fabric, in the exchange's rank order.
    :param vertices: Vertices of the graph, which are distributed over the ranks at random.
    :param entries: Entries of its adjacency.
    :param hub: Additional entries of one vertex.
    :param known: The largest exponent is known beforehand.
    :param magnitudes: Of one aggregation each: powers of two that embeddings are scaled by.
    :param times: As `Group`'s.
    :param rounds: As `Group`'s.
    """

    members: tuple[int, ...]
    terms: ExchangeOptions
    aggregation: Aggregation
    dim: int
    vertices: int
    entries: int
    hub: int
    known: bool
    magnitudes: tuple[int, ...]
    times: int = 1
    rounds: int = 1

    def __str__(self) -> str:
        scale = "known" if self.known else "agreed"
        lanes = self.terms.dtype or self.terms.lanes
        window, processing = self.terms.window, self.terms.processing
        bound, staleness = self.terms.bound, self.terms.staleness
        cache = "" if bound is None else f", bound {bound}, staleness {staleness}"
        terms = (
            f"pinch, {self.terms.broadcast}, {lanes}, window {window}, {processing}, aggregate"
            f" {self.terms.aggregate}, sums {self.terms.sums}, halo {self.terms.halo},"
            f" {self.aggregation}, scale {scale}{cache}"
        )
        graph = (
            f"{self.vertices} vertices of {self.dim} elements, {self.entries} entries and a hub of"
            f" {self.hub}"
        )
        ranks = ",".join(map(str, self.members))
        return (
            f"ranks {ranks} ({terms}): {graph}, {len(self.magnitudes)} aggregations{_often(self)}"
        )

    @property
    def kind(self) -> str:
        """What its collectives are called."""
        return "aggregations"

    @property
    def turns(self) -> int:
        """Aggregations of a round."""
        return self.times * len(self.magnitudes)


Task = Group | Exchange


def _often(task: Task) -> str:
    times = f", {task.times} times" if task.times > 1 else ""
    return times + (f", opened {task.rounds} times" if task.rounds > 1 else "")


@dataclass(frozen=True)
class Scenario:
    """Scenario ``number`` of the soak with seed ``seed``.

    :param backend: Of the groups.
    :param groups: At work at the same time.
    :param faults: In the words of ``--fault``.
    :param ending: ``whole``: all results are exact. ``kill``: a host's worker is killed; the
        others' results are exact or there is an error that names it, and the others form new
        groups. ``cut``: a host is cut off for good; all ranks end with an error in time, and form
        new groups once it is back.
    :param timeout: The groups', seconds.
    :param killed_after: Seconds after its start at which the controller is killed; None: it is not.
    :param exchanges: At work at the same time as the groups.
    :param strays: Frames that are resent from elsewhere, per second; see `testbed.soak.strays`.
    """

    seed: int
    number: int
    shape: Shape
    backend: str
    groups: tuple[Group, ...]
    faults: tuple[str, ...]
    ending: Literal["whole", "kill", "cut"]
    timeout: float
    killed_after: float | None = None
    exchanges: tuple[Exchange, ...] = ()
    strays: int = 0

    @property
    def fault_seed(self) -> int:
        """Of the faults' fate."""
        return self.seed << 32 | self.number

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Groups, then exchanges."""
        return *self.groups, *self.exchanges

    @property
    def systems(self) -> list[str]:
        """What is at work."""
        return [self.backend] * bool(self.groups) + ["pinch"] * bool(self.exchanges)

    @property
    def ways(self) -> set[str]:
        """What is at work: a backend, and exchanges by their `broadcast`."""
        exchanges = {str(exchange.terms.broadcast) for exchange in self.exchanges}
        return {self.backend, *exchanges} if self.groups else exchanges

    @property
    def collectives(self) -> int:
        """All-reduces and aggregations, of all tasks."""
        return sum(task.turns * task.rounds for task in self.tasks)

    @property
    def system(self) -> str:
        """The same in words."""
        return " and ".join(self.systems)

    def label(self, task: int) -> str:
        """What a task, by index, is called."""
        return f"group {task}" if task < len(self.groups) else f"exchange {task - len(self.groups)}"

    def to_dict(self) -> dict[str, Any]:
        """The scenario in types that JSON has."""
        return {
            name: (
                [task | {"terms": task["terms"].model_dump()} for task in value]
                if name in ("groups", "exchanges")
                else value
            )
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        shape = self.shape
        where = (
            f"{self.system}, {shape.hosts} hosts, {shape.topology}, switch {shape.switch}, mtu"
            f" {shape.mtu}"
        )
        strays = [f"{self.strays} strays a second"] * bool(self.strays)
        return "; ".join(
            [f"scenario {self.number}: {where}", *map(str, self.tasks), *self.faults, *strays]
        )


def make_input(scenario: Scenario, group: int, summand: int, rank: int) -> Tensor:
    """Draw a rank's tensor.

    :param group: Index of the group.
    :param summand: Index of the all-reduce.
    :param rank: Of the group.
    :returns: Shape (elements,).
    """
    what = scenario.groups[group].summands[summand]
    generator = np.random.default_rng([scenario.seed, scenario.number, group, summand, rank])
    return np.ldexp(generator.standard_normal(what.elements, np.float32), what.magnitude)


def make_graph(scenario: Scenario, exchange: int) -> Partitioned:
    """Draw an exchange's graph.

    :param exchange: Its index.
    """
    what = scenario.exchanges[exchange]
    return draw_partitioned(
        scenario.fault_seed + exchange, what.vertices, what.entries, len(what.members), hub=what.hub
    )


def make_embeddings(scenario: Scenario, exchange: int, number: int) -> Tensor:
    """Draw all ranks' embeddings, whose elements differ a good deal in magnitude; for an exchange
    with a cache, most as in the aggregation before, or hardly different.

    :param exchange: Its index.
    :param number: Of the aggregation.
    :returns: Shape (vertices, dim).
    """
    what = scenario.exchanges[exchange]
    generator = np.random.default_rng(
        [scenario.seed, scenario.number, len(scenario.groups) + exchange, number]
    )
    shape = what.vertices, what.dim
    magnitudes = generator.integers(-8, 9, shape) + what.magnitudes[number]
    drawn = np.ldexp(generator.standard_normal(shape, np.float32), magnitudes.astype(np.int32))
    if what.terms.bound is None or number == 0:
        return drawn
    before = make_embeddings(scenario, exchange, number - 1)
    before *= generator.choice(np.array([1, 1.001], np.float32), (what.vertices, 1))
    return np.where(generator.random((what.vertices, 1)) < 0.6, before, drawn)


def replay_command(seed: int, number: int, options: Sequence[str] = ()) -> str:
    """The command that replays one scenario."""
    return " ".join(["testbed", "soak", "--seed", str(seed), "--only", str(number), *options])
