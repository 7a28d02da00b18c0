"""Whole collectives in which every program, every map and every byte is compared with
`testbed.protocol`, step by step.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from testbed.protocol.sequence import NEWEST
from testbed.protocol.wire import BLOCK, LINEAR_PAYLOAD, encode
from tests.support.kernel.reference import KernelRank, ReferenceProcess, ReferenceRank
from tests.support.protocol.actions import ACTIONS, SCRIPTS, act
from tests.support.protocol.network import PHASES, Member, Network, collectives, config
from tests.support.tiers import broad

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("one_cpu")]

CHUNK_BYTES = 2 * BLOCK
JUMBO_BYTES = LINEAR_PAYLOAD + 4096 + 512 + BLOCK  # a slice of each length
CHUNKS = 8
LONG_AGO = 1 << 30  # microseconds: the holdoff suppresses every nack but the first


class Stock:
    """Loaded programs by rank, ranks and nack holdoff: loading takes longer than a whole
    example.
    """

    def __init__(self) -> None:
        self.loaded: dict[tuple[int, ...], KernelRank] = {}

    def get(
        self, rank: int, ranks: int, upstream: bool, reorder_threshold: int, chunk_bytes: int
    ) -> KernelRank:
        key = rank, ranks, upstream, reorder_threshold, chunk_bytes
        if key not in self.loaded:
            terms = {"upstream": upstream, "reorder_threshold": reorder_threshold}
            setting = config(rank, ranks, chunk_bytes=chunk_bytes, chunks=CHUNKS, **terms)
            self.loaded[key] = KernelRank(setting)
        return self.loaded[key]


@pytest.fixture(scope="module")
def stock() -> Iterator[Stock]:
    made = Stock()
    yield made
    for kernel in made.loaded.values():
        kernel.close()


@contextmanager
def network_of_references(
    stock,
    ranks,
    todo,
    window=3,
    nack_holdoff_us=0,
    seq=0,
    upstream=False,
    reorder_threshold=0,
    chunk_bytes=CHUNK_BYTES,
) -> Iterator[Network]:
    network = Network(
        ranks,
        todo,
        window=window,
        nack_holdoff_us=nack_holdoff_us,
        chunk_bytes=chunk_bytes,
        seq=seq,
    )
    with ExitStack() as stack:
        for index in range(ranks):
            kernel = stock.get(index, ranks, upstream, reorder_threshold, chunk_bytes)
            kernel.reset(seq, nack_holdoff_us)
            rank = ReferenceRank(kernel.config, seq=seq, nack_holdoff_us=nack_holdoff_us)
            rank.kernel = kernel
            process = ReferenceProcess(rank, window)
            stack.enter_context(process.native)
            network.members[index] = Member(rank, window, todo)
            network.members[index].process = process
        yield network


SCENES = {
    "totals": st.lists(st.integers(1, CHUNKS - 1), min_size=1, max_size=3),
    "phases": st.sampled_from((PHASES[:1], PHASES[1:], PHASES[::-1])),
    "window": st.integers(1, 3),
    "nack_holdoff_us": st.sampled_from((0, LONG_AGO)),
    "seq": st.sampled_from((0, NEWEST - 1, NEWEST)),
    "script": SCRIPTS,
}
#: The programs of each rank are loaded for each way of recovery and each threshold, for a second.
FEW = SCENES | {"ranks": st.integers(2, 3), "way": st.sampled_from(((False, 0), (True, 1)))}
ALL = SCENES | {"ranks": st.integers(2, 4), "way": st.tuples(st.booleans(), st.integers(0, 1))}


def compare(stock, chunk_bytes, ranks, totals, phases, script, way, seq, **scene) -> None:
    """Loss, duplication, reordering and damage as drawn; then the exact sum, unless the holdoff
    suppresses nacks forever.
    """
    words, seed = chunk_bytes // 8, len(script)
    todo = collectives(ranks, totals, after=seq, words=words, seed=seed, phases=phases)
    scene |= {"upstream": way[0], "reorder_threshold": way[1], "chunk_bytes": chunk_bytes}
    with network_of_references(stock, ranks, todo, seq=seq, **scene) as network:
        for action, index in script:
            act(network, action, index)
        if not scene["nack_holdoff_us"]:
            network.run()


def examples(number: int) -> settings:
    return settings(max_examples=number, suppress_health_check=[HealthCheck.too_slow])


PROBED_BEFORE_IT_ENTERS = [("step", 1), ("step", 1), ("timer", 1), ("serve", 1), ("deliver", 0)]
SIMPLE = {"window": 1, "nack_holdoff_us": 0, "seq": 0, "phases": PHASES[:1]}


@example(ranks=2, totals=[1], script=PROBED_BEFORE_IT_ENTERS, way=(False, 0), **SIMPLE)
@examples(40)
@given(**FEW)
def test_every_step_equals_the_reference_models(stock, **scene) -> None:
    compare(stock, CHUNK_BYTES, **scene)


@examples(15)
@given(**FEW)
def test_so_is_every_step_with_jumbo_frames(stock, **scene) -> None:
    """Payloads need fragments, in which nothing is copied and nothing grows."""
    compare(stock, JUMBO_BYTES, **scene)


@pytest.mark.deep
@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES, JUMBO_BYTES])
@examples(150)
@given(**ALL)
def test_so_is_every_step_of_more_ranks_in_all_ways(stock, chunk_bytes, **scene) -> None:
    compare(stock, chunk_bytes, **scene)


FIELDS = {
    "version": 8,
    "kind": 8,
    "group": 16,
    "cookie": 64,
    "seq": 32,
    "chunk": 32,
    "checksum": 64,
    "stream": 8,
    "hop": 8,
    "sender": 8,
    "receiver": 8,
    "flags": 8,
    "round": 8,
    "length": 16,
    "tag": 16,
    "attempt": 16,
    "prev": 32,
}


def forge(network: Network, chance: random.Random) -> None:
    """Deliver a frame with one change: another value in a field, a few flipped bits, or another
    length.
    """
    frame = network.in_flight[chance.randrange(len(network.in_flight))].copy()
    to = int(frame.destination.ip.rpartition(".")[2]) - 1
    member = network.members[
        chance.choice((to, to, chance.randrange(len(network.members)))) % len(network.members)
    ]
    what = chance.randrange(4)
    if what == 0:
        field = chance.choice(list(FIELDS))
        near = getattr(frame.header, field) + chance.choice((-2, -1, 1, 2))
        value = chance.choice((near, chance.randrange(9), chance.getrandbits(64)))
        setattr(frame.header, field, value & (1 << FIELDS[field]) - 1)
    data = bytearray(encode(frame))
    if what == 1:
        for _ in range(chance.randint(1, 3)):
            bit = chance.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
    elif what == 2:
        del data[chance.randint(14, len(data)) :]
    elif what == 3:
        data += chance.randbytes(chance.randrange(100))
    network.emit_all(member.rank, member.rank.on_bytes(bytes(data)))


@pytest.mark.parametrize("seed", broad(range(12), 2))
def test_forged_frames_are_judged_alike(stock, seed) -> None:
    """Thousands of frames with wrong fields or flipped bits, truncated or extended. The sums are
    not checked, as forged fields may change them.
    """
    chance = random.Random(seed)
    ranks = chance.choice((2, 3, 4))
    todo = collectives(
        ranks, [chance.randint(1, CHUNKS) for _ in range(4)], words=CHUNK_BYTES // 8, seed=seed
    )
    with network_of_references(
        stock, ranks, todo, upstream=seed % 2 == 1, reorder_threshold=seed % 3
    ) as network:
        for member in network.members:
            member.verified = False
        forged = 0
        for _ in range(700):
            act(network, chance.choice((*ACTIONS, "step", "serve")), chance.randrange(1000))
            if network.in_flight and chance.random() < 0.6:
                forge(network, chance)
                forged += 1
        assert forged > 200
