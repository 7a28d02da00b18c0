"""What a program is to add, and what becomes of its sums."""

import itertools
from typing import get_args

import numpy as np
import pytest

from testbed.exchange.adjacency import RowFormat
from testbed.exchange.interface import Aggregation
from testbed.exchange.tokens.adding import Adding, Sums
from testbed.exchange.tokens.layout import Layout
from testbed.kernel.abi import constant
from testbed.protocol.rows import fixed_lanes, fixed_step
from testbed.protocol.token.adding import Edge, Form, Part, form_sums, shifts_of
from testbed.testing.aggregates import fixed_aggregates
from testbed.testing.graphs import Partitioned, draw_partitioned, embeddings
from tests.support.tiers import broad


def landing(layout: Layout, graph: Partitioned, rank: int, x: np.ndarray) -> tuple:
    """The slots of a rank, with what all others send to it; and each one's step."""
    form, halo = layout.form, graph.halos[rank]
    slots = np.zeros(layout.slots * layout.room, np.uint8)
    steps = np.zeros(graph.world, np.float32)
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


@pytest.mark.parametrize(
    ("dim", "mtu"), broad([(64, 1500), (512, 9000), (1, 1500), (100, 576), (63, 3498)], quick=2)
)
@pytest.mark.parametrize("lanes", ["fixed16", "fixed32"])
@pytest.mark.parametrize("kind", get_args(Aggregation))
def test_sums_of_what_lands_are_the_result(kind, lanes, dim, mtu) -> None:
    graph = draw_partitioned(dim, 300, 2000, 4, hub=2500)
    x = embeddings(0, graph, dim)
    x[graph.halos[2].owned] *= np.float32(2**-7)
    form = RowFormat.of(lanes, dim, graph.halos[0])
    expected = fixed_aggregates(graph, x, kind, form.lane_bits)
    for rank, halo in enumerate(graph.halos):
        layout = Layout.plan(form, halo, mtu, True)
        adding = Adding.plan(layout, halo, kind)
        slots, steps = landing(layout, graph, rank, x)
        weights = adding.weights if len(adding.weights) else np.ones(len(adding.edges), int)
        edges = [
            Edge(*map(int, edge), int(weight))
            for edge, weight in zip(adding.edges, weights, strict=True)
        ]
        parts = [Part(*map(int, part)) for part in adding.parts]
        assert max(part.count for part in parts) <= constant("TOKEN_PART")
        exponents = {
            other: int(step.view(np.uint32)) >> 23 for other, step in enumerate(steps) if step
        }
        sums = form_sums(
            Form(form.words, lanes == "fixed32", kind == "weighted", kind == "max"),
            *(parts, edges, slots.view(np.uint64).reshape(layout.slots, -1)),
            shifts_of(exponents),
        )
        out = np.full((halo.num_owned, dim), np.nan, np.float32)
        Sums(adding, halo, kind, sums.view(np.uint8), steps).take(slots, out)
        np.testing.assert_array_equal(out, expected[rank])


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
