"""Where the CPU time of a bench went: shares by class, of all nodes, inside the timed iterations.
Pure.
"""

from collections.abc import Callable, Sequence

from testbed.bench.row import Row
from testbed.core.numbers import format_size
from testbed.telemetry.classify import UNCLASSIFIED, load_classes
from testbed.telemetry.profile import Count

__all__ = ["LIMIT", "lines", "shares"]

LIMIT = 0.05
"""The overhead that is noted as too high."""


def shares(row: Row) -> dict[str, float]:
    """The share of each class in the CPU time of all nodes, softirq included; the testbed's
    programs are one class.
    """
    assert row.observed
    found: dict[str, float] = {}
    for (_, name), seconds in row.observed.profile.cpu(inside=True).items():
        plain = name.partition(".")[0]
        found[plain] = found.get(plain, 0.0) + seconds
    total = sum(found.values()) or 1.0
    return {name: seconds / total for name, seconds in found.items()}


def lines(rows: Sequence[Row]) -> list[str]:
    """A table of shares in percent, one column for each backend and size; nothing without
    telemetry.
    """
    seen = [row for row in rows if row.observed]
    if not seen:
        return []
    classes = load_classes()
    each = [shares(row) for row in seen]
    names = [name for name in [*classes.names, UNCLASSIFIED] if any(name in one for one in each)]

    def line(title: str, cells: Sequence[str]) -> str:
        return f"#   {title:<28}" + "".join(f"{cell:>10}" for cell in cells)

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    network = [sum(v for k, v in one.items() if classes.part(k) == "network") for one in each]
    softirq = [_softirq(row) for row in seen]
    table = [
        "# CPU time of all nodes inside the timed iterations, % by class:",
        line("", [row.backend for row in seen]),
        line("", [format_size(row.size) for row in seen]),
        *(
            line(classes.titles.get(name, name), [percent(one.get(name)) for one in each])
            for name in names
        ),
        line("the kernel's network stack", list(map(percent, network))),
        line("in softirq", list(map(percent, softirq))),
        line("samples", [str(_samples(row)) for row in seen]),
        line("telemetry's overhead", [percent(row.overhead) for row in seen]),
    ]
    table += _count_lines(seen, line)
    if any(row.overhead is not None and row.overhead > LIMIT for row in seen):
        table.append(f"# telemetry slowed some rows down by more than {100 * LIMIT:g} %")
    if lost := sum(row.observed.profile.lost for row in seen if row.observed):
        table.append(f"# {lost} samples were lost")
    return table


def _count_lines(rows: Sequence[Row], line: Callable[[str, Sequence[str]], str]) -> list[str]:
    def cells(kind: str, of: Callable[[Count], float], detail: str = "") -> list[str]:
        return [f"{_per_all_reduce(row, kind, of, detail):.1f}" for row in rows]

    return [
        "# Per all-reduce, all nodes together, counted in a turn of its own:",
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


def _found(row: Row, kind: str, detail: str = "") -> list[Count]:
    assert row.observed
    return [
        each
        for each in row.observed.counts.counts
        if each.kind == kind and (not detail or each.detail == detail)
    ]


def _per_all_reduce(row: Row, kind: str, of: Callable[[Count], float], detail: str) -> float:
    assert row.observed
    return sum(map(of, _found(row, kind, detail))) / row.observed.counted


def _latency(row: Row) -> float:
    found = _found(row, "wakeup")
    return sum(each.total for each in found) / (sum(each.number for each in found) or 1) * 1e6


def _softirq(row: Row) -> float:
    assert row.observed
    found = row.observed.profile.cpu(inside=True)
    return sum(v for (softirq, _), v in found.items() if softirq) / (sum(found.values()) or 1.0)


def _samples(row: Row) -> int:
    assert row.observed
    profile = row.observed.profile
    return round(sum(profile.cpu(inside=True).values()) * profile.rate)
