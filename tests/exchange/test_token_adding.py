"""What a program is to add, and what becomes of its sums."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np
import pytest

from testbed.exchange.adjacency import RowFormat, RowLanes
from testbed.exchange.halo import Halo
from testbed.exchange.interface import Aggregation
from testbed.exchange.options import HaloChoice
from testbed.exchange.partial_sums import scaled_sums
from testbed.exchange.tokens.adding import Adding, Sums
from testbed.exchange.tokens.layout import Layout
from testbed.kernel.abi import constant
from testbed.protocol.rows import fixed_lanes, fixed_step
from testbed.protocol.token.adding import Edge, Form, Part, form_sums, shifts_of
from testbed.testing.aggregates import Travelling, fixed_aggregates
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.tiers import broad

LANES = ("fixed16", "fixed32")


def landing(layout: Layout, halo: Halo, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The slots of a rank, with what all others send to it; and each one's step."""
    form = layout.form
    slots = np.zeros(layout.slots * layout.room, np.uint8)
    steps = np.zeros(halo.world, np.float32)
    lanes = np.uint16 if form.lane_bytes == 2 else np.uint32
    for partner in layout.partners:
        if not partner.rows_in:
            continue
        rows = x[halo.sources[partner.rank]]
        step = fixed_step(rows, form.lane_bits)
        words = np.zeros((len(rows), form.row_bytes // form.lane_bytes), lanes)
        values = fixed_lanes(rows, step, form.lane_bits) + (1 << (form.lane_bits - 1))
        words[:, : form.dim] = values
        message = slots[partner.slot * layout.room :]
        message[: words.nbytes] = words.view(np.uint8).reshape(-1)
        slot, at = layout.step_of(partner)
        place = slot * layout.room + at
        slots[place : place + 4] = np.array([step], np.float32).view(np.uint8)
        steps[partner.rank] = step
    return slots, steps


def results(
    graph: Partitioned,
    x: np.ndarray,
    kind: Aggregation,
    lanes: RowLanes,
    mtu: int = 1500,
    choice: HaloChoice = "rows",
) -> list[np.ndarray]:
    """What all ranks make of what lands, with the sums of the reference model."""
    form = RowFormat.of(lanes, x.shape[1], graph.halos[0])
    if choice == "cover":
        x = Travelling.of(graph, kind).rows(graph, x, kind)
    found = []
    for halo in graph.halos_of(choice):
        layout = Layout.plan(form, halo, mtu, True)
        adding = Adding.plan(layout, halo, kind)
        slots, steps = landing(layout, halo, x)
        weights = adding.weights if len(adding.weights) else np.ones(len(adding.edges), int)
        edges = [
            Edge(*map(int, edge), int(weight))
            for edge, weight in zip(adding.edges, weights, strict=True)
        ]
        parts = [Part(*map(int, part)) for part in adding.parts]
        assert all(part.plain <= part.count <= constant("TOKEN_PART") for part in parts)
        exponents = {
            other: int(step.view(np.uint32)) >> 23 for other, step in enumerate(steps) if step
        }
        weighted = len(adding.weights) > 0
        sums = form_sums(
            Form(form.words, lanes == "fixed32", weighted, kind == "max"),
            *(parts, edges, slots.view(np.uint64).reshape(layout.slots, -1)),
            shifts_of(exponents),
        )
        out = np.full((halo.num_owned, form.dim), np.nan, np.float32)
        Sums(adding, halo, kind, sums.view(np.uint8), steps).take(slots, out)
        found.append(out)
    return found


@pytest.mark.parametrize(
    ("dim", "mtu"), broad([(64, 1500), (512, 9000), (1, 1500), (100, 576), (63, 3498)], quick=2)
)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", get_args(Aggregation))
def test_sums_of_what_lands_are_the_result(kind, lanes, dim, mtu) -> None:
    graph = draw_partitioned(dim, 300, 2000, 4, hub=2500)
    x = embeddings(0, graph, dim)
    x[graph.halos[2].owned] *= np.float32(2**-7)
    bits = RowFormat.of(lanes, dim, graph.halos[0]).lane_bits
    for choice in ("rows", "cover"):
        expected = fixed_aggregates(graph, x, kind, bits, choice)
        for out, wanted in zip(results(graph, x, kind, lanes, mtu, choice), expected, strict=True):
            np.testing.assert_array_equal(out, wanted)


Drawn = tuple[Partitioned, np.ndarray, Callable[[Aggregation], list[np.ndarray]]]
"""A graph, embeddings, and by rank the error of partial sums in float32."""


def scattered() -> Drawn:
    """Weights of all magnitudes."""
    graph = draw_partitioned(1, 3000, 20_000, 3, hub=20_000)
    small = np.random.default_rng(0).integers(-20, 6, len(graph.owner))
    by_edge = np.repeat(small, np.diff(graph.indptr))
    graph = replace(graph, weights=np.ldexp(graph.weights, by_edge).astype(np.float32))
    x = np.random.default_rng(1).standard_normal((len(graph.owner), 2)).astype(np.float32)
    return graph, x, partial(graph.float32_bounds, x)


def lopsided() -> Drawn:
    """Vertices of the first rank need all of the last, which are fewer, and whose rows travel; the
    first of them also needs so many of the second rank that the power of two of their sum exceeds
    what a weight can be. Sums are exact in float32.
    """
    few, many, last = 320, 70_000, 300
    owner = np.repeat([0, 1, 2], [few, many, last])
    degrees = np.zeros(len(owner), np.int64)
    degrees[:few], degrees[0] = last, many + last
    ends = np.cumsum(degrees)
    indices = few + many + np.tile(np.arange(last), few)
    indices = np.concatenate([few + np.arange(many), indices])
    random = np.random.default_rng(0)
    weights = random.choice([0.5, 0.75, 1], len(indices)).astype(np.float32)
    graph = Partitioned(np.concatenate([[0], ends]), indices, weights, owner, 3)
    x = random.integers(4, 8, (len(owner), 2)).astype(np.float32)
    return graph, x, lambda kind: graph.split(np.zeros(x.shape))


@pytest.mark.parametrize("draw", [scattered, lopsided])
@pytest.mark.parametrize("choice", ["rows", "cover"])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", get_args(Aggregation))
def test_the_error_is_that_of_lanes_and_of_weights(kind, lanes, choice, draw) -> None:
    """A row that lands is off by a step at most, a weight by 2**-12 of the largest of its vertex
    (32 bits: 2**-24), however small all of these are, and however many vertices a partial sum has.
    """
    graph, x, bounds_of = draw()
    absmax, bits = float(np.abs(x).max()), RowFormat.of(lanes, 2, graph.halos[0]).lane_bits
    step, part = 2.0 * absmax / (1 << (bits - 1)), 2.0 ** (-12 if lanes == "fixed16" else -24)
    bounds = bounds_of(kind)
    for rank, (out, exact) in enumerate(
        zip(results(graph, x, kind, lanes, choice=choice), graph.aggregates(x, kind), strict=True)
    ):
        halo, (scaled, how) = (
            graph.halos_of(choice)[rank],
            scaled_sums(graph.halos_of(choice)[rank], kind),
        )
        ones = np.ones(len(halo.indices))
        added = np.abs(scaled.weights) if how == "weighted" else ones
        meant = np.abs(halo.weights) if kind == "weighted" else ones
        target = np.repeat(np.arange(halo.num_owned), np.diff(halo.indptr))
        bound, largest = np.zeros(halo.num_owned), np.zeros(halo.num_owned)
        np.maximum.at(largest, target, meant)
        np.add.at(bound, target, step * added + part * absmax * largest[target])
        allowed = bounds[rank] + bound[:, None] + np.abs(exact) * 2.0**-22
        other = out != exact
        assert (np.abs(out[other] - exact[other]) <= allowed[other]).all()


def test_blocks_of_rows_do_not_cross_frames() -> None:
    graph = draw_partitioned(0, 100, 800, 3)
    for dim, mtu, lanes in itertools.product(
        (1, 2, 5, 31, 32, 33, 63, 64, 65, 512),
        (576, 1500, 3506, 9000, 65535),
        ("fixed16", "fixed32"),
    ):
        form = RowFormat.of(lanes, dim, graph.halos[0])
        layout = Layout.plan(form, graph.halos[0], mtu, True)
        assert layout.room % (8 * form.words) == 0
        assert layout.room >= (min(mtu, 3348) - 82) * 3 // 4 - 8 * form.words
        adding = Adding.plan(layout, graph.halos[0], "sum")
        assert (8 * (adding.edges["at"] + form.words) <= layout.room).all()
        assert (adding.edges["slot"] < layout.slots).all()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("power", [0, 16, 40, 60, 120])
def test_heavy_partial_sums_are_not_added_for_ever(lanes: RowLanes, power: int) -> None:
    """A summand that is too heavy for one sum is added in several, but not in thousands."""
    graph = draw_partitioned(0, 300, 3000, 4)
    weights = np.ldexp(graph.weights, power).astype(np.float32)
    heavy = Partitioned(graph.indptr, graph.indices, weights, graph.owner, graph.world)
    for choice in get_args(HaloChoice):
        for halo in heavy.halos_of(choice):
            layout = Layout.plan(RowFormat.of(lanes, 4, halo), halo, 1500, True)
            adding = Adding.plan(layout, halo, "weighted")
            assert len(adding.edges) <= 65 * max(len(halo.indices), 1)
