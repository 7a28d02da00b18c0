"""How tensors are laid out in chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.collectives.ring.layout import (
    BLOCKS,
    CHECK_BYTES,
    LEAST_BLOCK,
    Layout,
    Pace,
    chunk_bytes_for,
    chunks_for,
)
from testbed.protocol.lanes import Lanes
from testbed.protocol.status import status_bytes
from testbed.protocol.wire import BLOCK, LINEAR_PAYLOAD, MAX_PAYLOAD, offset_of

CHUNK_BYTES = st.integers(1, MAX_PAYLOAD // BLOCK).map(lambda blocks: blocks * BLOCK)


@given(
    st.integers(0, 1 << 22),
    st.builds(Lanes, st.sampled_from((16, 32)), st.integers(2, 32)),
    CHUNK_BYTES,
)
def test_layout(count, lanes, chunk_bytes) -> None:
    layout = Layout.plan(count, lanes, chunk_bytes)
    assert layout.count == count
    assert layout.status == status_bytes(lanes.ranks)
    # Everything fits, no chunk is superfluous, and the status shares no word with the lanes.
    usable = (layout.length if layout.total > 1 else chunk_bytes) - CHECK_BYTES
    needed = -(-count * lanes.bytes // 8) * 8 + layout.status
    assert (layout.total - 1) * usable < needed <= layout.total * usable
    # The status is at the very end.
    assert layout.status_at % 8 == 0
    assert layout.status_at >= needed - layout.status
    assert layout.status_at + layout.status == layout.total * (layout.length - CHECK_BYTES)
    assert layout.length % BLOCK == 0
    assert 0 < layout.length <= chunk_bytes
    if layout.total > 1:
        # All frames are full. Jumbo ones are shorter if that takes no rank more of them.
        assert layout.length == chunk_bytes or chunk_bytes > LINEAR_PAYLOAD
        rounds = -(-needed // (lanes.ranks * (chunk_bytes - CHECK_BYTES)))
        assert -(-layout.total // lanes.ranks) <= rounds or chunk_bytes <= LINEAR_PAYLOAD
    else:
        assert 0 <= layout.length - (needed + CHECK_BYTES) < BLOCK
    # Blocks are whole chunks; there are few blocks, and each is large enough to be worth a kick.
    whole = count // (usable // lanes.bytes)
    assert layout.block * BLOCKS >= whole
    assert layout.block * usable >= LEAST_BLOCK - CHECK_BYTES * layout.block
    most = chunks_for(count, lanes, chunk_bytes)
    assert layout.total == most or (chunk_bytes > LINEAR_PAYLOAD and layout.total < most)


@given(
    st.builds(Lanes, st.sampled_from((16, 32)), st.integers(2, 32)),
    CHUNK_BYTES,
    st.integers(0, 1 << 20),
)
def test_more_values_never_take_fewer_chunks(lanes, chunk_bytes, count) -> None:
    """This means that maps sized for the capacity hold every smaller tensor."""
    assert chunks_for(count, lanes, chunk_bytes) <= chunks_for(count + 1, lanes, chunk_bytes)


@given(
    st.integers(0, 5000),
    st.builds(Lanes, st.sampled_from((16, 32)), st.integers(2, 32)),
    CHUNK_BYTES,
)
def test_the_status_is_found_again(count, lanes, chunk_bytes) -> None:
    layout = Layout.plan(count, lanes, chunk_bytes)
    usable = layout.length - CHECK_BYTES
    stream = np.zeros(layout.total * usable, np.uint8)
    status = np.arange(1, 1 + layout.status, dtype=np.uint64).astype(np.uint8)
    stream[layout.status_at : layout.status_at + layout.status] = status
    memory = np.full((layout.total, chunk_bytes), 9, np.uint8)
    memory[:, :usable] = stream.reshape(layout.total, usable)
    assert layout.status_in(memory.reshape(-1), chunk_bytes) == status.tobytes()


@pytest.mark.parametrize("mtu", [576, 1400, 1500, 3490, 3506, 3560, 9000, 65_535])
def test_frames_fit_the_mtu(mtu) -> None:
    chunk_bytes = chunk_bytes_for(mtu)
    assert chunk_bytes % BLOCK == 0
    assert chunk_bytes <= MAX_PAYLOAD
    packet = offset_of(chunk_bytes) - 14 + chunk_bytes
    assert packet <= mtu
    assert chunk_bytes in (LINEAR_PAYLOAD, MAX_PAYLOAD) or packet + BLOCK > mtu


@given(st.integers(0, 1 << 24), st.sampled_from([16, 32]), st.integers(0, 1 << 22))
def test_segments_cover_a_tensor_in_equal_parts(size, bits, most) -> None:
    lanes, pace = Lanes(bits, 4), Pace(segment=most)
    if most and size * lanes.bytes > 1000 * most:
        return
    parts = pace.cut(size, lanes)
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert sum(map(len, parts)) == size
    assert all(min(1, size) <= len(part) <= pace.longest(size, lanes) for part in parts)
    assert len({len(part) for part in parts[:-1]}) <= 1
    assert len(parts) == max(1, -(-size // max(1, pace.longest(size, lanes))))


@given(st.integers(1, 1 << 22), st.integers(1, 8), st.integers(1, 1 << 24), st.integers(64, 65_535))
def test_what_a_user_gives_replaces_the_rule(count, tokens, size, most) -> None:
    lanes = Lanes(16, 4)
    chunk_bytes = chunk_bytes_for(65_535, most)
    assert chunk_bytes == min(most // BLOCK * BLOCK, MAX_PAYLOAD)
    layout = Layout.plan(count, lanes, chunk_bytes, pace=Pace(tokens, size))
    rule = Layout.plan(count, lanes, chunk_bytes)
    if rule.total > 1:
        assert (layout.block - 1) * rule.length < size <= layout.block * rule.length
    assert layout.window == (tokens if chunk_bytes > LINEAR_PAYLOAD else 0)
    assert (layout.total, layout.length) == (rule.total, rule.length)
