"""All states of small exchanges in which frames are lost, delayed, duplicated, damaged or
misdelivered and ranks die; and what goes wrong without each rule.

``TESTBED_EXPLORE`` limits how many states of each larger exchange are visited; 5,000,000 take
several minutes and gigabytes. Without it few states are visited, breadth first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from testbed.protocol.pinch.memory import Peer
from testbed.protocol.pinch.packet import U32, Packet, bits_of, check_of, word_in
from testbed.protocol.pinch.policy import Actions, Policy, Seen
from testbed.protocol.pinch.process import Process
from testbed.protocol.pinch.rank import Rank
from testbed.protocol.pinch.work import DROP, Claim, Out
from testbed.protocol.sequence import seq_of, word_of
from testbed.protocol.wire import PinchKind, frame_seal
from tests.support.explore import Counterexample, deep, depth, explore
from tests.support.protocol.pinch_system import FIELDS, Exchanges, Ranks, Scene

pytestmark = pytest.mark.timeout(3600)

NOTHING = [[0, 0], [0, 0]]
PAIR = [[0, 1], [1, 0]]
TWO = [[0, 2], [2, 0]]
ONE_WAY = [[0, 1], [0, 0]]
TWO_ONE_WAY = [[0, 2], [0, 0]]
CHAIN = [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
TO_THE_LAST = [[0, 0, 1], [0, 0, 1], [0, 0, 0]]
RING = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
ALONE = [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
STRANGERS = [[0, 0, 0]] * 3
EMBED = frozenset({PinchKind.EMBED})


def kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


MOST = kinds("lose", "duplicate", "hold", "kick", "stall", "damage", "rename")

SCENES = {
    "two frames are lost": Scene([PAIR, PAIR], 2, kinds("lose")),
    "anything goes wrong, but timers": Scene([PAIR, PAIR], 1, MOST, brisk=True),
    "a timer is early": Scene([ONE_WAY, ONE_WAY], 1, kinds("early")),
    "a bit flips": Scene([PAIR, PAIR], 1, flips=FIELDS, seq=4),
    "numbers wrap": Scene([PAIR, PAIR], 1, kinds("lose"), seq=0xFFFFFFFF),
    "a duplicate is claimed late": Scene(
        [ONE_WAY, ONE_WAY], 2, kinds("duplicate", "stall"), brisk=True
    ),
    "two frames, and none": Scene([TWO_ONE_WAY, NOTHING], 1, kinds("lose", "kick", "damage")),
    "frames are filled one by one": Scene([TWO, PAIR], 1, kinds("lose"), slow=True),
    "hubs": Scene([PAIR, PAIR], 1, kinds("lose", "duplicate", "kick", "stall"), hubs=True),
    "a scale does not hold": Scene([PAIR, PAIR], 1, kinds("lose", "kick"), holds=(False, True)),
    "words that half the range has gone by": Scene(
        [PAIR, PAIR], 1, kinds("lose"), seq=1 << 30, before=(1 << 31) + 9
    ),
    "a value is too large": Scene([PAIR, PAIR], 1, kinds("lose"), nonfinite=0, partners=True),
    "a rank dies, and a frame is lost": Scene([PAIR, PAIR], 1, kinds("lose"), crash=True),
    "one of a chain dies": Scene([CHAIN], crash=True, partners=True, brisk=True),
    "a switch floods": Scene([CHAIN], 1, kinds("flood"), partners=True, brisk=True, only=EMBED),
}
"""Scenes that are explored completely, so each is known to come to an end."""

LARGE = (
    "a timer is early",
    "words that half the range has gone by",
    "two frames, and none",
    "anything goes wrong, but timers",
    "a bit flips",
    "a duplicate is claimed late",
    "frames are filled one by one",
    "hubs",
    "a rank dies, and a frame is lost",
    "one of a chain dies",
    "a switch floods",
)

DEEP = {
    "anything, twice": Scene([ONE_WAY, ONE_WAY], 2, MOST | {"early"}),
    "anything, whenever processes act": Scene([PAIR, PAIR], 1, MOST | {"early"}),
    "two frames each way": Scene([TWO], 1, MOST | {"early"}),
    "two frames each way, filled one by one": Scene([TWO], 1, MOST | {"early"}, slow=True),
    "numbers wrap, and frames come twice": Scene(
        [PAIR, PAIR], 1, kinds("lose", "duplicate"), seq=0xFFFFFFFF
    ),
    "a duplicate is claimed late, whenever processes act": Scene(
        [ONE_WAY, ONE_WAY], 2, kinds("duplicate", "stall")
    ),
    "a ring, and a frame is lost": Scene([RING], 1, kinds("lose"), brisk=True),
    "a chain, one of whom has too large a value": Scene(
        [CHAIN], 1, kinds("lose"), nonfinite=0, partners=True, brisk=True
    ),
    "all meet, and a switch floods": Scene([ALONE], 1, kinds("flood"), brisk=True, only=EMBED),
    "a ring, and a switch floods": Scene([RING], 1, kinds("flood"), brisk=True),
    "three ranks, one dies, and a handshake is lost": Scene(
        [STRANGERS], 1, kinds("lose"), crash=True, brisk=True
    ),
    "a late duplicate, and a bit flips": Scene(
        [PAIR, PAIR], 2, kinds("duplicate"), flips=("seq",), seq=4
    ),
    "a ring, twice": Scene([RING, RING], brisk=True),
}


@pytest.mark.parametrize("name", deep(SCENES, LARGE))
def test_every_sum_is_right_and_every_exchange_ends(name, record_property) -> None:
    found = explore(Exchanges(Ranks(SCENES[name])))
    record_property("explored", f"exchange, {name}: {found}")
    assert found.complete
    assert found.ends > 0


@pytest.mark.deep
@pytest.mark.parametrize("name", DEEP)
def test_larger_exchanges_as_far_as_there_is_time(name, record_property) -> None:
    record_property(
        "explored", f"exchange, {name}: {explore(Exchanges(Ranks(DEEP[name])), depth(5_000))}"
    )


# Ranks that each lack one rule.


class TakesWhatIsForOthers(Rank):
    def is_for_me(self, packet: Packet) -> bool:
        return (
            packet.sender < self.config.ranks
            and packet.sender != self.config.rank
            and packet.source == packet.sender
        )


class ClaimsBeforeItVerifies(Rank):
    def verify(self, packet: Packet) -> bool:
        if not self._is_expected(packet) or self.is_late(packet.seq):
            return super().verify(packet)
        index = self.config.sources[packet.sender].seen + packet.chunk // 32
        claim, _ = self._add_bits(self.seen, index, packet.seq, 1 << packet.chunk % 32)
        self._claimed = claim
        return super().verify(packet)

    def claim(self, packet: Packet, late: bool, by_link: bool = True) -> Out:
        if self._claimed is Claim.CLAIMED and not late:
            self.seen[self.config.sources[packet.sender].seen + packet.chunk // 32] &= ~(
                1 << packet.chunk % 32
            )
        return super().claim(packet, late, by_link)


class ClaimsBackwards(Rank):
    def _add_bits(self, bitmap: list[int], index: int, seq: int, bits: int) -> tuple[Claim, int]:
        fresh = bits & ~bits_of(bitmap[index], seq)
        if not fresh:
            return Claim.TAKEN, 0
        bitmap[index] = word_of(seq, bits_of(bitmap[index], seq) | bits)
        return Claim.CLAIMED, fresh


class VerifiesNothing(Rank):
    def verify(self, packet: Packet) -> bool:
        return super().verify(packet.sealed())


def seal_without(name: str) -> Callable[..., Rank]:
    """Ranks whose seal does not cover a field."""

    class Careless(Rank):
        def verify(self, packet: Packet) -> bool:
            careless = frame_seal(packet._replace(**{name: 0}).header)
            good = check_of(packet.body[: packet.length // 8]) + careless & (1 << 64) - 1
            return super().verify(packet.sealed() if packet.checksum == good else packet)

        def _address(self, packet: Packet, to: int, length: int = 128) -> Packet:
            addressed = super()._address(packet, to, length)
            if addressed.kind != PinchKind.EMBED:
                return addressed
            careless = frame_seal(addressed._replace(**{name: 0}).header)
            return addressed._replace(
                checksum=check_of(addressed.body[: length // 8]) + careless & (1 << 64) - 1
            )

    return Careless


class KeepsStaleWords(Process):
    def forget(self, before: int, seq: int) -> None:
        return


class AnswersNoLateFrames(Rank):
    def claim(self, packet: Packet, late: bool, by_link: bool = True) -> Out:
        return DROP if late else super().claim(packet, late)

    def _on_ask(self, packet: Packet) -> bool:
        return super()._on_ask(packet) and not self.is_late(packet.seq)


class AnswersOnlyOfItsOwn(Rank):
    def _answer(self, peer: Peer, seq: int) -> int:
        return word_in(peer.ours, self.seq) or peer.ours[~self.seq & 1]


class GoesOnUnacknowledged(Rank):
    def is_complete(self, seq: int) -> bool:
        return seq_of(self.met) == seq and self.received == self.met & U32 and not self.owed


class GoesOnWithoutItsHubs(Rank):
    def is_complete(self, seq: int) -> bool:
        return (
            seq_of(self.met) == seq
            and self.received == self.met & U32
            and self.acked == self.copies
        )


class SendsBeforeAllHaveCome(Rank):
    def meet(self) -> bool:
        before, self.partners = self.partners, 1 << self.config.rank
        try:
            return super().meet()
        finally:
            self.partners = before


class TellsNobody(Rank):
    def _note_end(self, sender: int, nonfinite: int, gone: int, late: int) -> None:
        super()._note_end(sender, 0, 0, 0)


class AsksOnlyThoseBehind(Policy):
    def act(self, seen: Seen) -> Actions:
        actions = super().act(seen)
        handshake = actions.handshake if any(map(seen.is_behind, seen.partners)) else 0
        return Actions(handshake, actions.asks, actions.resends, actions.work)


class AsksForNoAcknowledgement(Policy):
    def act(self, seen: Seen) -> Actions:
        actions = super().act(seen)
        return Actions(actions.handshake, {}, {}, actions.work)


class BelievesTheLastAnswerAlone(Policy):
    def _silence(self, seen: Seen, rank: int) -> int:
        heard, _ = self.asked.get(rank, (seen.heard[rank], 0))
        return self.tries if seen.heard[rank] == heard else 0


@dataclass(frozen=True)
class Mutant:
    """A rule that is removed, and a scene in which this shows.

    :param options: Arguments of `Ranks`.
    :param what: A part of the text of the error that is found.
    """

    options: dict[str, Any]
    scene: Scene
    what: str = field(default="no end can be reached any more")


WRONG = "has \\["
MUTANTS = {
    "takes what is for others": Mutant(
        {"make": TakesWhatIsForOthers, "linger": False},
        Scene([CHAIN], 1, kinds("flood"), brisk=True, only=EMBED),
        WRONG,
    ),
    "claims before it verifies": Mutant(
        {"make": ClaimsBeforeItVerifies}, Scene([PAIR], 1, kinds("damage"))
    ),
    "claims backwards": Mutant({"make": ClaimsBackwards}, SCENES["a duplicate is claimed late"]),
    "verifies nothing": Mutant({"make": VerifiesNothing}, Scene([PAIR], 1, kinds("damage")), WRONG),
    "does not seal the sender": Mutant(
        {"make": seal_without("sender"), "linger": False},
        Scene([TO_THE_LAST], 1, kinds("rename"), brisk=True, partners=True, only=EMBED),
        WRONG,
    ),
    "does not seal the number": Mutant(
        {"make": seal_without("chunk")}, Scene([TWO_ONE_WAY], 1, flips=("chunk",)), WRONG
    ),
    "does not seal the sequence number": Mutant(
        {"make": seal_without("seq")},
        Scene([ONE_WAY, ONE_WAY], 2, kinds("duplicate"), flips=("seq",), seq=4),
        WRONG,
    ),
    "forgets nothing": Mutant(
        {"make_process": KeepsStaleWords}, SCENES["words that half the range has gone by"]
    ),
    "does not linger": Mutant({"linger": False}, Scene([PAIR], 1, kinds("lose"))),
    "answers no late frames": Mutant(
        {"make": AnswersNoLateFrames}, Scene([PAIR, PAIR], 1, kinds("lose"))
    ),
    "answers only of its own exchange": Mutant(
        {"make": AnswersOnlyOfItsOwn}, Scene([NOTHING] * 3, 1, kinds("lose"))
    ),
    "goes on unacknowledged": Mutant(
        {"make": GoesOnUnacknowledged}, Scene([PAIR, PAIR], 1, kinds("lose")), "."
    ),
    "goes on without its hubs": Mutant(
        {"make": GoesOnWithoutItsHubs}, Scene([PAIR], 1, kinds("kick"), hubs=True), WRONG
    ),
    "sends before all have come": Mutant(
        {"make": SendsBeforeAllHaveCome}, Scene([PAIR, PAIR]), "."
    ),
    "does not pass the end on": Mutant({"make": TellsNobody}, SCENES["a value is too large"]),
    "asks only those that are behind": Mutant(
        {"make_policy": AsksOnlyThoseBehind}, Scene([PAIR], 1, kinds("kick"))
    ),
    "asks for no acknowledgement": Mutant(
        {"make_policy": AsksForNoAcknowledgement}, Scene([PAIR], 1, kinds("lose"))
    ),
    "believes the last answer alone": Mutant(
        {"make_policy": BelievesTheLastAnswerAlone},
        DEEP["three ranks, one dies, and a handshake is lost"],
        "have gone, while",
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", MUTANTS)
def test_removing_a_rule_shows_what_it_is_for(name, record_property) -> None:
    mutant = MUTANTS[name]
    with pytest.raises(Counterexample, match=mutant.what) as found:
        explore(Exchanges(Ranks(mutant.scene, **mutant.options)))
    record_property(
        "explored", f"exchange, {name}: {found.value.what}, after {len(found.value.moves)} moves"
    )
