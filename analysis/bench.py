"""The all-reduce bench of the same machine, shown in a run's report: ``bench.json`` in its folder,
which is what ``testbed bench allreduce -o FILE`` wrote.
"""

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from analysis.narrative import duration
from testbed.collectives.registry import BACKENDS
from testbed.core.errors import SpecError
from testbed.core.files import read_object
from testbed.core.medians import Median, compare, counts, fastest
from testbed.core.numbers import format_size
from testbed.core.tables import Table, checked, path_of

__all__ = ["BENCH", "alone", "read_bench"]

BENCH = "bench.json"
LARGEST = 16 << 20  # bytes


class _Part(Table):
    """A part of the file, of which more is there than the report shows."""

    model_config = ConfigDict(extra="ignore")


class _Time(_Part):
    median: float = Field(gt=0)
    low: float = Field(default=1.0, gt=0)
    high: float = Field(default=1.0, gt=0)


class _Row(_Part):
    backend: str
    size_bytes: int = Field(ge=1, lt=1 << 62)
    time_us: _Time
    iterations: int = Field(default=2, ge=1)


class _File(_Part):
    environment: dict[str, Any] = {}
    rows: list[_Row] = Field(min_length=1)


def read_bench(path: Path) -> dict[str, Any]:
    """Read what the bench wrote.

    :raises SpecError: The file cannot be read, or is none of the bench's.
    """
    try:
        found = read_object(path, LARGEST)
        checked(_File, found, lambda place: f"{path_of(place)} =")
    except SpecError as error:
        what = "must be a file of `testbed bench allreduce -o FILE`"
        first = str(error).splitlines()[0]
        raise SpecError(f"--bench {path}: cannot be read: {first}: {what}") from error
    return found


def alone(folder: Path) -> dict[str, Any] | None:
    """Return the report's table of all-reduces without a training around them, None without a
    bench: a row for each size, with the median of each backend, and how many times as fast the best
    in-kernel backend was as the best over sockets.
    """
    if not (folder / BENCH).exists():
        return None
    found = read_bench(folder / BENCH)
    backends = list(dict.fromkeys(row["backend"] for row in found["rows"]))
    times: dict[int, dict[str, Median]] = {}
    for row in found["rows"]:
        times.setdefault(row["size_bytes"], {})[row["backend"]] = _median(row)
    rows = []
    for size, medians in times.items():
        kernel = {name: time for name, time in medians.items() if _in_kernel(name)}
        sockets = {name: time for name, time in medians.items() if name not in kernel}
        shown = {name: duration(time.value) for name, time in medians.items()}
        how = None
        if kernel and sockets:
            how = compare(kernel[fastest(kernel)[0]], sockets[fastest(sockets)[0]])
        rows.append(
            {
                "size": format_size(size),
                "times": [shown.get(name, "") for name in backends],
                "best": [name in fastest(medians) for name in backends],
                "ratio": f"{how.ratio:.2f}×{' (tie)' if how.tie else ''}" if how else "",
            }
        )
    about: dict[str, Any] = {
        "count": counts(each for row in times.values() for each in row.values())
    }
    about |= {key: found.get("environment", {}).get(key) for key in ("hosts", "mtu", "lanes")}
    return {"backends": backends, "rows": rows, **about}


def _median(row: dict[str, Any]) -> Median:
    """Return the median of a row; files of before have no interval, and their median stands for
    itself.
    """
    time = row["time_us"]
    ends = (time.get("low", time["median"]), time.get("high", time["median"]))
    return Median(
        time["median"] * 1e-6, ends[0] * 1e-6, ends[1] * 1e-6, int(row.get("iterations", 2))
    )


def _in_kernel(name: str) -> bool:
    plain = name.partition("@")[0]
    return plain in BACKENDS and BACKENDS[plain].needs == "xdp"
