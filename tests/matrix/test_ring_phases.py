"""Reduce-scatter, all-gather and broadcast, with every backend and in the kernel under faults:
exact values, an end in bounded time, and what each costs on the wire.
"""

import numpy as np
import pytest

from testbed.collectives.registry import BACKENDS as BACKENDS_BY_NAME
from testbed.core.errors import CollectiveError, SpecError
from testbed.core.registry import load
from testbed.testing import assert_faults_fired
from testbed.testing.group import Group
from testbed.testing.reference import exact_sums
from tests.support.levels import levels
from tests.support.tiers import broad

pytestmark = pytest.mark.net

WITHIN = 40.0
SIZES = (1, 7, 1000, 30_011)  # elements of a block
FAULTS = {name: words[-1][1] for name, words in levels("10ms").items()}
BACKENDS = ("xdp-ring", "tcp-ring", "gloo", "mpi")


def make_inputs(ranks, size):
    return [
        np.random.default_rng([size, rank]).standard_normal(size, np.float32)
        for rank in range(ranks)
    ]


def check_scattered(blocks, inputs, lanes):
    """Each rank has its block of one of the sums that the group may come to."""
    found = np.concatenate(blocks)
    assert any(np.array_equal(found, sums) for sums in exact_sums(inputs, lanes))


def check_gathered(found, inputs):
    for result in found:
        np.testing.assert_array_equal(
            result.view(np.uint32), np.concatenate(inputs).view(np.uint32)
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "ranks", broad(pytest.param(n, marks=pytest.mark.fabric(hosts=n)) for n in (3, 1, 2, 4))
)
def test_blocks_are_numpys(fabric, backend, ranks):
    with Group(fabric, backend, lanes="int32") as group:
        for size in SIZES:
            inputs = make_inputs(ranks, size * ranks)
            expected = np.sum(inputs, axis=0, dtype=np.float64).reshape(ranks, size)
            for block, sums in zip(group.reduce_scatter(inputs), expected, strict=True):
                np.testing.assert_allclose(block, sums, atol=1e-5)
            inputs = make_inputs(ranks, size)
            inputs[0][0] = np.nan  # is moved, not summed
            check_gathered(group.all_gather(inputs), inputs)
            for root in {0, ranks - 1}:
                check_gathered(group.broadcast(inputs, root=root), [inputs[root]])


@pytest.mark.parametrize("backend", broad(["tcp-ring", "xdp-ring", "gloo", "mpi"]))
@pytest.mark.fabric(hosts=3)
def test_values_are_reduced_as_asked(fabric, backend):
    reduce = {"min": np.min, "max": np.max, "avg": np.mean}
    with Group(fabric, backend, lanes="int32") as group:
        for op, function in reduce.items():
            inputs = make_inputs(3, 3 * 5000)
            expected = function(inputs, axis=0)
            if op not in BACKENDS_BY_NAME[backend].ops:
                with pytest.raises(SpecError, match=f"op = '{op}': must be one of sum, avg with"):
                    group.all_reduce(inputs, op=op)
                continue
            bound = 1e-6 if op == "avg" else 0
            for result in group.all_reduce(inputs, op=op):
                np.testing.assert_allclose(result, expected, rtol=0, atol=bound)
            blocks = np.concatenate(group.reduce_scatter(inputs, op=op))
            np.testing.assert_allclose(blocks, expected, rtol=0, atol=bound)


def test_the_registry_knows_how_backends_reduce():
    for name in BACKENDS:
        assert BACKENDS_BY_NAME[name].ops == load(BACKENDS_BY_NAME[name].path).OPS


CELLS = [
    (1500, "upstream", "loss"),
    (65_535, "origin", "none"),
    *((1500, "upstream", name) for name in ("none", *FAULTS) if name != "loss"),
    (1500, "origin", "loss"),
    (1500, "origin", "duplication"),
    (65_535, "upstream", "loss"),
]


@pytest.mark.parametrize(
    ("recovery", "name"),
    broad(
        (
            pytest.param(
                *cell,
                marks=pytest.mark.fabric(hosts=4, mtu=mtu, datapath="xdp"),
                id="-".join((str(mtu), *cell)),
            )
            for mtu, *cell in CELLS
        ),
        2,
    ),
)
def test_they_are_exact_in_the_kernel_under_faults(
    fabric, faults, assert_nothing_left, name, recovery
):
    words = FAULTS.get(name)
    with Group(fabric, lanes="int16", recovery=recovery, timeout=WITHIN / 2) as group:
        with faults(*filter(None, [words]), seed=1) as injected:
            for size in (*SIZES, 3, 100_003):
                inputs = make_inputs(4, 4 * size)
                check_scattered(group.reduce_scatter(inputs, WITHIN), inputs, "int16")
                shares = [tensor[:size] for tensor in inputs]
                check_gathered(group.all_gather(shares, WITHIN), shares)
                root = size % 4
                check_gathered(group.broadcast(inputs, WITHIN, root), [inputs[root]])
                summed = group.all_reduce(inputs, WITHIN)[0]
                assert any(np.array_equal(summed, sums) for sums in exact_sums(inputs, "int16"))
        if words:
            assert_faults_fired(injected, words.split()[0])
    assert_nothing_left()


@pytest.mark.fabric(hosts=4, mtu=1500, datapath="xdp")
def test_each_costs_half_of_an_all_reduce_on_the_wire(fabric):
    """Their data takes N - 1 hops instead of 2 (N - 1); an all-gather's is as wide as the tensor's,
    here as wide as a lane.
    """
    inputs = make_inputs(4, 1 << 18)
    with Group(fabric, lanes="int32") as group:

        def cost(collective, tensors):
            collective(tensors)  # agrees on the exponent
            before = sum(counters.wire_bytes for counters in group.counters())
            collective(tensors)
            return sum(counters.wire_bytes for counters in group.counters()) - before

        whole = cost(group.all_reduce, inputs)
        scattered = cost(group.reduce_scatter, inputs)
        gathered = cost(group.all_gather, [tensor[: 1 << 16] for tensor in inputs])
        spread = cost(group.broadcast, inputs)
    assert 0.49 < scattered / whole < 0.52
    assert 0.49 < gathered / whole < 0.52
    # All of the tensor on each link, one of which takes the frames back to the root.
    assert 4 / 6 < spread / whole < 4.2 / 6


@pytest.mark.fabric(hosts=3, mtu=1500, datapath="xdp")
def test_other_values_and_tensors_are_errors(fabric):
    with Group(fabric, lanes="int32") as group:
        inputs = make_inputs(3, 6)
        inputs[1][4] = np.inf
        with pytest.raises(
            CollectiveError, match=r"^reduce-scatter: rank 1 \(h2\) has infinity at index 4"
        ):
            group.reduce_scatter(inputs)
        inputs[1][4] = 0
        check_scattered(group.reduce_scatter(inputs), inputs, "int32")
        with pytest.raises(
            SpecError, match="tensor has 7 elements: must be a multiple of the number of ranks, 3"
        ):
            group.reduce_scatter([np.zeros(7, np.float32)] * 3)
        with pytest.raises(CollectiveError, match=r"different tensors.*\(all-gather \d"):
            group.all_gather([np.zeros(size, np.float32) for size in (5, 5, 4000)], WITHIN)
