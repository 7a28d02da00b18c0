"""The bench's ranks: inputs are a function of seed, rank and position; ranks meet at the barrier,
or it breaks.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from testbed.bench.barrier import Barrier, BarrierBroken
from testbed.bench.calls import BLOCK, make_input


def test_inputs_do_not_depend_on_the_requested_part():
    whole = make_input(1, 2, 0, 2 * BLOCK + 100)
    assert np.array_equal(make_input(1, 2, BLOCK, BLOCK + 100), whole[BLOCK:])
    assert np.array_equal(make_input(1, 2, 0, 5), whole[:5])
    assert whole.dtype == np.float32
    assert abs(float(whole.mean())) < 0.01


@pytest.mark.parametrize(("kind", "most"), [("int32", 1 << 26), ("int64", 1 << 46)])
def test_sums_of_integers_fit(kind, most):
    drawn = make_input(1, 0, 0, BLOCK, kind)
    assert drawn.dtype == kind
    # Most are more than a float32 holds exactly, and 32 ranks' sum is not more than the type does.
    assert np.count_nonzero(drawn.astype(np.float32) != drawn) > BLOCK / 4
    assert np.abs(drawn).max() <= most <= np.iinfo(kind).max // 32 + 1


def test_inputs_differ_by_seed_and_rank():
    parts = [make_input(seed, rank, 0, 100) for seed in range(3) for rank in range(3)]
    assert len({part.tobytes() for part in parts}) == 9


def test_the_barrier_holds_until_all_have_arrived(tmp_path):
    ranks, rounds = 4, 200
    passed = [0] * ranks
    late = []

    def run(rank):
        barrier = Barrier(tmp_path / "barrier", rank, ranks)
        for number in range(rounds):
            barrier.wait()
            passed[rank] = number + 1
            late.extend(
                other for other in passed if other < number
            )  # no rank is more than a round behind

    with ThreadPoolExecutor(ranks) as pool:
        for future in [pool.submit(run, rank) for rank in range(ranks)]:
            future.result()
    assert passed == [rounds] * ranks
    assert not late


def test_an_error_breaks_the_barrier(tmp_path):
    barriers = [Barrier(tmp_path / "barrier", rank, 2) for rank in range(2)]
    waiting = threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def wait():
            waiting.set()
            barriers[0].wait()

        future = pool.submit(wait)
        waiting.wait()
        with pytest.raises(KeyError), barriers[1]:
            raise KeyError
        with pytest.raises(BarrierBroken, match="another rank has given up"):
            future.result()


def test_a_barrier_names_late_ranks(tmp_path):
    with pytest.raises(
        BarrierBroken, match=r"ranks \[1, 2\] did not reach the barrier within 0.01 s"
    ):
        Barrier(tmp_path / "barrier", 0, 3, timeout=0.01).wait()
