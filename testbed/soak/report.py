"""The results of scenarios: one `Report` each, and a `Coverage` of all. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from testbed.comm.collective import Counters
from testbed.soak.scenario import Scenario

__all__ = ["Coverage", "Report"]


@dataclass
class Report:
    """One scenario that has passed.

    :param collectives: All-reduces and aggregations that all their ranks have done.
    :param results: That were compared, one per rank and collective.
    :param given_up: Ranks' collectives that ended with an error, as they had to.
    :param sent: By all ranks.
    :param fired: Frames that met a fault, and events that happened, by action.
    :param records: Of the faults' log, judged again.
    :param growth: Bytes by which a rank's memory has grown at most since earlier scenarios on its
        fabric.
    """

    scenario: Scenario
    seconds: float = 0.0
    collectives: Counter[str] = field(default_factory=Counter)
    results: int = 0
    given_up: int = 0
    sent: Counters = field(default_factory=Counters)
    fired: Counter[str] = field(default_factory=Counter)
    records: int = 0
    growth: int = 0


@dataclass
class Coverage:
    """What a soak has covered so far.

    :param scenarios: By what was at work.
    :param drawn: Scenarios that a fault was drawn for, by action.
    :param factors: Scenarios by name and value of each factor.
    """

    seconds: float = 0.0
    scenarios: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    results: int = 0
    given_up: int = 0
    sent: Counters = field(default_factory=Counters)
    records: int = 0
    growth: int = 0
    longest: float = 0.0
    drawn: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    factors: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        """Count a scenario in."""
        scenario = report.scenario
        self.scenarios[scenario.system] += 1
        self.collectives += report.collectives
        self.results += report.results
        self.given_up += report.given_up
        self.sent += report.sent
        self.records += report.records
        self.growth = max(self.growth, report.growth)
        self.longest = max(self.longest, report.seconds)
        self.fired += report.fired
        self.drawn.update(
            {fault.partition(" ")[0] for fault in scenario.faults}
            | ({"strays"} if scenario.strays else set())
        )
        for name, values in _factors(scenario).items():
            self.factors.setdefault(name, Counter()).update(set(values))

    def totals(self) -> Iterator[tuple[str, str]]:
        """Name and value of each total."""
        yield "scenarios", _parts(self.scenarios)
        yield "time", f"{self.seconds / 60:.1f} min; the longest scenario {self.longest:.1f} s"
        yield "collectives", _parts(self.collectives)
        yield "results compared", f"{self.results:,}, one per rank and collective"
        yield "errors, as they had to be", f"{self.given_up:,}"
        yield "frames sent", f"{self.sent.packets:,} ({self.sent.wire_bytes / 1e9:.1f} GB)"
        yield "retransmitted", f"{self.sent.retransmissions:,}"
        yield "fates judged again", f"{self.records:,}"
        yield (
            "growth of a rank's memory",
            f"{self.growth / 2**20:.1f} MiB at most, from scenario to scenario",
        )

    def faults(self) -> Iterator[tuple[str, int, int]]:
        """Action, scenarios that it was drawn for, and frames that met it or events
        that happened.
        """
        for action in sorted(self.drawn | self.fired):
            yield action, self.drawn[action], self.fired[action]

    def to_dict(self) -> dict[str, Any]:
        """The coverage in types that JSON has."""
        return {
            "seconds": round(self.seconds, 1),
            "longest_seconds": round(self.longest, 1),
            "scenarios": dict(self.scenarios),
            "collectives": dict(self.collectives),
            "results_compared": self.results,
            "expected_errors": self.given_up,
            "packets": self.sent.packets,
            "wire_bytes": self.sent.wire_bytes,
            "retransmissions": self.sent.retransmissions,
            "records_judged": self.records,
            "growth_bytes": self.growth,
            "faults": {
                action: {"scenarios": drawn, "fired": fired}
                for action, drawn, fired in self.faults()
            },
            "factors": {name: dict(_ordered(values)) for name, values in self.factors.items()},
        }

    def text(self) -> str:
        """The tables, for a terminal."""
        lines = [f"{name:<26} {value}" for name, value in self.totals()]
        lines += ["", f"{'fault':<26} {'scenarios':>9} {'fired':>12}"]
        lines += [
            f"{action:<26} {drawn:>9,} {fired:>12,}" for action, drawn, fired in self.faults()
        ]
        lines += ["", "scenarios by factor"]
        lines += [f"{name:<26} " + _values(values) for name, values in self.factors.items()]
        return "\n".join(lines)

    def markdown(self, seed: int) -> str:
        """The tables, for ``docs/reliability.md``."""
        lines = [f"`testbed soak --seed {seed}`", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.totals()]
        lines += ["", "| fault | scenarios | frames or events |", "|---|--:|--:|"]
        lines += [f"| {action} | {drawn:,} | {fired:,} |" for action, drawn, fired in self.faults()]
        lines += ["", "| factor | scenarios by value |", "|---|---|"]
        lines += [f"| {name} | {_values(values)} |" for name, values in self.factors.items()]
        return "\n".join(lines)


def _factors(scenario: Scenario) -> dict[str, list[str]]:
    shape, groups, exchanges = scenario.shape, scenario.groups, scenario.exchanges
    factors: dict[str, list[str]] = {
        "hosts": [str(shape.hosts)],
        "topology": [shape.topology],
        "switch": [shape.switch],
        "mtu": [str(shape.mtu)],
        "at work at once": [str(len(scenario.tasks))],
        "faults at once": [str(len(scenario.faults))],
        "ending": [scenario.ending if scenario.killed_after is None else "controller killed"],
        "collectives in a row": [_class(task.turns, _COUNTS) for task in scenario.tasks],
        "opened and closed": [str(task.rounds) for task in scenario.tasks],
    }
    if scenario.backend == "xdp-ring":
        factors |= {
            name: [str(getattr(task.terms, name)) for task in scenario.tasks]
            for name in ("lanes", "window")
        }
        factors |= {
            name: [str(getattr(group.terms, name)) for group in groups]
            for name in ("recovery", "reorder_threshold")
        }
    sizes = [summand.elements * 4 for group in groups for summand in group.summands]
    factors["bytes of a tensor"] = [_class(size, _SIZES) for size in sizes]
    factors["aggregation"] = [exchange.aggregation for exchange in exchanges]
    factors["processing"] = [exchange.terms.processing for exchange in exchanges]
    factors["sums"] = [exchange.terms.sums for exchange in exchanges]
    factors["bound of a cache"] = [str(exchange.terms.bound) for exchange in exchanges]
    return factors | {"elements of an embedding": [str(exchange.dim) for exchange in exchanges]}


_COUNTS = {1: "1", 10: "to 10", 100: "to 100", 1000: "to 1,000", 10_000: "to 10,000"}
_SIZES = {
    0: "0",
    1 << 10: "to 1K",
    1 << 14: "to 16K",
    1 << 17: "to 128K",
    1 << 20: "to 1M",
    1 << 22: "to 4M",
}


def _class(value: int, bounds: dict[int, str]) -> str:
    """What values up to the least of these bounds are called."""
    return next(name for most, name in bounds.items() if value <= most)


def _parts(counts: Counter[str]) -> str:
    """A total and what it is made of."""
    return (
        f"{counts.total():,} ("
        + ", ".join(f"{name} {n:,}" for name, n in counts.most_common())
        + ")"
    )


def _ordered(values: Counter[str]) -> list[tuple[str, int]]:
    """By value where values are numbers, else by name."""
    return sorted(
        values.items(), key=lambda item: (int(item[0]) if item[0].isdigit() else -1, item[0])
    )


def _values(values: Counter[str]) -> str:
    return ", ".join(f"{value}: {count}" for value, count in _ordered(values))
