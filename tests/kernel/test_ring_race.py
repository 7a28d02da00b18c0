"""Two CPUs process the same frame at the same time: only one of them stores and counts it."""

import os

import numpy as np
import pytest

from testbed.protocol.ring.memory import ANYWHERE, SQ_ENTRIES, ResultState, WrKind
from testbed.protocol.sequence import word_of
from testbed.protocol.wire import Kind, checksum
from tests.support.kernel.packets import LENGTH, RANKS, SEQ, TAG, kick, loaded, packet
from tests.support.kernel.pair import Pair
from tests.support.tiers import broad

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing can race"),
]

ROUNDS = 3000


def frames(kind: Kind) -> list[bytes]:
    """Frames of one chunk each: this rank ends the chunk's reduce-scatter phase, or is the last in
    its all-gather phase.
    """
    made = []
    for index in range(ROUNDS):
        chunk = RANKS * index + (2 if kind == Kind.REDUCE else 0)
        words = np.full(LENGTH // 8, chunk, np.uint64)
        made.append(packet(words, kind=kind, chunk=chunk, hop=2))
    return made


@pytest.mark.parametrize("kind", broad([Kind.REDUCE, Kind.RESULT]))
def test_a_frame_and_its_duplicate_on_two_cpus_count_once(kind) -> None:
    with loaded(chunks=RANKS * ROUNDS) as (kernel, native):
        total = RANKS * ROUNDS
        ones = np.ones(LENGTH // 8, np.uint64)
        kernel.inputs[:] = ones
        kernel.records["input_sum"] = checksum(ones)
        native.begin(SEQ, total, LENGTH, TAG)
        native.control.progress = word_of(SEQ, total)
        batch = frames(kind)
        Pair(lambda turn: kernel.run("ring_link", batch[turn])).run(ROUNDS)
        counters = kernel.counters()
        assert counters["stored"] == kernel.control.stored == ROUNDS
        chunks = np.arange(RANKS * ROUNDS)[2 if kind == Kind.REDUCE else 0 :: RANKS]
        done = kernel.records["result"] == word_of(SEQ, ResultState.DONE)
        assert done.sum() == ROUNDS
        assert done[chunks].all()
        expected = chunks + (1 if kind == Kind.REDUCE else 0)
        assert (kernel.results[chunks] == expected[:, None]).all()
        # The other CPU's frame was a duplicate: in the reduce-scatter phase it is dropped, or
        # answered from the result if that was already stored.
        assert counters["duplicate"] + counters["answered"] == ROUNDS
        assert counters["bad_checksum"] == 0


def test_work_requests_are_executed_once() -> None:
    """Both CPUs serve kicks: no work request is lost, none is executed twice."""
    with loaded() as (kernel, native):
        for _ in range(SQ_ENTRIES):
            native.post(WrKind.PROBE, 0, 0, 0, ANYWHERE)
        data = kick()
        Pair(lambda turn: kernel.run("ring_execute", data)).run(SQ_ENTRIES // 2 + 100)
        assert native.waiting() == []
        assert kernel.control.sq_head == SQ_ENTRIES
        assert kernel.counters()["sent"] == SQ_ENTRIES
