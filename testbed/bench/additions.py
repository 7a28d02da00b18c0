"""What it costs a BPF program to add an element to a sum, by kind of lane: ``bpf/additions.bpf.c``
under ``BPF_PROG_TEST_RUN``, without a network.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from testbed.core.errors import SpecError
from testbed.kernel import BpfObject
from testbed.kernel.abi import constant

__all__ = ["KINDS", "OFFSET", "WORDS", "Row", "check", "header_line", "measure", "row_line"]

WORDS = constant("ADDITIONS_WORDS")
OFFSET = constant("ADDITIONS_OFFSET")

KINDS = {
    "int16": ("add_packed", 4),
    "int32": ("add_packed", 2),
    "int32, singly": ("add_int32", 2),
    "float32": ("add_float32", 2),
}
"""The program of each kind of lane, and how many of them are in a 64-bit word."""

_MOST_REPEAT = 1_000_000
_MOST_TRIALS = 1000


@dataclass(frozen=True)
class Row:
    """One kind of lane.

    :param kind: A key of :data:`KINDS`.
    :param elements: Of the payload.
    :param run_ns: Of a run of the program, nanoseconds: the median of all trials.
    :param idle_ns: Of a run of the program that reads the payload and adds nothing.
    """

    kind: str
    elements: int
    run_ns: float
    idle_ns: float

    @property
    def element_ns(self) -> float:
        """Nanoseconds to add an element: the difference of both runs, per element; at least 0."""
        return max(0.0, self.run_ns - self.idle_ns) / self.elements

    def to_dict(self) -> dict[str, object]:
        """Return what the JSON has of it."""
        return {**asdict(self), "element_ns": self.element_ns}


def check(repeat: int, trials: int) -> None:
    """Check the options of :func:`measure`.

    :raises SpecError: One is out of range.
    """
    if not 1 <= repeat <= _MOST_REPEAT:
        raise SpecError(f"--repeat: {repeat}: must be 1 to {_MOST_REPEAT}")
    if not 1 <= trials <= _MOST_TRIALS:
        raise SpecError(f"--trials: {trials}: must be 1 to {_MOST_TRIALS}")


def measure(repeat: int, trials: int) -> list[Row]:
    """Time each kind of lane, in turns, on normally distributed numbers.

    To integers these bits are other numbers, but only additions of float32 take a time that
    depends on them.

    :param repeat: Runs of each program per trial; the kernel takes their mean.
    :raises KernelError: The kernel refuses a program.
    """
    random = np.random.default_rng(0)
    payload, values = random.standard_normal((2, 2 * WORDS)).astype(np.float32)
    frame = bytes(OFFSET) + payload.tobytes()
    runs: dict[str, list[int]] = {}
    with BpfObject("additions") as programs:
        programs.maps["input"].view(np.float32)[:] = values
        for _ in range(trials):
            for name, program in programs.programs.items():
                runs.setdefault(name, []).append(program.test_run(frame, repeat).duration_ns)
    times = {name: float(median(each)) for name, each in runs.items()}
    return [
        Row(kind, lanes * WORDS, times[program], times["add_nothing"])
        for kind, (program, lanes) in KINDS.items()
    ]


def header_line() -> str:
    """Name the columns of :func:`row_line`."""
    return f"# {'lanes':<13} {'elements':>8} {'run_ns':>8} {'ns/element':>10} {'ratio':>6}"


def row_line(row: Row, rows: Sequence[Row]) -> str:
    """One kind: elements, time of a run, time per element, and that divided by the first kind's."""
    first = rows[0].element_ns
    ratio = f"{row.element_ns / first:.1f}" if first else "-"
    return (
        f"  {row.kind:<13} {row.elements:>8} {row.run_ns:>8.0f} {row.element_ns:>10.3f} {ratio:>6}"
    )
