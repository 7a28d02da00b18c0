"""Specs that an exchange refuses before it is opened."""

import pytest

from testbed.comm.group import make_groups
from testbed.core.errors import SpecError
from testbed.exchange.halo import make_halos
from testbed.exchange.interface import ExchangeSpec
from testbed.exchange.options import ExchangeOptions
from testbed.plan import plan_fabric
from testbed.testing.graphs import draw_partitioned

GRAPH = draw_partitioned(0, 20, 50, 2)
GROUP = make_groups(plan_fabric(hosts=2).hosts)[0]
WEIGHED = GRAPH.halos[0]
BARE = make_halos(GRAPH.indptr, GRAPH.indices, GRAPH.owner, 2)[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dim": 0}, "dim = 0: must be 1..512"),
        ({"dim": 513}, "dim = 513: must be 1..512"),
        ({"bound": -0.5}, "bound = -0.5: must be at least 0"),
        ({"bound": float("inf")}, "bound = inf: must be at least 0, finite"),
        ({"bound": float("nan")}, "bound = nan: must be at least 0, finite"),
        (
            {"bound": 0.0, "aggregation": "max", "broadcast": "tc"},
            "bound: with broadcast = tc, aggregation must be sum or weighted, since a maximum"
            " cannot be taken back",
        ),
        (
            {"aggregation": "weighted", "halo": BARE},
            "aggregation = 'weighted': needs a halo with weights",
        ),
        ({"staleness": 0}, "staleness = 0: must be 1 to 2147483648"),
        ({"staleness": 1 << 40}, "staleness = 1099511627776: must be 1 to 2147483648"),
        ({"exponent": 128}, "exponent = 128: must be -126..127, without bound"),
        ({"exponent": -127}, "exponent = -127: must be -126..127, without bound"),
        ({"exponent": 1, "bound": 0.0}, "exponent = 1: must be -126..127, without bound"),
    ],
)
def test_specs_outside_of_what_is_allowed(options, text) -> None:
    with pytest.raises(SpecError) as caught:
        ExchangeSpec(**{"group": GROUP, "halo": WEIGHED, "dim": 4} | options)
    assert str(caught.value) == f"exchange: {text}"


def test_specs_that_are_allowed() -> None:
    for options in (
        {},
        {"aggregation": "weighted"},
        {"bound": 0.0, "staleness": 1, "aggregation": "max"},
        {"exponent": -126},
    ):
        ExchangeSpec(GROUP, WEIGHED, 512, **options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ("tokens", "process")),
        ({"aggregate": "process"}, ("tokens", "process")),
        ({"broadcast": "tc"}, ("tc", "kernel")),
        ({"aggregate": "kernel"}, ("tokens", "kernel")),
        ({"bound": 0.5}, ("tokens", "process")),
        ({"bound": 0.5, "aggregate": "kernel"}, ("tc", "kernel")),
        ({"bound": 0.5, "sums": "packed"}, ("tc", "kernel")),
        ({"bound": 0.5, "broadcast": "tc"}, ("tc", "kernel")),
        ({"sums": "packed"}, ("tc", "kernel")),
        ({"processing": "spread"}, ("tc", "kernel")),
        ({"broadcast": "tc", "aggregate": "process"}, ("tc", "process")),
    ],
)
def test_defaults_that_depend_on_other_options(options, found) -> None:
    spec = ExchangeSpec(GROUP, WEIGHED, 4, **options)
    assert (spec.broadcast, spec.aggregate) == found
    terms = ExchangeOptions(**options)
    assert (terms.broadcast, terms.aggregate) == found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"broadcast": "tokens", "aggregate": "kernel", "bound": 0.5},
            "bound = 0.5 with aggregate = kernel: needs broadcast = tc",
        ),
        (
            {"broadcast": "tc", "dtype": "int16"},
            "dtype = int16: needs broadcast = tokens, which does not go with broadcast = tc; tc has"
            " lanes",
        ),
        (
            {"aggregate": "kernel", "bound": 0.5, "dtype": "int16"},
            "dtype = int16: needs broadcast = tokens, which does not go with bound = 0.5 with"
            " aggregate = kernel; tc has lanes",
        ),
        (
            {"dtype": "int32"},
            "dtype = int32: must be int16, bfloat16 or float32 with aggregate = process",
        ),
        (
            {"dtype": "float32", "aggregate": "kernel"},
            "dtype = float32: must be int16 or int32 with aggregate = kernel",
        ),
        ({"broadcast": "tokens", "sums": "packed"}, "sums = packed: needs broadcast = tc"),
        (
            {"broadcast": "tc", "aggregate": "process", "bound": 0.5},
            "bound: with broadcast = tc, aggregate must be kernel, where sums stay from one"
            " exchange to the next",
        ),
    ],
)
def test_options_that_do_not_go_together(options, text) -> None:
    with pytest.raises(SpecError) as caught:
        ExchangeSpec(GROUP, WEIGHED, 4, **options)
    assert str(caught.value) == text
