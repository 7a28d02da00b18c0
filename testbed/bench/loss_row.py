"""One cell of ``testbed bench faults``: a backend at a rate of loss, and the figures derived from
it. Pure.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bench.observed import Observed
from testbed.comm.collective import Counters
from testbed.core.medians import Median
from testbed.faults.identity import KINDS
from testbed.faults.rule_table import Action

__all__ = ["Cell", "recovery_times"]

_CARRIERS = (KINDS["reduce"], KINDS["result"])


@dataclass(frozen=True)
class Cell:
    """What was measured.

    :param backend: The backend and its variant, such as ``xdp-ring/origin``.
    :param size: Bytes of the tensor.
    :param loss: Share of frames that are dropped, 0..1; None: the fault engine, which takes time
        per frame, is not attached.
    :param times: Times of the iterations, seconds.
    :param sent: What all ranks have sent, in all iterations.
    :param lost: Frames that were dropped in all iterations.
    :param recoveries: Seconds from a loss until the lost data arrived; see `recovery_times`. Empty
        if not measured.
    :param wrong: Elements of results whose error exceeds the backend's bound.
    :param failure: Why there are fewer iterations than requested; None if there are not.
    :param observed: Iterations with telemetry, if there were any.
    """

    backend: str
    hosts: int
    size: int
    loss: float | None
    times: tuple[float, ...]
    sent: Counters
    lost: int = 0
    recoveries: tuple[float, ...] = ()
    wrong: int = 0
    failure: str | None = None
    observed: Observed | None = None

    @property
    def median(self) -> float | None:
        """Median time of an iteration, seconds; None without iterations."""
        return Median.of(self.times).value if self.times else None

    @property
    def goodput(self) -> float | None:
        """Bytes of the tensor divided by the median time."""
        return None if self.median is None else self.size / self.median

    @property
    def wire_bytes(self) -> float | None:
        """Bytes on the wire in one iteration, over all ranks."""
        return self.sent.wire_bytes / len(self.times) if self.times else None

    @property
    def retransmissions(self) -> float | None:
        """Frames retransmitted in one iteration, by all ranks."""
        return self.sent.retransmissions / len(self.times) if self.times else None

    @property
    def recovery(self) -> float | None:
        """Median of the recoveries, seconds."""
        return float(np.median(self.recoveries)) if self.recoveries else None

    def ratio(self, lossless: "Cell | None") -> float | None:
        """Goodput divided by the goodput without loss."""
        if lossless is None or self.goodput is None or lossless.goodput is None:
            return None
        return self.goodput / lossless.goodput

    def extra(self, lossless: "Cell | None") -> float | None:
        """Bytes on the wire in excess of those without loss, relative to the latter."""
        if lossless is None or self.wire_bytes is None or not lossless.wire_bytes:
            return None
        return self.wire_bytes / lossless.wire_bytes - 1

    def to_dict(self, lossless: "Cell | None") -> dict[str, Any]:
        """The cell as it goes into the JSON file and the figure; None: not measured. From `low_us`
        to `high_us` is the median with a confidence of 95 %.
        """
        time = Median.of(self.times) if self.times else None
        return {
            "backend": self.backend,
            "hosts": self.hosts,
            "size_bytes": self.size,
            "loss": self.loss,
            "iterations": len(self.times),
            "median_us": _rounded(self.median, 1e6),
            "low_us": _rounded(time.low if time else None, 1e6),
            "high_us": _rounded(time.high if time else None, 1e6),
            "max_us": _rounded(max(self.times, default=None), 1e6),
            "goodput_gbps": _rounded(self.goodput, 1e-9),
            "goodput_ratio": _rounded(self.ratio(lossless)),
            "wire_bytes": _rounded(self.wire_bytes),
            "extra_bytes": _rounded(self.extra(lossless)),
            "retransmissions": _rounded(self.retransmissions),
            "lost_frames": self.lost,
            "recovery_us": _rounded(self.recovery, 1e6),
            "recoveries": len(self.recoveries),
            "wrong": self.wrong,
            "failure": self.failure,
            **({"telemetry": self.observed.to_dict()} if self.observed else {}),
        }


def _rounded(value: float | None, unit: float = 1.0) -> float | None:
    return None if value is None else round(value * unit, 6)


def recovery_times(records: NDArray[Any]) -> tuple[float, ...]:
    """Seconds from each loss of a frame that carries a chunk until a frame with the same chunk
    reaches the same receiver.

    Each of the ring's frames carries one chunk, and after a loss a chunk does not reach the
    receiver until some rank has sent it again. So this is the time that the receiver went without
    the chunk, including losses of the replacement.

    :param records: A traced log with a rule that drops, in order of time: shape (n,), of
        :data:`testbed.faults.log.RECORD`.
    """
    waiting: dict[tuple[int, ...], list[int]] = {}
    times = []
    names = ("time", "kind", "receiver", "group", "seq", "chunk", "action")
    for time, kind, *where, action in zip(*(records[name].tolist() for name in names), strict=True):
        if kind not in _CARRIERS:
            continue
        key = tuple(where)
        if action == Action.DROP:
            waiting.setdefault(key, []).append(time)
        else:
            times += [(time - since) * 1e-9 for since in waiting.pop(key, ())]
    return tuple(times)
