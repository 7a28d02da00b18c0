"""What one scenario of a soak is: a fabric's shape, groups with their tensors, faults, and how it ends. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from testbed.collectives.group import Lanes, RecoveryFrom
from testbed.collectives.transport import Tensor
from testbed.plan import FabricPlan, plan_fabric

__all__ = ["Group", "Scenario", "Shape", "Summand", "make_input", "replay_command"]


@dataclass(frozen=True)
class Shape:
    """A fabric; scenarios of neighbouring numbers share one."""

    hosts: int
    topology: str
    k: int | None
    switch: str
    mtu: int

    def plan(self) -> FabricPlan:
        """The fabric's plan; offloads are off, so that socket baselines send frames as a wire carries them."""
        return plan_fabric(self.topology, self.hosts, self.switch, self.mtu, offload=False, k=self.k)


@dataclass(frozen=True)
class Summand:
    """One all-reduce's tensors.

    :param elements: float32 elements of each rank's.
    :param magnitude: Power of two that normal deviates are scaled by, so that ranks have to agree on ever new exponents.
    """

    elements: int
    magnitude: int


@dataclass(frozen=True)
class Group:
    """One group and what it does.

    :param members: Ranks of its hosts in the fabric, in the group's rank order.
    :param summands: Its all-reduces, one after the other.
    """

    members: tuple[int, ...]
    lanes: Lanes
    window: int
    recovery: RecoveryFrom
    gap: int
    summands: tuple[Summand, ...]

    def __str__(self) -> str:
        sizes = ",".join(str(summand.elements) for summand in self.summands)
        terms = f"{self.lanes}, window {self.window}, {self.recovery}, gap {self.gap}"
        return f"ranks {','.join(map(str, self.members))} ({terms}): {sizes} elements"

    @property
    def capacity(self) -> int:
        """Elements of the largest tensor."""
        return max(summand.elements for summand in self.summands)


@dataclass(frozen=True)
class Scenario:
    """Scenario ``number`` of the soak with seed ``seed``.

    :param groups: At work at the same time.
    :param faults: In the words of ``--fault``.
    :param ending: ``whole``: all sums are exact. ``kill``: a host's worker is killed; the others' all-reduces are exact or end
        with an error that names it, and the others form new groups. ``cut``: a host is cut off for good; all ranks end with an
        error in time, and form new groups once it is back.
    :param timeout: The groups', seconds.
    :param killed_after: Seconds after its start at which the controller is killed; None: it is not.
    """

    seed: int
    number: int
    shape: Shape
    transport: str
    groups: tuple[Group, ...]
    faults: tuple[str, ...]
    ending: Literal["whole", "kill", "cut"]
    timeout: float
    killed_after: float | None = None

    @property
    def fault_seed(self) -> int:
        """Of the faults' fate."""
        return self.seed << 32 | self.number

    def to_dict(self) -> dict[str, Any]:
        """The scenario in types that JSON knows."""
        return asdict(self)

    def __str__(self) -> str:
        shape = self.shape
        where = f"{self.transport}, {shape.hosts} hosts, {shape.topology}, switch {shape.switch}, mtu {shape.mtu}"
        return "; ".join([f"scenario {self.number}: {where}", *map(str, self.groups), *self.faults])


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


def replay_command(seed: int, number: int, options: Sequence[str] = ()) -> str:
    """The command that plays one scenario again."""
    return " ".join(["testbed", "soak", "--seed", str(seed), "--only", str(number), *options])
