"""Everything that can happen to small rings: sums are exact, collectives end once faults end, and
no healthy rank is blamed. Mutants that lack a rule are detected.

``TESTBED_EXPLORE`` limits how many states each test visits; without it, a test takes some seconds.
Larger scenes are explored breadth first, so everything that needs few moves has been covered.
"""

import pytest

from testbed.protocol.ring.memory import Chunk
from testbed.protocol.ring.streams import Work
from testbed.protocol.wire import ENDED, Frame, Kind
from tests.support.explore import Counterexample, deep, depth, explore
from tests.support.protocol.ring_system import (
    Budget,
    RankState,
    Reaction,
    RingSystem,
    Scene,
    State,
    TinyProcess,
    TinyRank,
)

FAULTS = ("lose", "duplicate", "delay", "flip", "unseen", "crash", "hold", "early")
pytestmark = pytest.mark.timeout(3600)

SCENES = {
    "two ranks, any two faults": Scene(eager=True),
    "two ranks, any fault, processes at any time": Scene(
        budget=Budget(1), faults=(*FAULTS, "stray")
    ),
    "two ranks, two chunks": Scene(
        totals=(2, 1), budget=Budget(1), faults=("lose", "delay", "unseen")
    ),
    "two ranks, asking owners": Scene(upstream=False, budget=Budget(2), eager=True),
    "three ranks, any fault": Scene(ranks=3, budget=Budget(1), eager=True),
    "three ranks, two losses": Scene(ranks=3, eager=True, data=True, faults=("lose",)),
    "three ranks, strays and losses": Scene(
        ranks=3, eager=True, data=True, flips=("seq",), faults=("stray", "lose")
    ),
    "three ranks, two chunks": Scene(
        ranks=3, totals=(2, 2), budget=Budget(1), eager=True, faults=("lose", "delay", "unseen")
    ),
    "three ranks, sums that hide errors": Scene(
        ranks=3, totals=(1,), eager=True, late_looks=True, data=True, faults=("unseen",)
    ),
    "three ranks, one that is gone and a loss": Scene(
        ranks=3, totals=(1,), eager=True, faults=("crash", "lose")
    ),
    "three ranks, asking owners": Scene(ranks=3, upstream=False, budget=Budget(1), eager=True),
}
LARGE = (
    "three ranks, one that is gone and a loss",
    "two ranks, any fault, processes at any time",
    "three ranks, two losses",
    "three ranks, strays and losses",
    "three ranks, asking owners",
)
"""Scenes that are explored completely only if ``TESTBED_EXPLORE`` is large enough."""

DEEP = (*LARGE, "two ranks, two chunks", "two ranks, asking owners", "three ranks, any fault")


@pytest.mark.parametrize("name", deep(SCENES, DEEP))
def test_every_sum_is_right_and_every_collective_ends(name, record_property):
    states = depth(50_000 if name in LARGE else 100_000)
    record_property("explored", f"{name}: {explore(RingSystem(SCENES[name]), states)}")


class WritesFirst(TinyRank):
    """Writes a result before verifying it, and takes it back if it is wrong."""

    def _on_result(self, w: Work) -> Frame | None:
        chunk, header = self.chunks[w.index], w.frame.header
        expected = self._expected(w)
        if header.seq == w.seq and w.index < w.ready and chunk.result >> 32 != w.seq:
            self.results[w.index] = w.frame.take(w.length)
            if w.frame.sum(w.length) != expected:
                chunk.result = 0
        return super()._on_result(w)


class ClaimsBackwards(TinyRank):
    """Replaces any entry that has another sequence number, even a newer one, without checking
    again.
    """

    def _advance(self, chunk: Chunk, name: str, before: int, after: int) -> bool:
        if getattr(chunk, name) >> 32 == after >> 32:
            return False
        setattr(chunk, name, after)
        return True


class TrustsTheHeader(TinyRank):
    """The seal does not cover the sequence number of the collective."""

    def _expected(self, w: Work) -> int:
        header = w.frame.header
        kept = header.seq
        expected = {super()._expected(w)}
        for seq in (2, 3):
            header.seq = seq
            expected.add(super()._expected(w))
        header.seq = kept
        good = w.frame.sum(w.length)
        return good if good in expected else super()._expected(w)


class ForgetsRounds(TinyRank):
    """Does not distinguish a reduce-scatter phase that starts over from the one before."""

    def _restart(self, w: Work, round_: int) -> Frame | None:
        return self._launch(w, round_, again=True)


class PassesNothingOn(TinyRank):
    """With `origin`, does not forward nacks to the owner."""

    def _pass_on(self, w: Work, prev: int) -> None:
        return None


class SaysNothing(TinyRank):
    """Answers to probes do not name the frame that was sent last."""

    def _name_latest(self, w: Work, seq: int) -> None:
        super()._name_latest(w, seq)
        if w.frame.header.kind == Kind.ALIVE:
            w.frame.header.prev = 0xFFFFFFFF


class AsksForNothingBlindly(TinyProcess):
    """A process requests only frames that it knows to be lost."""

    def stall(self, now_us: int, still: bool = True) -> None:
        super().stall(now_us, False)


class HearsAnything(TinyRank):
    """Takes any frame that names a rank, damaged ones included, as a sign of life."""

    def _note_life(self, w: Work) -> None:
        w.verified = True
        super()._note_life(w)


class TellsNobody(RingSystem):
    """A rank that gives up closes without telling the others."""

    tells = False


class BlamesTheMessenger(TinyRank):
    """Blames the rank that reports a failure instead of the ranks that it names."""

    def _note_rank(self, w: Work) -> None:
        header = w.frame.header
        if header.flags & ENDED:
            header.blamed = 1 << header.sender
        super()._note_rank(w)


class NobodyStays(RingSystem):
    """A rank leaves as soon as it is done."""

    lingers = False


class LeavesTheSilent(RingSystem):
    """Ranks do not wait for a rank that has left one question unanswered, even if it still needs
    something.
    """

    def _ask_around(self, here: RankState, index: int) -> Reaction:
        asked = super()._ask_around(here, index)
        return asked._replace(rank=asked.rank._replace(ages=(1,) * self.scene.ranks))

    def _may_leave(self, state: State, index: int) -> bool:
        ages = self.parts[state.ranks[index]].ages
        quiet = not any(state.links)
        return super()._may_leave(state, index) or (
            quiet and all(ages[other] for other in self._waits_for(state.ranks[index], index))
        )


class Impatient(RingSystem):
    """One unanswered question makes a rank silent."""

    rounds = 1


def mutant(
    rank: type[TinyRank] = TinyRank, process: type[TinyProcess] = TinyProcess
) -> type[RingSystem]:
    return type("Mutant", (RingSystem,), {"rank_class": rank, "process_class": process})


STRAYS = Scene(ranks=3, eager=True, data=True, flips=("seq",), faults=("stray", "lose"))
MUTANTS = {
    "written before it is verified": (mutant(WritesFirst), STRAYS),
    "claims that go backwards": (
        mutant(ClaimsBackwards),
        Scene(data=True, faults=("hold", "duplicate")),
    ),
    "a seal without the collective's number": (
        mutant(TrustsTheHeader),
        Scene(faults=("flip", "duplicate", "delay")),
    ),
    "rounds that are not told apart": (
        mutant(ForgetsRounds),
        Scene(budget=Budget(1), eager=True, faults=("unseen",)),
    ),
    "nothing but losses that are known": (
        mutant(SaysNothing, AsksForNothingBlindly),
        Scene(eager=True, faults=("lose",)),
    ),
    "nacks that are not passed on": (mutant(PassesNothingOn), Scene(upstream=False, eager=True)),
    "damaged frames as signs of life": (
        mutant(HearsAnything),
        Scene(budget=Budget(1), faults=("flip",)),
    ),
    "a rank that gives up does not say so": (
        TellsNobody,
        Scene(ranks=3, totals=(1,), budget=Budget(1), eager=True, faults=("crash",)),
    ),
    "the messenger is blamed": (
        mutant(BlamesTheMessenger),
        Scene(ranks=3, totals=(1,), budget=Budget(1), eager=True, faults=("crash",)),
    ),
    "no rank lingers": (NobodyStays, Scene(budget=Budget(1), faults=("lose",))),
    "a silent rank is left": (LeavesTheSilent, Scene(faults=("lose",))),
    "one unanswered question is enough": (Impatient, Scene(budget=Budget(1), faults=("lose",))),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_rule_there_is_a_counterexample(name, record_property):
    system, scene = MUTANTS[name]
    with pytest.raises(Counterexample) as found:
        explore(system(scene), depth(60_000))
    record_property("explored", f"{name}: {found.value.what}, after {len(found.value.moves)} moves")
