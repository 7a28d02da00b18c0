"""Where the CPU time of a bench went: shares by class, of all nodes, inside the timed iterations.
Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from testbed.bench.exchange_session import Measured
from testbed.bench.observed import Observed, Overhead
from testbed.bench.row import Row
from testbed.core.numbers import format_size
from testbed.telemetry.classify import UNCLASSIFIED, load_classes
from testbed.telemetry.profile import Count, Profile

__all__ = ["LIMIT", "Column", "columns", "lines", "shares"]

LIMIT = 0.05
"""The overhead that is noted as too high, unless it may be noise."""


@dataclass(frozen=True)
class Column:
    """What was observed of one thing that was measured.

    :param what: Its case, such as a size.
    :param overhead: By what share telemetry made it longer; None: not measured.
    """

    name: str
    what: str
    observed: Observed
    overhead: Overhead | None = None


def columns(rows: Iterable[Row | Measured]) -> list[Column]:
    """Columns of those rows of a bench that were observed."""
    found = []
    for row in rows:
        name, what = (
            (row.backend, format_size(row.size))
            if isinstance(row, Row)
            else (row.exchange, row.words)
        )
        if row.observed:
            found.append(Column(name, what, row.observed, row.overhead))
    return found


def shares(profile: Profile) -> dict[str, float]:
    """The share of each class in the CPU time of all nodes, softirq included; the testbed's
    programs are one class.
    """
    found: dict[str, float] = {}
    for (_, name), seconds in profile.cpu(inside=True).items():
        plain = name.partition(".")[0]
        found[plain] = found.get(plain, 0.0) + seconds
    total = sum(found.values()) or 1.0
    return {name: seconds / total for name, seconds in found.items()}


def lines(seen: Sequence[Column]) -> list[str]:
    """A table of shares in percent, one column for each backend and case; nothing without
    telemetry.
    """
    if not seen:
        return []
    classes = load_classes()
    each = [shares(row.observed.profile) for row in seen]
    names = [name for name in [*classes.names, UNCLASSIFIED] if any(name in one for one in each)]

    widths = [max(10, len(row.name) + 2, len(row.what) + 2) for row in seen]

    def line(title: str, cells: Sequence[str]) -> str:
        return f"#   {title:<28}" + "".join(
            f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
        )

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    network = [sum(v for k, v in one.items() if classes.part(k) == "network") for one in each]
    softirq = [_softirq(row) for row in seen]
    overheads = [row.overhead for row in seen]
    table = [
        "# CPU time of all nodes inside the timed iterations, % by class:",
        line("", [row.name for row in seen]),
        line("", [row.what for row in seen]),
        *(
            line(classes.titles.get(name, name), [percent(one.get(name)) for one in each])
            for name in names
        ),
        line("the kernel's network stack", list(map(percent, network))),
        line("in softirq", list(map(percent, softirq))),
        line("samples", [str(_samples(row)) for row in seen]),
        line("telemetry's overhead", [percent(each.share if each else None) for each in overheads]),
        line("  at least", [percent(each.low if each else None) for each in overheads]),
        line("  at most", [percent(each.high if each else None) for each in overheads]),
    ]
    table += _count_lines(seen, line)
    high = [each for each in overheads if each and each.share > LIMIT]
    if any(each.low > 0 for each in high):
        table.append(f"# telemetry slowed some rows down by more than {100 * LIMIT:g} %")
    if any(each.low <= 0 for each in high):
        table.append(
            "# some overheads are not known better than the machine's noise: more iterations (-n)"
            " tell"
        )
    if lost := sum(row.observed.profile.lost for row in seen):
        table.append(f"# {lost} samples were lost")
    return table


def _count_lines(rows: Sequence[Column], line: Callable[[str, Sequence[str]], str]) -> list[str]:
    def cells(kind: str, of: Callable[[Count], float], detail: str = "") -> list[str]:
        return [f"{_per_collective(row, kind, of, detail):.1f}" for row in rows]

    return [
        "# Per collective, all nodes together, counted in a turn of its own:",
        line("system calls", cells("syscall", _count)),
        line("KiB through system calls", cells("copied", lambda each: each.total / 1024)),
        line("context switches", cells("off_cpu", _count)),
        line("  preempted", cells("off_cpu", _count, "preempted")),
        line("wake-ups", cells("wakeup", _count)),
        line("  mean latency (us)", [f"{_latency(row):.1f}" for row in rows]),
        line("softirq (us)", cells("softirq", lambda each: each.total * 1e6)),
        line("runs of programs", cells("program", _count)),
        line("skbs sent", cells("transmit", _count)),
        line("TCP segments again", cells("retransmit", _count)),
        line("drops", cells("drop", _count)),
    ]


def _count(each: Count) -> float:
    return each.number


def _found(row: Column, kind: str, detail: str = "") -> list[Count]:
    return [
        each
        for each in row.observed.counts.counts
        if each.kind == kind and (not detail or each.detail == detail)
    ]


def _per_collective(row: Column, kind: str, of: Callable[[Count], float], detail: str) -> float:
    return sum(map(of, _found(row, kind, detail))) / row.observed.counted


def _latency(row: Column) -> float:
    found = _found(row, "wakeup")
    return sum(each.total for each in found) / (sum(each.number for each in found) or 1) * 1e6


def _softirq(row: Column) -> float:
    found = row.observed.profile.cpu(inside=True)
    return sum(v for (softirq, _), v in found.items() if softirq) / (sum(found.values()) or 1.0)


def _samples(row: Column) -> int:
    profile = row.observed.profile
    return round(sum(profile.cpu(inside=True).values()) * profile.rate)
