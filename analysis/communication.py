"""Where the time of communication goes, piece by piece: by the wall clock, as far as the clocks of
the ranks' processes tell, and by the CPU, as far as telemetry has sampled it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from analysis.cpu_time import breakdown
from analysis.style import CLASS_COLOURS, PART_COLOURS, bars
from analysis.summary import epoch_split, phases_of
from analysis.workload import entry_of
from testbed.results import Run
from testbed.telemetry.classify import UNCLASSIFIED, load_classes

__all__ = ["CLOCK", "CPU", "Piece", "clock_figure", "clock_pieces", "cpu_figure", "cpu_pieces"]


@dataclass(frozen=True)
class Piece:
    """A piece of the time in communication.

    :param meaning: What happens in it, for who reads of it for the first time.
    """

    title: str
    meaning: str
    colour: str


CLOCK = {
    "last_rank": Piece(
        "waiting for the last rank",
        "until all ranks have entered; no backend can shorten it",
        "#d9d9d9",
    ),
    "wait": Piece(
        "waiting for data",
        "all have entered; what peers send is not here yet",
        PART_COLOURS["wait"],
    ),
    "quantize": Piece(
        "quantize",
        "floats become what travels, integers as a rule",
        PART_COLOURS["quantize"],
    ),
    "send": Piece("send", "the process hands its rows to the kernel", PART_COLOURS["send"]),
    "communicate": Piece(
        "move and add",
        "the process sends, receives and adds, and the kernel works in its system calls",
        PART_COLOURS["communicate"],
    ),
    "aggregate": Piece("aggregate", "the rows of neighbours are added", PART_COLOURS["aggregate"]),
    "dequantize": Piece("dequantize", "sums become floats again", PART_COLOURS["dequantize"]),
    "all_reduce": Piece(
        "all-reduce", "gradients are summed over ranks", PART_COLOURS["all_reduce"]
    ),
    "untold": Piece(
        "move, add and wait for data",
        "this backend, or the simulation, does not tell them apart",
        "#cc79a7",
    ),
    "around": Piece(
        "around it",
        "the call itself, outside the backend's clocks; on a busy machine, waiting for a processor",
        PART_COLOURS["other"],
    ),
}
"""Pieces of the wall-clock time, in the order in which they are shown."""

CPU = {
    "quantize": Piece(
        "quantize, dequantize", "floats become integers and back", CLASS_COLOURS["quantize"]
    ),
    "reduce": Piece(
        "collective in user space",
        "the backend's library, which adds and polls",
        CLASS_COLOURS["reduce"],
    ),
    "program": Piece(
        "testbed's programs", "XDP and TC programs, which add and forward", CLASS_COLOURS["program"]
    ),
    "copy": Piece("copying", "between user space and the kernel", CLASS_COLOURS["copy"]),
    "stack": Piece(
        "kernel's network stack",
        "sockets, TCP, IP, queues, drivers and switches, without copying",
        CLASS_COLOURS["tcp"],
    ),
    "scheduler": Piece(
        "scheduling and wake-ups",
        "putting processes to sleep and waking them up",
        CLASS_COLOURS["scheduler"],
    ),
    "kernel": Piece(
        "rest of the kernel",
        "entering system calls, interrupts, timers, page faults",
        CLASS_COLOURS["interrupt"],
    ),
    "user": Piece(
        "rest of user space",
        "the interpreter, which calls the backend, and libraries",
        CLASS_COLOURS["python"],
    ),
    UNCLASSIFIED: Piece(UNCLASSIFIED, "what no pattern names", CLASS_COLOURS[UNCLASSIFIED]),
}
"""Pieces of the CPU time, likewise."""


SLACK = 0.01
"""By what share phases may exceed the whole, as they are read from another clock."""


def clock_pieces(run: Run) -> pd.DataFrame:
    """Return seconds in communication by piece (`CLOCK`), one row per backend: of the median epoch,
    mean over ranks.

    They add up to `communication` of `analysis.summary.epoch_split`. A rank waits for the last one
    no longer than it waits at all: what it sends until then is no waiting. Of a backend whose
    clocks do not tell waiting from moving data, or exceed the whole, all time until the last rank
    enters counts as waiting.
    """
    split = epoch_split(run)
    phases = phases_of(run)
    rows = {}
    for name, row in split.iterrows():
        whole = float(row["communication"])
        found = {phase: float(row[phase]) for phase in phases}
        tells = entry_of(run, str(name)).splits and "wait" in found
        if tells and sum(found.values()) <= whole * (1 + SLACK):
            found["last_rank"] = float(row["last_rank"])
            found["wait"] -= found["last_rank"]
        else:
            found = {each: found.get(each, 0.0) for each in ("quantize", "dequantize")}
            own = sum(found.values())
            if own > whole:
                found, own = {}, 0.0
            found["last_rank"] = min(float(row["straggler"]), whole - own)
            found["untold"] = whole - own - found["last_rank"]
        found["around"] = whole - sum(found.values())
        rows[name] = {each: value * (value > 1e-9 * whole) for each, value in found.items()}
    table = pd.DataFrame.from_dict(rows, orient="index").fillna(0.0)
    ordered = [*(each for each in CLOCK if each in table), *table.columns.difference(list(CLOCK))]
    return table[ordered].loc[:, lambda each: each.any()]


def cpu_pieces(run: Run) -> pd.DataFrame:
    """Return CPU seconds in communication by piece (`CPU`), one row per backend: of all hosts and
    switches, divided by the number of ranks; the mean of sampled epochs.

    Empty without telemetry.
    """
    table, classes = breakdown(run, inside=True), load_classes()
    if table.empty:
        return table
    rest = {"network": "stack", "kernel": "kernel", "user": "user", "program": "program"}
    piece = {
        name: name if name in CPU else rest.get(classes.part(name) or "", UNCLASSIFIED)
        for name in table.columns.get_level_values("class")
    }
    sums = table.T.groupby(lambda column: piece[column[0]]).sum().T
    sums = sums.div(run.frame["rank"].nunique())
    return sums[[each for each in CPU if each in sums]].loc[:, lambda each: each.any()]


def clock_figure(table: pd.DataFrame) -> tuple[pd.DataFrame, Figure]:
    """Stack the wall-clock time in communication by piece, one bar per row.

    :param table: As of `clock_pieces`.
    """
    return _figure(table, CLOCK, "wall clock, median epoch, mean over ranks")


def cpu_figure(table: pd.DataFrame) -> tuple[pd.DataFrame, Figure]:
    """Stack the CPU time in communication by piece, one bar per row.

    :param table: As of `cpu_pieces`.
    """
    return _figure(table, CPU, "CPU time of all hosts and switches, per rank and sampled epoch")


def _figure(
    table: pd.DataFrame, pieces: Mapping[str, Piece], label: str
) -> tuple[pd.DataFrame, Figure]:
    figure = Figure(figsize=(8, 1.1 + 0.55 * len(table)))
    styles = {name: (piece.title, piece.colour) for name, piece in pieces.items()}
    bars(figure.subplots(), table, styles, label)
    return table.rename_axis("backend").reset_index(), figure
