"""The content of statuses after the ring has summed them."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.protocol.lanes import EXPONENTS
from testbed.protocol.status import (
    Fault,
    Kind,
    Status,
    decode,
    describe,
    encode,
    finite_absmax,
    identity_of,
    inspect,
    status_bytes,
)

FAULTS = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from((Kind.NAN, Kind.INFINITY)),
        st.integers(0, 2**64 - 1),
        st.integers(1, 2**32 - 1),
    ),
)
RANKS = st.lists(
    st.tuples(st.integers(EXPONENTS.start, EXPONENTS.stop - 1), FAULTS), min_size=1, max_size=32
)


def summed(statuses: list[bytes]) -> bytes:
    """Words modulo 2**64, whatever the width of lanes."""
    total = sum(np.frombuffer(status, np.uint64) for status in statuses)
    return bytes(total.tobytes())


@example([(5, None)] * 32)  # the worst case for a byte
@example([(5, (Kind.INFINITY, 2**64 - 1, 2**32 - 1))] * 32)  # every record is full
@given(RANKS)
def test_sums_tell_maximum_and_every_fault(ranks) -> None:
    faults = [
        None if fault is None else Fault(rank, *fault) for rank, (_, fault) in enumerate(ranks)
    ]
    statuses = [
        encode(len(ranks), rank, exponent, identity_of(rank, 16), fault)
        for rank, ((exponent, _), fault) in enumerate(zip(ranks, faults, strict=True))
    ]
    assert {len(status) for status in statuses} == {status_bytes(len(ranks))}
    assert status_bytes(len(ranks)) % 8 == 0
    found = decode(len(ranks), summed(statuses))
    assert found == Status(
        max(exponent for exponent, _ in ranks),
        tuple(identity_of(rank, 16) for rank in range(len(ranks))),
        tuple(fault for fault in faults if fault),
    )


@pytest.mark.parametrize("missing", [0, 1])
def test_a_sum_over_too_few_ranks_is_refused(missing) -> None:
    statuses = [encode(3, rank, 0, 0) for rank in range(3 - missing)]
    if not missing:
        statuses.append(encode(3, 0, 5, 0))
    with pytest.raises(ValueError, match=f"counts {4 - 2 * missing} ranks, not 3"):
        decode(3, summed(statuses))


def test_tensors_of_other_sizes_or_lanes_are_told_apart() -> None:
    assert len({identity_of(size, bits) for size in (0, 1, 256, 1 << 33) for bits in (16, 32)}) == 8
    assert describe(identity_of(101_402, 16)) == "101402 elements in int16"


def test_inspect_names_the_first_value_that_is_not_finite() -> None:
    values = np.array([1, -np.inf, np.nan, 3], np.float32)
    assert inspect(values, 2) == Fault(2, Kind.INFINITY, 1, 2)
    assert inspect(values[2:], 0) == Fault(0, Kind.NAN, 0, 1)
    assert inspect(values[3:], 0) is None


@given(st.lists(st.floats(width=32), max_size=20))
def test_finite_absmax_ignores_nonfinite_values(values) -> None:
    finite = [abs(value) for value in values if np.isfinite(value)]
    assert finite_absmax(np.array(values, np.float32)) == max(finite, default=0.0)
