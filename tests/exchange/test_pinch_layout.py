"""Frames of embeddings: what fits, which rank gets what, and how many there can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from testbed.core.errors import SpecError
from testbed.exchange.interface import MAX_DIM
from testbed.exchange.pinch.layout import RowLayout, bundle, bundle_bound
from testbed.protocol.pinch.packet import MAX_WORDS
from testbed.protocol.wire import FRAME_BYTES

ETHERNET = 14
MTUS = (576, 1280, 1500, 3506)

layouts = st.builds(
    RowLayout.plan, st.integers(1, MAX_DIM), st.sampled_from((16, 32)), st.integers(576, 3506)
)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("mtu", MTUS)
def test_every_dim_fits_its_frames(bits, mtu) -> None:
    for dim in range(1, MAX_DIM + 1):
        layout = RowLayout.plan(dim, bits, mtu)
        assert FRAME_BYTES + layout.payload <= min(mtu + ETHERNET, FRAME_BYTES + 8 * MAX_WORDS)
        assert layout.parts * layout.words * 64 >= dim * bits  # nothing is truncated
        assert (
            layout.parts * layout.words - layout.parts
        ) * 64 < dim * bits  # no part consists of padding only
        assert layout.rows == 1 or layout.parts == 1
        assert layout.wide == 2 * layout.parts * layout.words
        # One more vertex would not fit, nor fewer parts do.
        room = min((mtu + ETHERNET - FRAME_BYTES) // 8, MAX_WORDS)
        if layout.parts == 1:
            assert layout.length(layout.rows + 1) > 8 * room
        else:
            assert (layout.parts - 1) * (room - 1) < -(-dim * bits // 64)


def test_the_length_of_a_payload_of_some_vertices() -> None:
    layout = RowLayout.plan(64, 16, 1500)
    assert (layout.words, layout.parts, layout.rows) == (16, 1, 10)
    assert [layout.length(rows) for rows in (1, 2, 3, 10)] == [136, 264, 400, 1320]
    wide = RowLayout.plan(512, 32, 1500)
    assert (wide.words, wide.parts, wide.rows, wide.payload, wide.wide) == (128, 2, 1, 1032, 512)
    packed = RowLayout.plan(512, 32, 1500, packed=True)
    assert (packed.words, packed.parts, packed.wide) == (128, 2, 256)
    assert (wide.largest, packed.largest) == ((1 << 31) - 1, (1 << 23) - 1)


def test_links_too_small_for_a_row_are_refused() -> None:
    assert RowLayout.plan(2, 32, 90).payload == 16
    assert RowLayout.plan(512, 32, 90).parts == 256
    with pytest.raises(
        SpecError, match=r"^mtu: 89 is too small for embeddings: must be 90 or more$"
    ):
        RowLayout.plan(2, 32, 89)


masks = hnp.arrays(
    np.uint32, st.integers(0, 300), elements=st.integers(1, (1 << 32) - 1)
) | hnp.arrays(np.uint32, st.integers(0, 300), elements=st.integers(1, 7))


@given(masks, st.integers(1, 40), st.integers(0, 1 << 20))
def test_bundles_carry_every_vertex_once_to_all_its_ranks(masks, rows, first) -> None:
    positions = first + 3 * np.arange(len(masks))
    bundles = bundle(positions, masks, rows)
    sizes = np.diff(bundles.starts)
    assert (bundles.starts[0], bundles.starts[-1]) == (0, len(masks))
    assert len(bundles.to) == len(sizes) == bundle_bound(len(masks), rows)
    assert ((sizes >= 1) & (sizes <= rows)).all()
    assert (sizes[:-1] == rows).all()
    np.testing.assert_array_equal(np.sort(bundles.order), positions)
    of_bundle = np.repeat(np.arange(len(sizes)), sizes)
    needed = masks[(bundles.order - first) // 3]
    assert (bundles.to[of_bundle] & needed == needed).all()
    for number, to in enumerate(bundles.to):  # and to no other rank
        assert to == np.bitwise_or.reduce(needed[of_bundle == number])
    # Only the remainders of each set of receivers, less than a frame each, share frames.
    mixed = [
        number for number, to in enumerate(bundles.to) if (needed[of_bundle == number] != to).any()
    ]
    assert len(mixed) <= -(-len(np.unique(masks)) * (rows - 1) // rows)
    assert (bundles.order.dtype, bundles.starts.dtype, bundles.to.dtype) == (
        np.int32,
        np.int64,
        np.uint32,
    )


def test_frames_for_different_ranks_alternate() -> None:
    masks = np.repeat([1, 2, 4], [40, 20, 10]).astype(np.uint32)
    assert bundle(np.arange(70), masks, 10).to.tolist() == [1, 2, 1, 4, 1, 2, 1]


@given(st.data(), layouts)
def test_any_choice_of_vertices_takes_no_more_frames_than_all(data, layout) -> None:
    count = data.draw(st.integers(0, 200))
    chosen = np.flatnonzero(data.draw(hnp.arrays(bool, count)))
    drawn = np.random.default_rng(count).integers(1, 16, count).astype(np.uint32)
    assert len(bundle(chosen, drawn[chosen], layout.rows).to) <= bundle_bound(count, layout.rows)
