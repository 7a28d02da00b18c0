"""What a group's all-reduces have to give: the ring's bit for bit, other transports' within a bound. Pure."""

from collections.abc import Sequence

import numpy as np

from testbed.collectives.group import Lanes
from testbed.collectives.transport import Tensor, float32_sum_bound
from testbed.protocol.scale import ScaleGuess
from testbed.protocol.status import finite_absmax
from testbed.testing.reference import exact_sum, lanes_of

__all__ = ["RingReference", "describe_difference", "float_reference"]


class RingReference:
    """A group of ``xdp-ring`` from its first all-reduce on: integer sums at the exponents that it agrees on.

    :param lanes: The group's.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._guesses: dict[int, ScaleGuess] = {}

    def sum(self, inputs: Sequence[Tensor]) -> Tensor:
        """The next all-reduce's result.

        :param inputs: Tensors in rank order, shape (n,) each.
        """
        if inputs[0].size == 0:
            return inputs[0]
        seen = lanes_of(self._lanes, len(inputs)).exponent_for(max(finite_absmax(values) for values in inputs))
        guess = self._guesses.setdefault(inputs[0].size, ScaleGuess())
        if not guess.holds(seen):
            guess.learn(seen)
        exponent = guess.exponent
        guess.learn(seen)
        return exact_sum(inputs, self._lanes, exponent)


def float_reference(inputs: Sequence[Tensor]) -> tuple[Tensor, float]:
    """Return sums in double precision, shape (n,), and how far sums in single precision may be from them."""
    absmax = max((finite_absmax(values) for values in inputs if values.size), default=0.0)
    total: Tensor = np.stack(inputs).sum(axis=0, dtype=np.float64).astype(np.float32)
    return total, 2 * float32_sum_bound(absmax, len(inputs))


def describe_difference(found: Tensor, expected: Tensor, bound: float) -> str | None:
    """Say where a result differs.

    :param bound: Largest difference allowed; 0: bit for bit.
    :returns: None where it does not.
    """
    if found.shape != expected.shape:
        return f"{found.shape} elements instead of {expected.shape}"
    if bound:
        wrong = np.flatnonzero(~(np.abs(found.astype(np.float64) - expected) <= bound))
    else:
        wrong = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
    if not wrong.size:
        return None
    first = int(wrong[0])
    return f"{wrong.size} of {found.size} elements, the first at {first}: {found[first]!r} instead of {expected[first]!r}"
