"""Frames that somebody else has made, or that something has damaged: counted by reason, dropped, and no map changed.

``TESTBED_HOSTILE_FRAMES`` is how many mutated frames a rank gets, with each way of recovery; not set: 100,000.
"""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.collectives.lanes import Lanes
from testbed.collectives.xdp_ring import _Tensor
from testbed.kernel import XDP_DROP, XDP_REDIRECT, XDP_TX, Program
from testbed.kernel.libbpf import TestRunOpts, check, libbpf
from testbed.protocol.memory import PARKING, Order
from testbed.protocol.wire import FRAME_BYTES, Endpoint, Kind, Words, checksum, decode, encode, weigh
from tests.kernel import packets
from tests.kernel.packets import CHUNKS, GENERATION, LENGTH, RANK, RANKS, TAG, TOTAL, bell, loaded, packet, reduce, result
from tests.kernel.twin import KernelRank
from tests.native.process import NativeProcess

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

FRAMES = int(os.environ.get("TESTBED_HOSTILE_FRAMES", "100_000"))
BATCH = 250
SPARE = 8
WIDTH = FRAME_BYTES + LENGTH + 64
LATER = GENERATION + 1

FIELDS = [(42, 2), (44, 1), (45, 1), (46, 2), (48, 8), (56, 4), (60, 4), (64, 8), *((place, 1) for place in range(72, 76))]
FIELDS += [(76, 2), (78, 2)]
"""Offsets and widths of the fields of the ring's header."""


def from_outside(data: bytes) -> bytes:
    frame = decode(data)
    assert frame is not None
    return encode(replace(frame, source=Endpoint("02:00:00:00:00:63", "10.0.0.99")))


def tag_of(bits: int) -> int:
    return _Tensor(1, Lanes(bits, RANKS), LENGTH).tag(0)


def request(chunk: int, source: int = RANK + 1, **fields: int) -> bytes:
    return packet(source=source, **{"kind": Kind.REQUEST, "chunk": chunk, "last": source} | fields)


REFUSED = {
    "cookie of another run, lap one": ("bad_cookie", reduce(2, cookie=1)),
    "cookie of another run, lap two": ("bad_cookie", result(0, cookie=1)),
    "cookie of another run, probe": ("bad_cookie", packet(kind=Kind.PROBE, cookie=1)),
    "another version": ("bad_cookie", result(0, version=2)),
    "lap one of the collective before": ("bad_generation", reduce(2, generation=GENERATION - 1)),
    "lap two of the collective before": ("bad_generation", result(0, generation=GENERATION - 1)),
    "lap two of the next collective": ("bad_generation", result(0, generation=LATER)),
    "lap one of the one after the next": ("bad_generation", reduce(2, generation=GENERATION + 2)),
    "lap one of half the range away": ("bad_generation", reduce(2, generation=GENERATION + 0x80000000)),
    "no generation": ("bad_generation", result(0, generation=0)),
    "request, collective before": ("bad_generation", request(1, generation=GENERATION - 1)),
    "request, next collective": ("bad_generation", request(1, generation=LATER)),
    "request, a chunk never launched": ("bad_generation", request(4)),
    "request, a chunk beyond the tensor": ("bad_chunk", request(7)),
    "request of a host outside": ("bad_rank", from_outside(request(1))),
    "no payload": ("bad_length", result(0, length=0)),
    "half a block": ("bad_length", result(0, length=LENGTH - 32)),
    "payload of another tensor": ("bad_length", result(0, length=LENGTH // 2)),
    "payload that is not there": ("bad_length", result(0)[:-8]),
    "more payload than a chunk": ("bad_length", result(0, length=0xFFC0)),
    "another tensor": ("bad_tensor", result(0, tag=TAG ^ 1)),
    "lane type of another rank": ("bad_tensor", result(0, tag=tag_of(32))),
    "hop of another rank": ("bad_rank", reduce(2, hop=1)),
    "hop beyond the ring": ("bad_rank", result(0, hop=RANKS)),
    "end beyond the ring": ("bad_rank", result(0, last=RANKS)),
    "lap one of a host outside": ("bad_rank", from_outside(reduce(2))),
    "lap two of a host outside": ("bad_rank", from_outside(result(0))),
    "probe of a host outside": ("bad_rank", from_outside(packet(kind=Kind.PROBE, last=0))),
    "answer of a host outside": ("bad_rank", from_outside(packet(kind=Kind.ALIVE, last=0))),
    "probe in this rank's own name": ("bad_rank", packet(kind=Kind.PROBE, last=RANK, source=RANK)),
    "answer in this rank's own name": ("bad_rank", packet(kind=Kind.ALIVE, last=RANK, source=RANK)),
    "answer of a rank beyond the mask": ("bad_rank", packet(kind=Kind.ALIVE, last=255)),
    "chunk beyond the tensor": ("bad_chunk", reduce(TOTAL)),
    "chunk beyond the maps": ("bad_chunk", reduce(CHUNKS + 1, generation=LATER)),
    "chunk beyond everything": ("bad_chunk", result(0xFFFFFFFF)),
    "a bell that comes by the link": ("bad_kind", bell()),
    "no kind": ("bad_kind", result(0, kind=0)),
    "another kind": ("bad_kind", result(0, kind=255)),
    "wrong sum, the end of lap one": ("bad_checksum", reduce(2, checksum=1)),
    "wrong sum, lap two": ("bad_checksum", result(0, checksum=1)),
    "lap one that says it is lap two": ("bad_checksum", relabelled := bytearray(result(0, kind=Kind.REDUCE))),
    "the collective before, as if of this one": ("bad_checksum", redated := bytearray(result(0, generation=GENERATION - 1))),
    "another chunk": ("bad_checksum", renamed := bytearray(result(0))),
}
relabelled[45] = Kind.RESULT
redated[56] = GENERATION
renamed[60] = 3


def memory(kernel: KernelRank) -> dict[str, bytes]:
    """All that programs can write to, but for counters, and results that do not count: frames are summed up while copied."""
    tables = {name: kernel.object.maps[name] for name in ("parking_data", "asks", "fronts")}
    found = {name: b"".join(table.lookup(key) for key in range(table.max_entries)) for name, table in tables.items()}
    held = kernel.results[kernel.records["done"] != 0]
    shared = {"inputs": kernel.inputs, "results": held, "records": kernel.records, **kernel.bytes}
    return found | {name: part.tobytes() for name, part in shared.items()} | {"events": kernel.producer.tobytes()}


@pytest.fixture(scope="module", params=[(False, 0), (True, 1)], ids=["origin", "upstream"])
def both(request) -> Iterator[tuple[KernelRank, NativeProcess]]:
    upstream, gap = request.param
    with loaded(upstream=upstream, gap=gap, spare=SPARE) as made:
        yield made


@pytest.mark.parametrize("name", REFUSED)
def test_refused_frames_are_counted_and_change_nothing(both, name) -> None:
    kernel, native = both
    packets.prepare(kernel, native)
    reason, data = REFUSED[name]
    kernel.run("ring_link", result(1))  # something to lose
    counted = kernel.counters()
    before = memory(kernel)
    assert kernel.run("ring_link", bytes(data)).retval == XDP_DROP
    assert memory(kernel) == before
    assert kernel.counters() == counted | {reason: counted[reason] + 1}


def test_every_reason_is_met() -> None:
    """But `parking_full` and `overtaken`, which are nobody's fault."""
    assert len({reason for reason, _ in REFUSED.values()}) == 8


def test_requests_for_an_earlier_collective_are_answered_from_its_results(both) -> None:
    """A straggler's: as long as the result is held, and with the number of the collective that it belongs to."""
    kernel, native = both
    packets.prepare(kernel, native)
    kernel.run("ring_link", result(1))
    native.begin(LATER, TOTAL, LENGTH, TAG)
    run = kernel.run("ring_link", request(1))
    assert run.retval == XDP_TX
    answer = decode(run.data)
    assert (answer.header.kind, answer.header.generation) == (Kind.RESULT, GENERATION)
    np.testing.assert_array_equal(answer.payload, packets.total_of(1))


def input_of(rank: int, chunk: int) -> Words:
    """Lanes of 32 bits with room for all ranks' sum, and their check."""
    random = np.random.default_rng([rank, chunk])
    words = random.integers(0, (1 << 32) // RANKS, LENGTH // 4, dtype=np.uint32).view(np.uint64)
    words[-1] = weigh(words[:-1])
    return words


def sum_of(ranks: range, chunk: int) -> Words:
    return np.sum([input_of(rank % RANKS, chunk) for rank in ranks], axis=0, dtype=np.uint64)


def good_frames() -> list[bytes]:
    """Of every kind, and of every chunk."""
    made = [bell(), packet(kind=Kind.PROBE, last=0), packet(kind=Kind.ALIVE, last=2, source=2, generation=GENERATION)]
    made += [request(1), request(4), request(1, source=0)]
    for chunk in range(TOTAL):
        owner = chunk % RANKS
        hops = (RANK - owner) % RANKS
        words = sum_of(range(RANKS), chunk)
        lap_two = {"kind": Kind.RESULT, "last": (owner - 2) % RANKS, "hop": (RANK - owner + 1) % RANKS, "flags": 1}
        made += [packet(words, chunk=chunk, generation=each, **lap_two) for each in (GENERATION, GENERATION - 1)]
        if hops:
            words = sum_of(range(owner, owner + hops), chunk)
            made += [packet(words, kind=Kind.REDUCE, chunk=chunk, hop=hops, generation=each) for each in (GENERATION, LATER)]
    return made


class Mutations:
    """Good frames with flipped bits, other values in fields, words that have changed places, cut or grown; reproducible."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        made = good_frames()
        self.good = np.array([np.frombuffer(data.ljust(WIDTH, b"\0"), np.uint8) for data in made])
        self.lengths = np.array([len(data) for data in made])

    def draw(self, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Frames, and how long each is."""
        random, rows = self.random, np.arange(count)
        chosen = random.integers(len(self.good), size=count)
        frames, lengths = self.good[chosen], self.lengths[chosen]
        flips = random.integers(0, 7, count)
        in_payload = random.random(count) < 0.4
        for step in range(6):
            place = np.where(in_payload, random.integers(FRAME_BYTES, WIDTH, count), random.integers(0, FRAME_BYTES, count))
            frames[rows, place] ^= np.where(step < flips, 1 << random.integers(8, size=count), 0).astype(np.uint8)
        for row in rows[random.random(count) < 0.4]:
            place, width = FIELDS[random.integers(len(FIELDS))]
            value = random.choice((0, 0xFF, random.integers(256)), width if random.random() < 0.5 else 1)
            frames[row, place : place + value.size] = value
        words = frames[:, FRAME_BYTES : FRAME_BYTES + LENGTH].copy().view(np.uint64)
        for row in rows[random.random(count) < 0.1]:
            one, other = random.integers(words.shape[1], size=2)
            words[row, [one, other]] = words[row, [other, one]]
        frames[:, FRAME_BYTES : FRAME_BYTES + LENGTH] = words.view(np.uint8)
        cut = random.random(count) < 0.1
        lengths[cut] = random.integers(14, WIDTH + 1, count)[cut]
        return frames, lengths


class Runner:
    """A program, run on frames where they lie: a `Program.test_run` without its copies."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.room = ctypes.create_string_buffer(4096)
        self.options = TestRunOpts(sz=ctypes.sizeof(TestRunOpts), repeat=1, data_out=ctypes.addressof(self.room))
        self.run = libbpf().bpf_prog_test_run_opts

    def __call__(self, frames: NDArray[np.uint8], lengths: NDArray[np.int64]) -> set[int]:
        """The verdicts that there were."""
        options, by_reference, fd, run = self.options, ctypes.byref(self.options), self.program.fd, self.run
        verdicts, start = set(), frames.ctypes.data
        for index, length in enumerate(lengths.tolist()):
            place = start + index * frames.strides[0]
            options.data_in, options.data_size_in, options.data_size_out = place, length, len(self.room)
            check(run(fd, by_reference), "test run")
            verdicts.add(options.retval)
        return verdicts


def prepare(kernel: KernelRank, native: NativeProcess) -> None:
    packets.prepare(kernel, native)
    for chunk in range(TOTAL):
        kernel.inputs[chunk] = input_of(RANK, chunk)
        kernel.records["input_sum"][chunk] = checksum(kernel.inputs[chunk])


def assert_sound(kernel: KernelRank, generation: int) -> int:
    """What is stored is the sum, or is refused by its check where it is read; nothing else is touched. How much is refused."""
    wrong = 0
    done = kernel.records["done"][:TOTAL] == generation
    assert kernel.control.stored == done.sum()
    for chunk in np.flatnonzero(done):
        if not (kernel.results[chunk] == sum_of(range(RANKS), int(chunk))).all():
            assert weigh(kernel.results[chunk, :-1]) != kernel.results[chunk, -1], chunk
            wrong += 1
    for chunk in range(TOTAL):
        np.testing.assert_array_equal(kernel.inputs[chunk], input_of(RANK, chunk))
    for beyond in (kernel.inputs[TOTAL:], kernel.results[TOTAL:], kernel.records[TOTAL:].view(np.uint8)):
        assert not beyond.any()
    assert (kernel.control.progress, kernel.control.ordered) == (generation << 32 | TOTAL, kernel.control.taken)
    return wrong


@pytest.mark.parametrize("program", ["ring_link", "ring_order", "ring_bell"])
def test_mutated_frames_store_nothing_but_sums(both, program) -> None:
    """And what they park does no harm in the collective that it is parked for.

    A plain sum of words does not see errors that cancel out: the chunk's check does, when its result is read.
    """
    kernel, native = both
    mutations, run = Mutations(seed=len(program)), Runner(kernel.object.programs[program])
    verdicts: set[int] = set()
    counted = dict.fromkeys(kernel.counters(), 0)
    refused = 0
    for _ in range((FRAMES if program == "ring_link" else FRAMES // 10) // BATCH):
        prepare(kernel, native)
        verdicts |= run(*mutations.draw(BATCH))
        refused += assert_sound(kernel, GENERATION)
        native.begin(LATER, TOTAL, LENGTH, TAG)
        native.publish(LATER, TOTAL)
        native.rings()
        assert {order.kind for order in native.waiting()} <= {Order.REPLAY, Order.LAUNCH}
        for _ in native.waiting():
            verdicts.add(kernel.run("ring_order", bell()).retval)
        refused += assert_sound(kernel, LATER)
        for name, count in kernel.counters().items():
            counted[name] += count
    assert verdicts <= {XDP_DROP, XDP_TX, XDP_REDIRECT}  # never XDP_ABORTED
    if program == "ring_link":
        assert all(counted[reason] for reason, _ in REFUSED.values())
        assert counted["stored"] > refused > 0
        assert counted["parked"] > 0


def test_mutated_parking_stays_within_its_slots(both) -> None:
    """However many frames come early: no state but free and parked, no slot for a chunk that is not its own."""
    kernel, native = both
    prepare(kernel, native)
    Runner(kernel.object.programs["ring_link"])(*Mutations(seed=1).draw(20_000))
    parked = [(slot, entry) for slot, entry in enumerate(kernel.parking) if entry.state]
    assert parked
    for slot, entry in parked:
        assert entry.state == 2
        assert entry.generation == LATER or (entry.generation == GENERATION and entry.chunk >= TOTAL)
        assert slot % (PARKING // 4) == entry.chunk % (PARKING // 4)
