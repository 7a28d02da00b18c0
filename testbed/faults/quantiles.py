"""Distributions of delays as tables of quantiles, so that the kernel draws from all of them by one
integer interpolation.
"""

from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from testbed.faults.rules import Delay
from testbed.kernel.abi import constant

__all__ = ["STEPS", "quantiles"]

STEPS: Final = constant("FATE_QUANTILES")
PARETO_SHAPE: Final = 3.0
"""As in netem's table: a finite variance, and a noticeable tail."""


def quantiles(rule: Delay) -> NDArray[np.uint64]:
    """The inverse distribution function of a rule's delay, at 0, 1/1024 .. 1.

    Unbounded tails end half a step from 0 and from 1. No delay is negative: ``uniform`` and
    ``normal`` are cut off at 0.

    :returns: Shape (1025,), nanoseconds, ascending.
    """
    u = np.linspace(0, 1, STEPS + 1)
    inner = np.clip(u, 0.5 / STEPS, 1 - 0.5 / STEPS)
    match rule.distribution or ("uniform" if rule.jitter else "constant"):
        case "uniform":
            unit = 2 * u - 1
        case "normal":
            unit = np.array([NormalDist().inv_cdf(p) for p in inner])
        case "pareto":  # of the second kind (Lomax), with mean 1
            unit = (PARETO_SHAPE - 1) * ((1 - inner) ** (-1 / PARETO_SHAPE) - 1)
        case _:
            unit = np.zeros_like(u)
    seconds = np.maximum(rule.delay + rule.jitter * unit, 0)
    return np.rint(seconds * 1e9).astype(np.uint64)
