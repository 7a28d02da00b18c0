"""Whole exchanges: every program, map and byte is compared with `testbed.protocol.pinch.rank`, step
by step.
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from testbed.protocol.sequence import NEWEST
from testbed.testing.graphs import Partitioned, draw_partitioned
from tests.support.kernel.pinch_reference import Compared
from tests.support.tiers import broad

pytestmark = pytest.mark.kernel

STEPS = 500
ACTIONS = (
    ("deliver",) * 5
    + ("ring",) * 5
    + ("step",) * 3
    + ("timer", "lose", "duplicate", "damage", "flood", "lose kick")
)


def fans() -> Partitioned:
    """A graph with vertices of many neighbours, which are added slice by slice."""
    return draw_partitioned(3, 1600, 300, 2, hub=1500)


def lonely() -> Partitioned:
    """A graph in which rank 0 shares edges with rank 1, and rank 1 with rank 2."""
    source = np.array([[4, 5, 6, 7], [0, 9, 2, 11], [4, 5, 6, 7]]).ravel()
    owner = np.repeat(np.arange(3), 4).astype(np.int32)
    return Partitioned(np.arange(13), source.astype(np.int32), np.ones(12, np.float32), owner, 3)


SCENES = {
    "spread": lambda: Compared(draw_partitioned(0, 60, 500, 3), 8, "sum", "int16", "spread", 576),
    "pinned": lambda: Compared(
        draw_partitioned(1, 60, 400, 4), 30, "weighted", "int32", "pinned", 576
    ),
    "parts": lambda: Compared(draw_partitioned(2, 40, 200, 3), 400, "max", "int16", "pinned", 576),
    "maxima": lambda: Compared(draw_partitioned(4, 60, 400, 2), 7, "max", "int32", "spread", 576),
    "lonely": lambda: Compared(lonely(), 8, "sum", "int16", "pinned", 576, known=True),
    "landing": lambda: Compared(
        draw_partitioned(5, 60, 400, 3), 9, "sum", "int32", "spread", 576, aggregate="process"
    ),
    "landing parts": lambda: Compared(
        draw_partitioned(6, 40, 200, 4), 200, "max", "int16", "pinned", 576, aggregate="process"
    ),
    "packed": lambda: Compared(
        draw_partitioned(7, 60, 1500, 3, hub=700), 9, "sum", "int32", "spread", 576, sums="packed"
    ),
    "packed hubs": lambda: Compared(fans(), 61, "sum", "int32", "pinned", 1500, sums="packed"),
    "hubs": lambda: Compared(fans(), 60, "weighted", "int32", "spread", 1500),
}


@pytest.fixture(scope="module", params=SCENES)
def compared(request) -> Iterator[Compared]:
    with SCENES[request.param]() as made:
        yield made


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The frame with one to three flipped bits, more often in the headers than elsewhere; or
    truncated, or extended.
    """
    wrong = bytearray(data)
    what = chance.randrange(5)
    if what == 0:
        return bytes(wrong[: chance.randint(14, len(wrong))])
    if what == 1:
        return bytes(wrong) + chance.randbytes(chance.randrange(1, 60))
    for _ in range(chance.randint(1, 3)):
        place = (
            chance.randrange(len(wrong)) if what == 2 else chance.randrange(26, min(96, len(wrong)))
        )
        wrong[place] ^= 1 << chance.randrange(8)
    return bytes(wrong)


def act(compared: Compared, action: str, chance: random.Random) -> None:
    """Perform an action, if it is possible."""
    index = chance.randrange(len(compared.members))
    if action == "step":
        compared.step(index)
    elif action == "timer":
        compared.timer(index)
    elif action in ("ring", "lose kick"):
        if compared.kicks:
            place = chance.randrange(len(compared.kicks))
            if action == "ring":
                compared.kick(place)
            else:
                compared.kicks.pop(place)
    elif compared.in_flight:
        place = chance.randrange(min(len(compared.in_flight), 40))
        data = compared.in_flight[place]
        if action == "deliver":
            compared.deliver(place)
        elif action == "lose":
            compared.in_flight.pop(place)
        elif action == "duplicate":
            compared.in_flight.append(data)
        elif action == "damage":
            compared.members[index].link(damaged(chance, data), chance.choice(compared.cpus))
        elif action == "flood":
            for member in compared.members:
                member.link(data, chance.choice(compared.cpus))


@pytest.mark.parametrize("seed", broad(range(6)))
def test_every_step_equals_the_reference_models(compared, seed) -> None:
    """Loss, duplication, reordering, damage, flooding, lost kicks and early timers; then no faults,
    until all sums are exact.
    """
    chance = random.Random(seed)
    seq = chance.choice((0, 4, (1 << 30) - 2, (1 << 31) - 2, NEWEST - 2))
    compared.begin(chance, seq, exchanges=3)
    for _ in range(STEPS):
        act(compared, chance.choice(ACTIONS), chance)
    compared.finish()
    reasons = ("bad_checksum", "bad_receiver", "bad_rank")
    refused = sum(member.rank.counters[name] for member in compared.members for name in reasons)
    assert refused > 0


@pytest.mark.parametrize(
    "why",
    [{"nonfinite": [0], "gone": [1]}, {"late": [2]}, {"nonfinite": [0], "late": [1, 2]}],
    ids=str,
)
def test_the_end_of_exchanges_equals_the_reference_models(compared, why) -> None:
    """One rank says that there will be no more exchanges, and all others learn this, whatever is
    lost.
    """
    chance = random.Random(1)
    compared.begin(chance, 4, exchanges=3)
    for step in range(STEPS):
        if step == 100:
            compared.members[0].end(**why)
        act(compared, chance.choice(ACTIONS), chance)
    while compared.in_flight or compared.kicks:
        compared.kick() if compared.kicks else compared.deliver()
    assert all(member.rank.has_ended for member in compared.members[1:2])
    for name in ("nonfinite", "gone", "late"):
        said = sum(1 << rank for rank in why.get(name, []))
        assert all(
            getattr(member.rank, name) == said
            for member in compared.members
            if member.rank.has_ended
        )
