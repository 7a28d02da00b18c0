"""A rank's record of an epoch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["DNNEpoch"]


@dataclass(frozen=True)
class DNNEpoch:
    """A rank's record of an epoch; see `testbed.workloads.measures.RankEpoch`.

    :param digest: Hash of the weights at the epoch's end, equal on all ranks; empty in a
        simulation, which has none.
    """

    epoch: int
    times: dict[str, float]
    entered: NDArray[np.float64]
    left: NDArray[np.float64]
    counts: dict[str, float]
    digest: str
