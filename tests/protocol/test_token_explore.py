"""All states of small exchanges by tokens in which frames are lost, duplicated, reordered, damaged
and land late; and what goes wrong without each rule.
"""

from typing import Any

import pytest

from testbed.protocol.pinch.packet import Packet
from testbed.protocol.sequence import seq_of, word_of
from testbed.protocol.token.process import Process
from testbed.protocol.token.rank import CLAIMED, Rank
from tests.support.explore import Counterexample, deep, depth, explore
from tests.support.protocol.token_system import Scene, Tokens

pytestmark = pytest.mark.timeout(3600)

PAIR = [[0, 1], [1, 0]]
TWO = [[0, 2], [2, 0]]
ONE_WAY = [[0, 1], [0, 0]]
TWO_ONE_WAY = [[0, 2], [0, 0]]
FIVE = [[0, 5], [0, 0]]
CHAIN = [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
RING = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
STAR = [[0, 1, 1], [1, 0, 0], [1, 0, 0]]


def kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


ALL = kinds("lose", "duplicate", "damage", "stall", "early")

SCENES = {
    "two tokens each": Scene(TWO, 2, window=2),
    "frames are lost": Scene(PAIR, 3, 2, kinds("lose")),
    "anything goes wrong": Scene(PAIR, 2, 2, ALL),
    "one way, and three exchanges": Scene(ONE_WAY, 3, 2, kinds("lose", "duplicate")),
    "two frames one way": Scene(TWO_ONE_WAY, 2, 1, ALL),
    "numbers wrap": Scene(PAIR, 3, 1, ALL, seq=0xFFFFFFFE),
    "a chain": Scene(CHAIN, 2, 1, kinds("lose")),
    "late duplicates": Scene(PAIR, 3, 2, kinds("duplicate", "stall")),
    "fewer frames": Scene(TWO, 3, window=2, later=PAIR),
    "fewer frames, and anything": Scene(TWO_ONE_WAY, 3, 1, ALL, window=2, later=ONE_WAY),
    "a doorbell": Scene([[0, 4], [2, 0]], 2, window=2, stride=2),
    "a doorbell, anything": Scene([[0, 3], [0, 0]], 2, 1, ALL, window=2, stride=2),
    "a doorbell, and tokens are lost": Scene(FIVE, 1, 2, kinds("lose"), window=2, stride=2),
}
"""Scenes that are explored completely, so each is known to come to an end."""

LARGE = (
    "a chain",
    "anything goes wrong",
    "fewer frames, and anything",
    "late duplicates",
    "numbers wrap",
    "one way, and three exchanges",
)

DEEP = {
    "two frames each way": Scene(TWO, 2, 1, ALL, window=2),
    "anything, three times": Scene(PAIR, 2, 3, ALL),
    "a ring": Scene(RING, 2, 1, ALL),
    "a star": Scene(STAR, 2, 1, ALL),
    "a chain, and anything": Scene(CHAIN, 3, 1, ALL),
    "a doorbell, frames each way": Scene([[0, 4], [3, 0]], 2, 1, ALL, window=2, stride=2),
    "a doorbell, three frames in flight": Scene([[0, 7], [2, 0]], 1, 2, ALL, window=3, stride=2),
}


@pytest.mark.parametrize("name", deep(SCENES, LARGE))
def test_all_rows_arrive_and_nobody_is_two_ahead(name, record_property) -> None:
    found = explore(Tokens(SCENES[name]))
    record_property("explored", f"tokens, {name}: {found}")
    assert found.complete
    assert found.ends > 0


@pytest.mark.deep
@pytest.mark.parametrize("name", DEEP)
def test_larger_exchanges_as_far_as_there_is_time(name, record_property) -> None:
    found = explore(Tokens(DEEP[name]), depth(50_000))
    record_property("explored", f"tokens, {name}: {found}")


# Ranks that each lack one rule.


class ClaimsBackwards(Rank):
    """A late frame may take the place of a later one."""

    def is_open(self, seq: int) -> bool:
        return True

    def claim(self, packet: Packet) -> int | None:
        index = self.slot_of(packet)
        word = self.slots[index].claim
        self.slots[index] = self.slots[index]._replace(claim=word_of(packet.seq, CLAIMED))
        return word if seq_of(word) != packet.seq else None


class TakesTwice(Rank):
    """A duplicate counts again."""

    def claim(self, packet: Packet) -> int | None:
        index = self.slot_of(packet)
        kept = self.slots[index]
        self.slots[index] = kept._replace(claim=0)
        word = super().claim(packet)
        if word is None:
            self.slots[index] = kept
        return word


class UsesTokensTwice(Rank):
    """A duplicate of a token is filled, too."""

    def _on_token(self, packet: Packet) -> Packet | None:
        index = self._out_of(packet)
        if index is not None:
            self.outs[index] = self.outs[index]._replace(acked=0)
        return super()._on_token(packet)


class BelievesAnything(Process):
    """The data is not verified."""

    def take(self) -> dict[int, list[tuple[int, ...]]] | None:
        for index, slot in enumerate(self.rank.slots):
            packet = Packet(0, 0, 0, body=(0, *slot.data))
            self.rank.slots[index] = slot._replace(check=check(packet))
        return super().take()


def check(packet: Packet) -> int:
    from testbed.protocol.pinch.packet import check_of

    return check_of(packet.body[1:])


class NeverAsks(Process):
    """What is lost stays lost."""

    def missing(self, partner: int) -> list[int]:
        return []


class NeverForgives(Process):
    """A token that is lost holds back the frames behind it, and its receiver is not patient."""

    def forgive(self) -> list[Packet]:
        return []


class KeepsNothing(Rank):
    """A question about the exchange before finds no answer."""

    def _on_ask(self, packet: Packet) -> Packet | None:
        return super()._on_ask(packet) if packet.seq == self.entered else None


MUTANTS: dict[str, tuple[dict[str, Any], Scene, str]] = {
    "claims move backwards": (
        {"make": ClaimsBackwards},
        Scene(PAIR, 3, 2, kinds("duplicate", "stall")),
        "instead of|no end|deadlock",
    ),
    "a duplicate counts again": (
        {"make": TakesTwice},
        Scene(TWO, 2, 1, kinds("duplicate"), window=2),
        "instead of|no end|deadlock",
    ),
    "a rank that sends nothing says nothing": (
        {},
        Scene(ONE_WAY, 3, 1, kinds("lose"), one_way=False),
        "is ahead of|no end|deadlock",
    ),
    "data is not verified": (
        {"make_process": BelievesAnything},
        Scene(PAIR, 1, 1, kinds("damage")),
        "instead of",
    ),
    "nobody asks": (
        {"make_process": NeverAsks},
        Scene(PAIR, 1, 1, kinds("lose")),
        "no end|deadlock",
    ),
    "tokens that do not come back hold the rest": (
        {"make_process": NeverForgives},
        Scene(FIVE, 1, 1, kinds("lose"), window=2, stride=2),
        "no end|deadlock",
    ),
    "payloads are not kept": (
        {"make": KeepsNothing},
        Scene(PAIR, 2, 1, kinds("lose")),
        "no end|deadlock",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_one_rule_something_goes_wrong(name) -> None:
    changes, scene, text = MUTANTS[name]
    with pytest.raises(Counterexample, match=text):
        explore(Tokens(scene, **changes))
