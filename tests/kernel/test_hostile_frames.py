"""Forged or damaged frames: they are counted by reason and dropped, and change no map.

``TESTBED_HOSTILE_FRAMES`` is the number of mutated frames that a rank receives with each way of
recovery; default: 100,000.
"""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.collectives.ring.tensor_kind import TensorKind
from testbed.kernel import XDP_DROP, XDP_REDIRECT, XDP_TX
from testbed.protocol.lanes import Lanes
from testbed.protocol.ring.memory import COUNTERS, EARLY_SLOTS, ResultState, Stage, WrKind, item_of
from testbed.protocol.sequence import word_of
from testbed.protocol.wire import (
    FRAME_BYTES,
    RESTART,
    RESULT,
    VERIFIED,
    VERSION,
    Endpoint,
    Kind,
    Words,
    checksum,
    decode,
    encode,
    weigh,
)
from tests.support.kernel import packets
from tests.support.kernel.damage import damage
from tests.support.kernel.packets import (
    CHUNKS,
    LENGTH,
    RANK,
    RANKS,
    SEQ,
    TAG,
    TOTAL,
    kick,
    loaded,
    nack,
    packet,
    probe,
    reduce,
    result,
    total_of,
)
from tests.support.kernel.reference import KernelRank
from tests.support.kernel.runner import Runner
from tests.support.native.process import NativeProcess
from tests.support.tiers import broad

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

FRAMES = int(os.environ.get("TESTBED_HOSTILE_FRAMES", "200_000"))
FEW_FRAMES = 25_000
BATCH = 250
SPARE = 8
WIDTH = FRAME_BYTES + LENGTH + 64
LATER = SEQ + 1


def from_outside(data: bytes) -> bytes:
    frame = decode(data)
    assert frame is not None
    return encode(replace(frame, source=Endpoint("02:00:00:00:00:63", "10.0.0.99")))


def tag_of(bits: int) -> int:
    return TensorKind(1, Lanes(bits, RANKS), LENGTH).tag(0)


def relabel(data: bytes, **fields: int) -> bytes:
    """The frame with other fields, and with its original seal."""
    frame = decode(data)
    assert frame is not None
    return encode(replace(frame, header=replace(frame.header, **fields)))


ANEW = {"flags": RESTART}
REFUSED = {
    "cookie of another run, reduce-scatter": ("bad_cookie", reduce(2, cookie=1)),
    "cookie of another run, all-gather": ("bad_cookie", result(0, cookie=1)),
    "cookie of another run, probe": ("bad_cookie", probe(0, cookie=1)),
    "another version": ("bad_cookie", result(0, version=VERSION - 1)),
    "reduce-scatter for another rank": ("bad_receiver", reduce(2, receiver=2)),
    "all-gather for another rank": ("bad_receiver", result(0, receiver=0)),
    "all-gather to another rank's address": ("bad_receiver", result(0, to=2, receiver=RANK)),
    "nack for another rank": ("bad_receiver", nack(1, receiver=0)),
    "reduce-scatter of a switch that floods": ("bad_receiver", reduce(2, to=2)),
    "nack of a switch that floods": ("bad_receiver", nack(1, to=0)),
    "probe of a switch that floods": ("bad_receiver", probe(0, to=2)),
    "probe for another rank": ("bad_receiver", probe(0, receiver=2)),
    "answer for another rank": ("bad_receiver", probe(0, Kind.ALIVE, receiver=2)),
    "answer for a rank beyond all": ("bad_receiver", probe(0, Kind.ALIVE, receiver=255)),
    "reduce-scatter of the collective before": ("bad_seq", reduce(2, seq=SEQ - 1)),
    "all-gather of the collective before": ("bad_seq", result(0, seq=SEQ - 1)),
    "all-gather of the next collective": ("bad_seq", result(0, seq=LATER)),
    "reduce-scatter of the one after the next": ("bad_seq", reduce(2, seq=SEQ + 2)),
    "reduce-scatter of half the range away": ("bad_seq", reduce(2, seq=SEQ + 0x80000000)),
    "no sequence number": ("bad_seq", result(0, seq=0)),
    "nack, collective before": ("not_held", nack(1, seq=SEQ - 1)),
    "nack, next collective": ("not_held", nack(1, seq=LATER)),
    "nack, a chunk never launched": ("not_held", nack(4)),
    "restart nack, collective before": ("not_held", nack(1, seq=SEQ - 1, **ANEW)),
    "restart nack, next collective": ("not_held", nack(1, seq=LATER, **ANEW)),
    "nack, a chunk beyond the tensor": ("bad_tensor", nack(7)),
    "nack of a host outside": ("bad_rank", from_outside(nack(1))),
    "restart nack, another rank's chunk": ("bad_rank", nack(0, **ANEW)),
    "no payload": ("bad_length", result(0, length=0)),
    "half a block": ("bad_length", result(0, length=LENGTH - 32)),
    "payload of another tensor": (
        "bad_tensor",
        packet(total_of(0)[: LENGTH // 16], kind=Kind.RESULT, chunk=0, hop=2),
    ),
    "length of another tensor, wrong checksum": ("bad_checksum", result(0, length=LENGTH // 2)),
    "tag of another tensor, wrong checksum": ("bad_checksum", relabel(result(0), tag=TAG ^ 1)),
    "nack for another tensor, wrong checksum": ("bad_checksum", relabel(nack(1), tag=TAG ^ 1)),
    "payload that is not there": ("bad_length", result(0)[:-8]),
    "more payload than a chunk": ("bad_length", result(0, length=0xFFC0)),
    "another tensor": ("bad_tensor", result(0, tag=TAG ^ 1)),
    "lane type of another rank": ("bad_tensor", result(0, tag=tag_of(32))),
    "hop of another rank": ("bad_rank", reduce(2, hop=1)),
    "hop beyond the ring": ("bad_rank", result(0, hop=RANKS)),
    "reduce-scatter of a rank that is not before": ("bad_rank", reduce(2, source=2)),
    "reduce-scatter of a host outside": ("bad_rank", from_outside(reduce(2))),
    "all-gather of a host outside": ("bad_rank", from_outside(result(0))),
    "probe of a host outside": ("bad_rank", from_outside(probe(0))),
    "answer of a host outside": ("bad_rank", from_outside(probe(0, Kind.ALIVE))),
    "probe in this rank's own name": ("bad_rank", probe(RANK)),
    "answer in this rank's own name": ("bad_rank", probe(RANK, Kind.ALIVE)),
    "answer of a rank beyond the mask": ("bad_rank", probe(0, Kind.ALIVE, sender=255)),
    "chunk beyond the tensor": ("bad_tensor", reduce(TOTAL)),
    "chunk beyond the maps": ("bad_chunk", reduce(CHUNKS + 1, seq=LATER)),
    "chunk beyond everything": ("bad_chunk", result(0xFFFFFFFF)),
    "a kick that comes by the link": ("bad_kind", kick()),
    "no kind": ("bad_kind", result(0, kind=0)),
    "another kind": ("bad_kind", result(0, kind=255)),
    "wrong sum, reduce-scatter": ("bad_checksum", reduce(0, checksum=1)),
    "wrong sum, the end of reduce-scatter": ("bad_checksum", reduce(2, checksum=1)),
    "wrong sum, reduce-scatter of the next collective": (
        "bad_checksum",
        reduce(0, seq=LATER, checksum=1),
    ),
    "wrong sum, all-gather": ("bad_checksum", result(0, checksum=1)),
    "wrong sum, nack": ("bad_checksum", nack(1, checksum=1)),
    "wrong sum, restart nack": ("bad_checksum", nack(1, checksum=1, **ANEW)),
    "wrong sum, probe": ("bad_checksum", probe(0, checksum=1)),
    "wrong sum, answer": ("bad_checksum", probe(0, Kind.ALIVE, checksum=1)),
    "reduce-scatter that says it is all-gather": (
        "bad_checksum",
        relabel(result(0, kind=Kind.REDUCE), kind=Kind.RESULT),
    ),
    "the collective before, as if of this one": (
        "bad_checksum",
        relabel(result(0, seq=SEQ - 1), seq=SEQ),
    ),
    "another chunk": ("bad_checksum", relabel(result(0), chunk=3)),
    "another round": ("bad_checksum", relabel(result(0), round=1)),
    "another frame before": ("bad_checksum", relabel(result(0), prev=item_of(3, 0, Stage.RESULT))),
    "an answer that says more than was said": (
        "bad_checksum",
        relabel(probe(0, Kind.ALIVE), flags=VERIFIED),
    ),
    "a nack that wants more": ("bad_checksum", relabel(nack(1), **ANEW)),
}


def memory(kernel: KernelRank) -> dict[str, bytes]:
    """Everything that programs can write to, except counters and the numbers of frames per stream,
    which any frame increments.
    """
    tables = {
        name: kernel.object.maps[name]
        for name in ("ring_early_data", "ring_retransmit", "ring_retransmit_data")
    }
    found = {
        name: b"".join(table.lookup(key) for key in range(table.max_entries))
        for name, table in tables.items()
    }
    shared = {"inputs": kernel.inputs, "results": kernel.results, **kernel.memory}
    del shared["streams"]
    found |= {
        "streams": b"".join(
            kernel.memory["streams"][name].tobytes() for name in ("seq", "prev", "progress")
        )
    }
    nacks = [kernel.nacks(cpu) for cpu in range(kernel.object.maps["ring_nacks"].per_cpu)]
    found |= {"nacks": b"".join(each.fresh.tobytes() + each.again.tobytes() for each in nacks)}
    return (
        found
        | {name: part.tobytes() for name, part in shared.items()}
        | {"events": kernel.producer.tobytes()}
    )


@pytest.fixture(scope="module", params=[(False, 0), (True, 1)], ids=["origin", "upstream"])
def both(request) -> Iterator[tuple[KernelRank, NativeProcess]]:
    upstream, reorder_threshold = request.param
    with loaded(upstream=upstream, reorder_threshold=reorder_threshold, spare=SPARE) as made:
        yield made


@pytest.mark.parametrize("name", REFUSED)
def test_refused_frames_are_counted_and_change_nothing(both, name) -> None:
    kernel, native = both
    packets.prepare(kernel, native)
    reason, data = REFUSED[name]
    kernel.run("ring_link", result(1))  # state that could be damaged
    counted = kernel.counters()
    before = memory(kernel)
    assert kernel.run("ring_link", bytes(data)).retval == XDP_DROP
    assert memory(kernel) == before
    assert kernel.counters() == counted | {reason: counted[reason] + 1}


def test_every_reason_is_met() -> None:
    """Every reason for which a frame or its sender is to blame."""
    assert {reason for reason, _ in REFUSED.values()} == {"not_held"} | {
        name for name in COUNTERS if name.startswith("bad_")
    }


def test_nacks_for_an_earlier_collective_are_answered_from_its_results(both) -> None:
    """Nacks of a straggler, as long as the result is held; answers have the sequence number of the
    result's collective.
    """
    kernel, native = both
    packets.prepare(kernel, native)
    kernel.run("ring_link", result(1))
    native.begin(LATER, TOTAL, LENGTH, TAG)
    run = kernel.run("ring_link", nack(1))
    assert run.retval == XDP_TX
    answer = decode(run.data)
    assert (answer.header.kind, answer.header.seq) == (Kind.RESULT, SEQ)
    np.testing.assert_array_equal(answer.payload, packets.total_of(1))


def input_of(rank: int, chunk: int) -> Words:
    """Lanes of 32 bits with headroom for the sum over all ranks, and their check."""
    random = np.random.default_rng([rank, chunk])
    words = random.integers(0, (1 << 32) // RANKS, LENGTH // 4, dtype=np.uint32).view(np.uint64)
    words[-1] = weigh(words[:-1])
    return words


def sum_of(ranks: range, chunk: int) -> Words:
    return np.sum([input_of(rank % RANKS, chunk) for rank in ranks], axis=0, dtype=np.uint64)


def good_frames() -> list[bytes]:
    """Valid frames of every kind, and of every chunk."""
    made = [
        kick(),
        probe(0),
        probe(0, Kind.ALIVE, prev=item_of(3, 0, Stage.RESULT)),
        probe(2, Kind.ALIVE, flags=VERIFIED),
    ]
    made += [nack(1), nack(4), nack(1, source=0), nack(1, flags=RESULT, summed=0), nack(1, **ANEW)]
    made += [nack(0), nack(1, seq=SEQ - 1)]
    for chunk in range(TOTAL):
        owner = chunk % RANKS
        hops = (RANK - owner) % RANKS
        words = sum_of(range(RANKS), chunk)
        all_gather = {"kind": Kind.RESULT, "hop": (RANK - owner + 1) % RANKS}
        made += [packet(words, chunk=chunk, seq=each, **all_gather) for each in (SEQ, SEQ - 1)]
        if hops:
            words = sum_of(range(owner, owner + hops), chunk)
            reduce_scatter = {
                "kind": Kind.REDUCE,
                "hop": hops,
                "prev": item_of(chunk, 0, Stage.PARTIAL),
            }
            made += [
                packet(words, chunk=chunk, seq=each, **reduce_scatter) for each in (SEQ, LATER)
            ]
    return made


class Mutations:
    """Valid frames with flipped bits, other values in fields or swapped words, truncated or
    extended; reproducible.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        made = good_frames()
        self.good = np.array([np.frombuffer(data.ljust(WIDTH, b"\0"), np.uint8) for data in made])
        self.lengths = np.array([len(data) for data in made])

    def draw(self, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return frames, and the length of each."""
        random, rows = self.random, np.arange(count)
        chosen = random.integers(len(self.good), size=count)
        frames, lengths = self.good[chosen], self.lengths[chosen]
        damage(random, frames, WIDTH, 6)
        words = frames[:, FRAME_BYTES : FRAME_BYTES + LENGTH].copy().view(np.uint64)
        for row in rows[random.random(count) < 0.1]:
            one, other = random.integers(words.shape[1], size=2)
            words[row, [one, other]] = words[row, [other, one]]
        frames[:, FRAME_BYTES : FRAME_BYTES + LENGTH] = words.view(np.uint8)
        cut = random.random(count) < 0.1
        lengths[cut] = random.integers(14, WIDTH + 1, count)[cut]
        return frames, lengths


def prepare(kernel: KernelRank, native: NativeProcess) -> None:
    packets.prepare(kernel, native)
    for chunk in range(TOTAL):
        kernel.inputs[chunk] = input_of(RANK, chunk)
        kernel.records["input_sum"][chunk] = checksum(kernel.inputs[chunk])


def assert_sound(kernel: KernelRank, seq: int) -> int:
    """Check that each stored result is the sum or is refused by its check when it is read, and that
    nothing else was written. Return how many are refused.
    """
    wrong = 0
    done = kernel.records["result"][:TOTAL] >> np.uint64(32) == seq
    assert (kernel.records["result"][:TOTAL][done] & np.uint64(0xFF) == ResultState.DONE).all()
    assert kernel.control.stored == done.sum()
    for chunk in np.flatnonzero(done):
        if not (kernel.results[chunk] == sum_of(range(RANKS), int(chunk))).all():
            assert weigh(kernel.results[chunk, :-1]) != kernel.results[chunk, -1], chunk
            wrong += 1
    for chunk in range(TOTAL):
        np.testing.assert_array_equal(kernel.inputs[chunk], input_of(RANK, chunk))
    for beyond in (
        kernel.inputs[TOTAL:],
        kernel.results[TOTAL:],
        kernel.records[TOTAL:].view(np.uint8),
    ):
        assert not beyond.any()
    assert (kernel.control.progress, kernel.control.sq_tail) == (
        word_of(seq, TOTAL),
        kernel.control.sq_head,
    )
    return wrong


@pytest.mark.parametrize("frames", broad([FEW_FRAMES, FRAMES]))
@pytest.mark.parametrize("program", ["ring_link", "ring_execute", "ring_doorbell"])
def test_mutated_frames_store_nothing_but_sums(both, program, frames) -> None:
    """Mutated frames that are kept as early frames do no harm in their collective either.

    A plain sum of words misses errors that cancel out; the chunk's check detects them when its
    result is read.
    """
    kernel, native = both
    mutations, run = Mutations(seed=len(program)), Runner(kernel.object.programs[program])
    verdicts: set[int] = set()
    counted = dict.fromkeys(kernel.counters(), 0)
    refused = 0
    for _ in range((frames if program == "ring_link" else frames // 10) // BATCH):
        prepare(kernel, native)
        verdicts |= run(*mutations.draw(BATCH))
        refused += assert_sound(kernel, SEQ)
        native.begin(LATER, TOTAL, LENGTH, TAG)
        native.publish(LATER, TOTAL)
        native.kicks()
        assert {wr.kind for wr in native.waiting()} <= {WrKind.REPLAY, WrKind.LAUNCH}
        for _ in native.waiting():
            verdicts.add(kernel.run("ring_execute", kick()).retval)
        refused += assert_sound(kernel, LATER)
        for name, count in kernel.counters().items():
            counted[name] += count
    assert verdicts <= {XDP_DROP, XDP_TX, XDP_REDIRECT}  # never XDP_ABORTED
    if program == "ring_link":
        reasons = {reason for reason, _ in REFUSED.values()}
        # Damage is never mistaken for another tensor.
        assert {reason for reason in reasons if not counted[reason]} == {"bad_tensor"}
        assert counted["stored"] > refused > 0
        assert counted["early"] > 0


def test_mutated_early_frames_stay_within_their_slots(both) -> None:
    """However many frames arrive early, slots are only free or waiting, and each holds only chunks
    that map to it.
    """
    kernel, native = both
    prepare(kernel, native)
    Runner(kernel.object.programs["ring_link"])(*Mutations(seed=1).draw(20_000))
    early = [(slot, entry) for slot, entry in enumerate(kernel.early_frames) if entry.state]
    assert early
    for slot, entry in early:
        assert entry.state == 2
        assert entry.seq == LATER or (entry.seq == SEQ and entry.chunk >= TOTAL)
        assert slot % (EARLY_SLOTS // 4) == entry.chunk % (EARLY_SLOTS // 4)
