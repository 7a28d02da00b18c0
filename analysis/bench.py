"""What benches of collectives have measured: the figure that they draw, and the all-reduce bench of
the same machine in a run's report: ``bench.json`` in its folder, which is what ``testbed bench
allreduce -o FILE`` wrote.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from pydantic import ConfigDict, Field

from analysis.narrative import duration
from analysis.style import STYLE, save, styles_of
from testbed.collectives.registry import BACKENDS
from testbed.core.errors import SpecError
from testbed.core.files import read_object
from testbed.core.medians import Median, compare, counts, fastest
from testbed.core.numbers import format_size
from testbed.core.tables import Table, checked, path_of

__all__ = ["BENCH", "alone", "draw", "read_bench"]

BENCH = "bench.json"
LARGEST = 16 << 20  # bytes


class _Part(Table):
    """A part of the file. The file has more of them than the report shows."""

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


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw bus bandwidth by size, one line per backend, as results of nccl-tests are drawn. A bar
    is where the median is with a confidence of 95 %.

    :param rows: As the command's JSON has them; those without any bytes are only in the CSV.
    :param path: The picture; the CSV has the same name.
    """
    table = pd.DataFrame(
        {
            "backend": row["backend"],
            "size_bytes": row["size_bytes"],
            "busbw_gbps": row["busbw_gbps"],
            "low": row["busbw_gbps"] * row["time_us"]["median"] / row["time_us"]["high"],
            "high": row["busbw_gbps"] * row["time_us"]["median"] / row["time_us"]["low"],
            "count": row["iterations"],
        }
        for row in rows
    )
    drawn = table[table["busbw_gbps"] > 0]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4))
        axes = figure.subplots()
        styles = styles_of(table["backend"].unique())
        for name, line in drawn.groupby("backend", sort=False):
            colour, dash, marker = styles[str(name)]
            middle = line["busbw_gbps"]
            axes.errorbar(
                line["size_bytes"],
                middle,
                [middle - line["low"], line["high"] - middle],
                color=colour,
                linestyle=dash,
                marker=marker,
                fillstyle="full" if "@" in str(name) else "none",
                alpha=0.5 if "@" in str(name) else 1,
                capsize=3,
                label=str(name),
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = sorted(drawn["size_bytes"].unique())
        axes.set_xticks(sizes, [format_size(int(size)) for size in sizes], rotation=45)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("size of the tensor")
        axes.set_ylabel("bus bandwidth (GB/s)")
        axes.legend(frameon=False, fontsize=9, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
    save(figure, table, path, (path.suffix.removeprefix(".") or "png",))


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
