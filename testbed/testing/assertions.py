"""Assertions of fault tests. Each failure names what is wrong, where, and by how much."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from testbed.comm.group import Lanes
from testbed.protocol.lanes import Lanes as Format
from testbed.testing.reference import Tensor, exact_sums

if TYPE_CHECKING:
    from testbed.testing.faults import FaultsInForce

__all__ = ["WrongSum", "assert_exact", "assert_faults_fired"]


class WrongSum(AssertionError):
    """A result is not the sum.

    :param element: Index of the first wrong element, of the flat tensor.
    :param size: Elements of the tensor.
    :param lanes: The group's format on the wire.
    """

    def __init__(self, text: str, element: int, size: int, lanes: Format) -> None:
        super().__init__(text)
        self.element = element
        self.size = size
        self.lanes = lanes


def assert_exact(results: Sequence[Tensor], inputs: Sequence[Tensor], lanes: Lanes) -> None:
    """Check that every rank holds the sum of all inputs, bit for bit.

    :param results: One tensor per rank.
    :param inputs: The ranks' inputs.
    :param lanes: ``int16`` or ``int32``, as the group has.
    :raises WrongSum: A rank holds something else; the text names the first wrong element.
    """
    if len(results) != len(inputs):
        raise AssertionError(f"{len(results)} results of {len(inputs)} inputs")
    # All ranks quantize with the same exponent: take the one with the fewest differences.
    wrong, expected = min(
        (
            ([np.flatnonzero(_bits(result) != _bits(sums)) for result in results], sums)
            for sums in exact_sums(inputs, lanes)
        ),
        key=lambda found: sum(map(len, found[0])),
    )
    if not any(map(len, wrong)):
        return
    rank = min(
        (rank for rank, indices in enumerate(wrong) if len(indices)),
        key=lambda rank: int(wrong[rank][0]),
    )
    element = int(wrong[rank][0])
    counts = ", ".join(
        f"{len(indices)} of rank {number}" for number, indices in enumerate(wrong) if len(indices)
    )
    raise WrongSum(
        f"rank {rank} has {results[rank].flat[element]!r} at index {element}, the sum is"
        f" {expected.flat[element]!r}; wrong are {counts}, of {expected.size} elements each",
        element,
        expected.size,
        Format.named(lanes, len(inputs)),
    )


def assert_faults_fired(
    faults: "FaultsInForce", action: str | None = None, at_least: int = 1
) -> None:
    """Check that faults have happened: without any, a test shows nothing.

    :param faults: From ``with faults(...) as faults``, during or after the block.
    :param action: Only faults with this action: ``drop``, ``link-down``, ...
    :param at_least: How often, on all links together.
    :raises AssertionError: They have not; the text says which have.
    """
    fired = faults.fired()
    if action is not None and action not in fired:
        raise AssertionError(
            f"no fault here has the action {action!r}; there are {', '.join(fired) or 'none'}"
        )
    count = fired[action] if action is not None else sum(fired.values())
    if count < at_least:
        what = action or "all faults together"
        raise AssertionError(
            f"{what} fired {count} times, at least {at_least} expected:\n"
            + "\n".join(faults.summary())
        )


def _bits(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """-0.0 and NaN differ from all other values."""
    return np.ascontiguousarray(tensor, np.float32).reshape(-1).view(np.uint32)
