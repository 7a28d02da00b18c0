"""What an all-reduce over lanes must give, bit for bit: the integer sums, computed without any
network. Pure.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.comm.group import Lanes as LaneType
from testbed.protocol.lanes import Lanes
from testbed.protocol.scale import SLACK, ScaleGuess

__all__ = ["agree", "exact_sum", "exact_sums"]

Tensor = NDArray[np.float32]


def agree(guess: ScaleGuess, seen: int) -> int:
    """The exponent that ranks quantize with in the end: the guess, or where it does not hold, what
    is seen. The guess learns.

    :param seen: Of the largest magnitude of all ranks.
    """
    exponent = guess.exponent if guess.exponent is not None and guess.holds(seen) else seen
    guess.learn(seen)
    return exponent


def exact_sum(inputs: Sequence[Tensor], lanes: LaneType, exponent: int | None = None) -> Tensor:
    """Quantize, add integers, dequantize.

    :param inputs: One finite tensor per rank, all of one shape. One rank's own is its sum.
    :param exponent: To quantize with; that of the largest magnitude, if not given.
    :returns: The same shape.
    """
    if len(inputs) == 1 or not inputs[0].size:
        return inputs[0].copy()
    of_group = Lanes.named(lanes, len(inputs))
    if exponent is None:
        exponent = _least_exponent(inputs, of_group)
    total = sum(of_group.quantize(tensor, exponent).astype(np.int64) for tensor in inputs)
    return of_group.dequantize(np.asarray(total).astype(of_group.dtype), exponent)


def exact_sums(inputs: Sequence[Tensor], lanes: LaneType) -> list[Tensor]:
    """All sums that a group may come to, the finest first.

    Ranks quantize with the exponent of the collective before, which may be up to
    :data:`testbed.protocol.scale.SLACK` too high.
    """
    least = _least_exponent(inputs, Lanes.named(lanes, len(inputs)))
    return [exact_sum(inputs, lanes, least + more) for more in range(SLACK + 1)]


def _least_exponent(inputs: Sequence[Tensor], lanes: Lanes) -> int:
    return lanes.exponent_for(max(float(np.abs(tensor).max(initial=0.0)) for tensor in inputs))
