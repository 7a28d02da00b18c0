"""`EpochResult`: one rank's record of one epoch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpochResult", "FullResult", "share_of"]


@dataclass(frozen=True)
class EpochResult:
    """Times in seconds.

    :param loss: Mean cross-entropy over the vertices that this rank has trained on.
    :param share: The share of all ranks' training vertices that `loss` covers; shares add up to 1.
        :param val_correct: Correct predictions among `val_total`, this rank's share of the
        validation set.
    :param digest: Hash of the weights at the epoch's end, equal on all ranks.
    :param times: `epoch_time` and its parts, which add up to it; `communication_time` (wall clock
        in collectives), `communication_cpu_time` (CPU time of this process in them);
        `validation_time`, outside of `epoch_time`.
    :param entered: Shape (collectives,): when this rank entered each, on the machine's monotonic
        clock; `left` likewise.
    :param counts: Counts such as `packets`.
    """

    epoch: int
    loss: float
    share: float
    val_correct: int
    val_total: int
    digest: str
    times: dict[str, float]
    entered: NDArray[np.float64]
    left: NDArray[np.float64]
    counts: dict[str, float]


@dataclass(frozen=True)
class FullResult(EpochResult):
    """Of full-graph training, where the whole graph is evaluated at once.

    :param test_correct: Right answers among `test_total`, this rank's vertices of the test set.
    """

    test_correct: int
    test_total: int


def share_of(correct: int, total: int) -> float | None:
    """Return the share of correct predictions; None if there was nothing to predict."""
    return correct / total if total else None
