"""The all-reduce bench of the same machine, shown in a run's report: ``bench.json`` in its folder,
which is what ``testbed bench allreduce -o FILE`` wrote.
"""

import json
from pathlib import Path
from typing import Any

from analysis.narrative import duration
from testbed.collectives.registry import BACKENDS
from testbed.core.errors import SpecError
from testbed.core.files import read_regular
from testbed.core.numbers import format_size

__all__ = ["BENCH", "alone", "read_bench"]

BENCH = "bench.json"
LARGEST = 16 << 20  # bytes


def read_bench(path: Path) -> dict[str, Any]:
    """Read what the bench wrote.

    :raises SpecError: The file cannot be read, or is none of the bench's.
    """
    try:
        found = json.loads(read_regular(path, LARGEST))
        {(row["backend"], row["size_bytes"], row["time_us"]["median"]) for row in found["rows"]}
    except (ValueError, RecursionError, KeyError, TypeError, OSError) as error:
        what = "must be a file of `testbed bench allreduce -o FILE`"
        raise SpecError(f"--bench {path}: cannot be read: {error!r}: {what}") from error
    result: dict[str, Any] = found
    return result


def alone(folder: Path) -> dict[str, Any] | None:
    """Return the report's table of all-reduces without a training around them, None without a
    bench: a row for each size, with the median of each backend, and how many times as fast the best
    in-kernel backend was as the best over sockets.
    """
    if not (folder / BENCH).exists():
        return None
    found = read_bench(folder / BENCH)
    backends = list(dict.fromkeys(row["backend"] for row in found["rows"]))
    times: dict[int, dict[str, float]] = {}
    for row in found["rows"]:
        times.setdefault(row["size_bytes"], {})[row["backend"]] = row["time_us"]["median"] * 1e-6
    rows = []
    for size, medians in times.items():
        kernel = [time for name, time in medians.items() if _in_kernel(name)]
        sockets = [time for name, time in medians.items() if not _in_kernel(name)]
        rows.append(
            {
                "size": format_size(size),
                "times": [duration(medians[name]) if name in medians else "" for name in backends],
                "best": [medians.get(name) == min(medians.values()) for name in backends],
                "ratio": min(sockets) / min(kernel) if kernel and sockets else None,
            }
        )
    about = {key: found["environment"].get(key) for key in ("hosts", "mtu", "lanes")}
    return {"backends": backends, "rows": rows, **about}


def _in_kernel(name: str) -> bool:
    plain = name.partition("@")[0]
    return plain in BACKENDS and BACKENDS[plain].needs == "xdp"
