"""What ranks agree on, by an all-reduce in this process: exact numbers, also where a lane has few bits."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.collectives.group import Member
from testbed.errors import CollectiveError
from testbed.exchange.agreement import LEAST_EXPONENT, Agreed, agree, exponent_of
from testbed.testing import exact_sum

MEMBERS = tuple(Member(rank, f"h{rank + 1}", f"10.0.0.{rank + 1}", f"02:00:00:00:00:{rank + 1:02x}") for rank in range(32))


class Sum:
    """One rank's transport among threads: sums as the ring of some lanes does, or exactly."""

    def __init__(self, rank: int, world: int, lanes: str, shared: dict[int, np.ndarray], barrier: threading.Barrier) -> None:
        self.spec = SimpleNamespace(rank=rank)
        self.world, self.lanes, self.shared, self.barrier = world, lanes, shared, barrier

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        self.shared[self.spec.rank] = vector.copy()
        self.barrier.wait(20)
        inputs = [self.shared[rank] for rank in range(self.world)]
        return np.sum(inputs, axis=0) if self.lanes == "float" else exact_sum(inputs, self.lanes)


def meet(exponents: list[int | None], counts: np.ndarray, lanes: str = "float") -> list[Agreed | CollectiveError]:
    world = len(exponents)
    shared: dict[int, np.ndarray] = {}
    barrier = threading.Barrier(world)

    def one(rank: int) -> Agreed | CollectiveError:
        try:
            return agree(Sum(rank, world, lanes, shared, barrier), exponents[rank], counts[rank], MEMBERS[:world])
        except CollectiveError as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


exponents = st.integers(LEAST_EXPONENT, 128)


@pytest.mark.parametrize("lanes", ["float", "int16", "int32"])
@given(data=st.data())
def test_all_know_the_largest_exponent_and_every_number(lanes, data) -> None:
    world = data.draw(st.integers(1, 6))
    mine = data.draw(st.lists(exponents, min_size=world, max_size=world))
    numbers = st.integers(0, (1 << 30) - 1) | st.just(0) | st.just((1 << 30) - 1)
    counts = np.array(data.draw(st.lists(numbers, min_size=world**2, max_size=world**2))).reshape(world, world)
    for agreed in meet(mine, counts, lanes):
        assert agreed.exponent == max(mine)
        np.testing.assert_array_equal(agreed.counts, counts)


@pytest.mark.parametrize("lanes", ["int16", "int32"])
@pytest.mark.parametrize("same", [False, True])
def test_32_ranks(lanes, same) -> None:
    """As coarse as lanes get; all mark one place, or each one of its own."""
    counts = np.random.default_rng(0).integers(0, 1 << 30, (32, 32))
    mine = [7] * 32 if same else list(range(-20, 12))
    for agreed in meet(mine, counts, lanes):
        assert agreed.exponent == max(mine)
        np.testing.assert_array_equal(agreed.counts, counts)


@pytest.mark.parametrize("lanes", ["float", "int16", "int32"])
@pytest.mark.parametrize("bad", [[0], [1, 2], [0, 1, 2]])
def test_ranks_whose_values_are_not_finite_are_named_by_all(lanes, bad) -> None:
    names = ", ".join(f"rank {rank} (h{rank + 1})" for rank in bad)
    found = meet([None if rank in bad else 3 for rank in range(3)], np.zeros((3, 3), np.int64), lanes)
    assert [str(error) for error in found] == [f"exchange: {names} has embeddings that are not finite"] * 3


@given(st.floats(0, width=32, allow_infinity=False))
def test_exponent_of_a_magnitude(absmax) -> None:
    exponent = exponent_of(absmax)
    assert absmax < 2.0**exponent
    assert exponent == LEAST_EXPONENT or absmax >= 2.0 ** (exponent - 1)


def test_exponents_at_the_ends() -> None:
    finfo = np.finfo(np.float32)
    values = [0.0, float(finfo.smallest_subnormal), 1.0, float(finfo.max)]
    assert [exponent_of(value) for value in values] == [LEAST_EXPONENT, -148, 1, 128]
