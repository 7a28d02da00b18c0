"""All that can happen to small rings: exact sums, an end once faults end, nobody innocent accused.
And mutants without a rule.

``TESTBED_EXPLORE`` sets how many states each test visits at most; without it, what takes some
seconds. Larger scenes are visited breadth first, so all that needs few moves has been seen.
"""

import pytest

from testbed.protocol.ring.memory import Chunk
from testbed.protocol.ring.sending import Work
from testbed.protocol.wire import Frame, Kind
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
    "three ranks, asking owners": Scene(ranks=3, upstream=False, budget=Budget(1), eager=True),
}
LARGE = (
    "two ranks, any fault, processes at any time",
    "three ranks, two losses",
    "three ranks, strays and losses",
    "three ranks, asking owners",
)
"""These are not visited whole unless ``TESTBED_EXPLORE`` says so."""


@pytest.mark.parametrize("name", deep(SCENES, LARGE))
def test_whatever_happens(name, record_property):
    states = depth(50_000 if name in LARGE else 100_000)
    record_property("explored", f"{name}: {explore(RingSystem(SCENES[name]), states)}")


class WritesFirst(TinyRank):
    """A result is written before it has been verified, and taken back if it is not good."""

    def _on_result(self, w: Work) -> Frame | None:
        chunk, header = self.chunks[w.index], w.frame.header
        expected = self._expected(w)
        if header.seq == w.seq and w.index < w.ready and chunk.result >> 32 != w.seq:
            self.results[w.index] = w.frame.take(w.length)
            if w.frame.sum(w.length) != expected:
                chunk.result = 0
        return super()._on_result(w)


class ClaimsBackwards(TinyRank):
    """Whatever is there is replaced, as long as it is of another sequence number; and nobody looks
    again.
    """

    def _advance(self, chunk: Chunk, name: str, before: int, after: int) -> bool:
        if getattr(chunk, name) >> 32 == after >> 32:
            return False
        setattr(chunk, name, after)
        return True


class TrustsTheHeader(TinyRank):
    """The seal leaves the number of the collective out."""

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
    """A reduce-scatter phase that starts over is not told from the one before."""

    def _restart(self, w: Work, round_: int) -> Frame | None:
        return self._launch(w, round_, again=True)


class PassesNothingOn(TinyRank):
    """With `origin`, a rank does not pass nacks on to the owner."""

    def _pass_on(self, w: Work, prev: int) -> None:
        return None


class SaysNothing(TinyRank):
    """Answers to probes do not name what was sent last."""

    def _name_latest(self, w: Work, seq: int) -> None:
        super()._name_latest(w, seq)
        if w.frame.header.kind == Kind.ALIVE:
            w.frame.header.prev = 0xFFFFFFFF


class AsksForNothingBlindly(TinyProcess):
    """A process asks only for what it knows to be lost."""

    def stall(self, now_us: int, still: bool = True) -> None:
        super().stall(now_us, False)


class HearsAnything(TinyRank):
    """Whatever names a rank is a sign that it is alive."""

    def _note_life(self, w: Work) -> None:
        w.verified = True
        super()._note_life(w)


class NobodyStays(RingSystem):
    """Who is done leaves."""

    lingers = False


class LeavesTheSilent(RingSystem):
    """A rank that has not answered one question is left, whatever it may need."""

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
    """One question without an answer is enough."""

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
    "no rank lingers": (NobodyStays, Scene(budget=Budget(1), faults=("lose",))),
    "a silent rank is left": (LeavesTheSilent, Scene(faults=("lose",))),
    "one unanswered question is enough": (Impatient, Scene(budget=Budget(1), faults=("lose",))),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_rule_there_is_a_counterexample(name, record_property):
    system, scene = MUTANTS[name]
    with pytest.raises(Counterexample) as found:
        explore(system(scene), depth(60_000))
    record_property("explored", f"{name}: {found.value.what}, after {len(found.value.moves)} moves")
