"""What telemetry has measured between two readings, by node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

__all__ = ["MACHINE", "Count", "Measure", "Profile", "Samples", "combined"]

MACHINE = "machine"
"""The node of what belongs to no host and no switch: the rest of the machine."""

_PREEMPTED = "preempted"


class Samples(NamedTuple):
    """How often a node's CPU time was found in a class.

    :param softirq: Whether in softirq, which interrupts whatever task is there.
    :param inside: How many of `number` were inside collectives.
    """

    node: str
    softirq: bool
    name: str
    number: int
    inside: int


class Count(NamedTuple):
    """What a tracepoint has counted.

    :param kind: Of `enum telemetry_kind`, such as ``syscall`` or ``off_cpu``; or ``program``.
    :param detail: Which system call, reason, vector, program; empty where the kind has none.
    :param total: Sum of what the kind adds up: seconds or bytes.
    """

    node: str
    kind: str
    detail: str
    number: int
    total: float


class Measure(NamedTuple):
    """A row of the table of results."""

    node: str
    metric: str
    value: float
    unit: str


@dataclass(frozen=True)
class Profile:
    """Samples and counts of a stretch of time.

    :param seconds: Its length.
    :param inside: Seconds inside collectives.
    :param cpus: CPUs of the machine.
    :param rate: Samples per second of each CPU.
    :param lost: Samples for which there was no room.
    """

    seconds: float
    inside: float
    cpus: int
    rate: int
    lost: int
    samples: tuple[Samples, ...]
    counts: tuple[Count, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From what `to_dict` has made."""
        return cls(
            **{
                **values,
                "samples": tuple(Samples(*each) for each in values["samples"]),
                "counts": tuple(Count(*each) for each in values["counts"]),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **vars(self),
            "samples": [list(each) for each in self.samples],
            "counts": [list(each) for each in self.counts],
        }

    def cpu(self, inside: bool = False, node: str | None = None) -> dict[tuple[bool, str], float]:
        """CPU time by softirq and class, in seconds.

        :param inside: Only that inside collectives.
        :param node: Only that of one node; None: of all nodes of the fabric.
        """
        found: dict[tuple[bool, str], float] = {}
        for each in self.samples:
            if each.node == node or (node is None and each.node != MACHINE):
                key = each.softirq, each.name
                found[key] = (
                    found.get(key, 0.0) + (each.inside if inside else each.number) / self.rate
                )
        return found

    @property
    def idle(self) -> float:
        """CPU time that was not sampled in any work, in seconds."""
        busy = sum(each.number for each in self.samples) / self.rate
        return max(0.0, self.seconds * self.cpus - busy)

    def measures(self, mode: str) -> Iterator[Measure]:
        """The rows that a table of results keeps.

        :param mode: ``samples`` or ``counts``, whichever were taken.
        """
        if mode == "counts":
            for count in self.counts:
                yield from _measures_of(count)
            return
        for each in self.samples:
            where = "softirq." if each.softirq else ""
            yield Measure(each.node, f"cpu.{where}{each.name}", each.number / self.rate, "s")
            yield Measure(
                each.node, f"communication_cpu.{where}{each.name}", each.inside / self.rate, "s"
            )
        yield Measure(MACHINE, "cpu.idle", self.idle, "s")
        yield Measure(MACHINE, "telemetry_lost", self.lost, "samples")


def _measures_of(count: Count) -> Iterator[Measure]:
    node, kind, detail, number, total = count
    match kind:
        case "off_cpu":
            yield Measure(node, f"off_cpu.{detail}", total, "s")
            yield Measure(node, f"context_switches.{detail}", number, "switches")
        case "softirq":
            yield Measure(node, f"softirq_time.{detail}", total, "s")
        case "syscall":
            yield Measure(node, f"syscalls.{detail}", number, "calls")
        case "copied":
            yield Measure(node, f"copied_bytes.{detail}", total, "B")
        case "drop":
            yield Measure(node, f"drops.{detail}", number, "packets")
        case "retransmit":
            yield Measure(node, "tcp_retransmissions", number, "segments")
        case "transmit" | "receive":
            yield Measure(node, f"skbs.{kind}", number, "packets")
            yield Measure(node, f"skb_bytes.{kind}", total, "B")
        case "wakeup":
            yield Measure(node, f"wakeup_latency.{detail}", number, "wake-ups")
            yield Measure(node, f"wakeup_time.{detail}", total, "s")
        case "program":
            yield Measure(node, f"program_time.{detail}", total, "s")
            yield Measure(node, f"program_runs.{detail}", number, "runs")


def combined(profiles: Iterable[Profile]) -> Profile | None:
    """The sum of several profiles of one rate; None of none."""
    found = list(profiles)
    if not found:
        return None
    samples: dict[tuple[str, bool, str], tuple[int, int]] = {}
    counts: dict[tuple[str, str, str], tuple[int, float]] = {}
    for profile in found:
        for each in profile.samples:
            count, inside = samples.get(each[:3], (0, 0))
            samples[each[:3]] = count + each.number, inside + each.inside
        for one in profile.counts:
            number, total = counts.get(one[:3], (0, 0.0))
            counts[one[:3]] = number + one.number, total + one.total
    return Profile(
        seconds=sum(each.seconds for each in found),
        inside=sum(each.inside for each in found),
        cpus=found[0].cpus,
        rate=found[0].rate,
        lost=sum(each.lost for each in found),
        samples=tuple(Samples(*key, *value) for key, value in samples.items()),
        counts=tuple(Count(*key, *value) for key, value in counts.items()),
    )
