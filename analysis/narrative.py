"""Which backend was faster and why, in words; every number and every claim comes from the run's
table.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.communication import CLOCK, CPU, clock_pieces, cpu_pieces
from analysis.epochs import medians_of
from analysis.summary import baseline, epoch_split, events, records_lost, traffic
from analysis.workload import in_kernel, report_of
from testbed.core.medians import Comparison, Median, compare, counts, fastest
from testbed.faults.spec import meet_frames, parse_fault
from testbed.host.machine import caution
from testbed.plan import MAX_MTU
from testbed.results import Run

__all__ = [
    "Step",
    "answer",
    "cautions",
    "duration",
    "frames",
    "next_steps",
    "offloads",
    "simulation_of",
    "times",
    "who",
]


def answer(run: Run) -> list[str]:
    """Return the report's first sentences: the fastest backend, its lead, and the cause of the
    difference.
    """
    split = epoch_split(run)
    if len(split) == 1:
        only = split.index[0]
        return [
            *cautions(run),
            (
                f"{only} was the only backend of this run: an epoch took"
                f" {duration(split.loc[only, 'epoch'])}, {share(run, only)} of it in"
                f" {report_of(run).noun}. A comparison needs a second backend."
            ),
            *_largest(run),
        ]
    epochs = medians_of(run, "epoch_time")
    return [
        *cautions(run),
        who(run, epochs),
        *_against_sockets(run, epochs),
        *_why(run, split, epochs),
        *_largest(run),
    ]


@dataclass(frozen=True)
class Step:
    """What to try next: a command, and what it shows."""

    command: str
    why: str


def next_steps(run: Run) -> list[Step]:
    """Return what to try next, with the command of this run: what it has not shown yet."""
    scenario = run.manifest["scenario"]
    words = run.manifest.get("command") or ["testbed", "run", "SCENARIO.toml"]
    if words[1] != "run":  # of a sweep, or an archive: what it varies is elsewhere
        return []
    simulated = simulation_of(run) is not None
    begin = f"{'' if simulated else 'sudo '}.venv/bin/{shlex.join(words)}"
    steps = []
    if not scenario["faults"]:
        steps.append(Step(f"{begin} --fault 'drop p=0.01'", "loses one frame in a hundred"))
    if not (simulated or scenario.get("telemetry", {}).get("enabled")):
        steps.append(Step(f"{begin} --telemetry", "shows where the CPU time goes"))
    if scenario["fabric"]["mtu"] < MAX_MTU:
        setting = f"--set fabric.mtu={MAX_MTU}"
        steps.append(Step(f"{begin} {setting}", "sends the largest frames that links can carry"))
    return steps or [Step(f"{begin} --seed 2", "repeats it with other random choices")]


def who(run: Run, epochs: Mapping[str, Median]) -> str:
    """Name the fastest, unless others cannot be told from it."""
    best, *others = sorted(epochs, key=lambda name: epochs[name].value)
    took = duration(epochs[best].value)
    rivals = []
    for name in others:
        how = compare(epochs[best], epochs[name])
        rivals.append(
            f"{name} {duration(epochs[name].value)} ({how.ratio:.2f}×{', ' * how.tie}{how.why})"
        )
    if len(fastest(epochs)) > 1:
        said = f"No backend was fastest for certain: the median epoch took {took} with {best}"
    else:
        said = f"{best} was fastest: its median epoch took {took}"
    return f"{said}, that with {', '.join(rivals)}; {_of(run, epochs)}."


def _of(run: Run, medians: Mapping[str, Median]) -> str:
    """Say how many values medians are of."""
    what = "trial" if run.frame["trial"].nunique() > 1 else "epoch"
    one = all(each.count == 1 for each in medians.values())
    return f"medians are of {counts(medians.values())} {what}{'' if one else 's'} each"


def _against_sockets(run: Run, epochs: Mapping[str, Median]) -> Iterator[str]:
    base, noun = baseline(run), report_of(run).noun
    inside = medians_of(run, "communication_time")
    for name in epochs:
        if in_kernel(run, name) and base is not None:
            epoch = times(compare(epochs[name], epochs[base]))
            reduce = times(compare(inside[name], inside[base]))
            yield (
                f"Against the best socket baseline, {base}, an epoch with {name} was {epoch} and"
                f" its {noun} {reduce}."
            )


def _why(run: Run, split: pd.DataFrame, epochs: Mapping[str, Median]) -> Iterator[str]:
    report = report_of(run)
    best = fastest(epochs)[0]
    # Compare kernel with sockets, whichever is faster; if one is missing, compare first with
    # second.
    others = split["epoch"].drop(best)
    rivals = [name for name in others.index if in_kernel(run, name) != in_kernel(run, best)]
    rival = str((others[rivals] if rivals else others).idxmin())
    gain = split.loc[rival, "epoch"] - split.loc[best, "epoch"]
    comparison = compare(epochs[best], epochs[rival])
    if comparison.tie:
        if simulation_of(run):
            yield (
                f"The {duration(gain)} between {best} and {rival} are less than what the models"
                " leave out: treat them as equal."
            )
            return
        yield (
            f"The {duration(gain)} between {best} and {rival} are {comparison.why}: treat them as"
            " equal."
        )
        return
    # What runs beside computing counts only as far as computing does not hide it.
    columns = list(report.communication) if report.overlapped else ["communication"]
    reduce = split.loc[rival, columns].sum() - split.loc[best, columns].sum()
    compute = (
        split.loc[rival, list(report.compute)].sum() - split.loc[best, list(report.compute)].sum()
    )
    where = f"waiting for {report.noun}" if report.overlapped else report.noun
    beside = ", some of it beside communication" if report.overlapped else ""
    yield (
        f"Where the difference lies: of the {duration(gain)} per epoch between {best} and {rival},"
        f" {signed(reduce)} are in {where}, {signed(compute)} in computing, the same work in"
        f" both cases{beside}, and {signed(gain - reduce - compute)} in neither."
    )
    if not simulation_of(run):
        yield _noise(epochs, best, rival)
    late = split.loc[rival, "straggler"] - split.loc[best, "straggler"]
    exchange = split.loc[rival, "exchange"] - split.loc[best, "exchange"]
    yield (
        f"Within {report.noun}, {signed(late)} are time until the last rank entered, "
        f"and {signed(exchange)} are the exchange itself."
    )
    yield from _sent(run, best, rival)


def _largest(run: Run) -> Iterator[str]:
    """Name the largest piece of communication with each backend."""
    noun, cpu = report_of(run).noun, cpu_pieces(run)
    for what, table, pieces in ((noun, clock_pieces(run), CLOCK), ("its CPU time", cpu, CPU)):
        said = []
        for name, row in table.iterrows():
            most, whole = str(row.idxmax()), row.sum()
            title = pieces[most].title if most in pieces else most
            share = row[most] / whole if whole else 0.0
            said.append(f"with {name} {title} ({share:.0%} of {duration(whole)})")
        if said:
            *first, last = said
            words = f"{', '.join(first)} and {last}" if first else last
            yield f"The largest piece of {what} is {words}."


def _sent(run: Run, best: str, rival: str) -> Iterator[str]:
    report, sent, cpu = report_of(run), traffic(run), medians_of(run, "communication_cpu_time")
    yield (
        f"{report.every.capitalize()}'s {report.noun} put"
        f" {sent.loc[best, 'wire_bytes'] / 1e6:.2f} MB on the wire with {best} and"
        f" {sent.loc[rival, 'wire_bytes'] / 1e6:.2f} MB with {rival};"
        f" {sent.loc[best, 'retransmissions_total']:,.0f} and"
        f" {sent.loc[rival, 'retransmissions_total']:,.0f} packets were sent again in all;"
        f" the ranks' processes spent {duration(cpu[best].value)} and"
        f" {duration(cpu[rival].value)} of CPU time in it per epoch."
    )


def _noise(epochs: Mapping[str, Median], best: str, rival: str) -> str:
    """Say how reliable these differences are, judged by the spread of a single backend's epochs."""
    text = (
        "Each of these numbers compares two epochs, the median one of each backend, and so holds"
        " their noise"
    )
    fast, slow = epochs[best], epochs[rival]
    spread = max(fast.high - fast.value, slow.value - slow.low)  # towards each other
    if spread > 0:
        text += f": the median epoch of one backend is known to within {duration(spread)}"
    return f"{text}."


def cautions(run: Run) -> Iterator[str]:
    """Say what else may have had a part in what was measured."""
    busy = caution(run.manifest)
    if busy and not simulation_of(run):
        yield busy
    for fault, turns in events(run).groupby("fault", sort=False):
        if (turns["happened"] < turns["turns"]).any():
            happened = ", ".join(
                f"{row.happened} of {row.turns} turns with {name}"
                for (_, name), row in turns.iterrows()
            )
            yield (
                f"Caution: the fault '{fault}' happened in {happened}; other turns ended before its"
                " time."
            )
    if lost := records_lost(run):
        counted = ", ".join(f"{count:,} of {name}" for name, count in lost.items())
        yield (
            f"Caution: faults.parquet lacks {sum(lost.values()):,} records ({counted}), which"
            " arrived faster than they could be written; faults are counted all the same."
        )


def simulation_of(run: Run) -> str | None:
    """Return what a simulated run computed with; None if it was emulated."""
    hardware = run.manifest.get("hardware")
    return f"simulated, hardware {hardware['name']}" if hardware else None


def offloads(run: Run) -> str:
    """Say what offloads sockets had."""
    if simulation_of(run):
        return "up to 64 KiB of segments a call for sockets"
    if met_one_by_one(run):
        return (
            "checksum and segmentation offloads off for sockets, so that faults meet frames as a"
            " wire carries them"
        )
    return f"offloads {run.manifest['scenario']['fabric']['offload']} for sockets"


def frames(run: Run) -> str:
    """Say what the sockets' packet counts mean."""
    if simulation_of(run):
        return "in a simulation each is a frame"
    if run.manifest["scenario"]["fabric"]["offload"] == "on" and not met_one_by_one(run):
        return "with offloads on, one may carry up to 64 KiB"
    return "with segmentation offloads off, each is a frame"


def met_one_by_one(run: Run) -> bool:
    """Tell whether the fault engine was in force, which turns off the hosts' offloads."""
    return meet_frames(map(parse_fault, run.manifest["scenario"]["faults"]))


def duration(seconds: float) -> str:
    """Write a time with three digits and a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if abs(seconds) >= 1e-9 else "0 s"


def signed(seconds: float) -> str:
    """Write a difference of times: what the slower one took more, with its sign."""
    if duration(seconds) == "0 s":
        return "0 s"
    return f"{'−' if seconds < 0 else '+'}{duration(abs(seconds))}"


def times(comparison: Comparison) -> str:
    """Say how many times as fast one is as another."""
    if comparison.tie:
        return f"as fast as far as can be told ({comparison.ratio:.2f}×, {comparison.why})"
    ratio = comparison.ratio
    return f"{ratio:.2f}× as fast" if ratio > 1 else f"{1 / ratio:.2f}× as slow"


def share(run: Run, backend: str) -> str:
    """Write the share of an epoch that communication takes."""
    return f"{medians_of(run, 'communication_share')[backend].value:.0%}"
