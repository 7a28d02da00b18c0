"""Many chunks under heavy random faults, deeper than any exploration can go: the collective still
ends with the exact sum.
"""

import numpy as np
import pytest

from testbed.protocol.ring.process import Process
from testbed.protocol.ring.rank import Rank
from testbed.protocol.ring.streams import Work
from testbed.protocol.wire import Frame, Kind
from tests.support.protocol.actions import cancel
from tests.support.protocol.network import PHASES, Network, collectives
from tests.support.tiers import broad

ROUNDS = 3000
WORDS = 8


class Storm:
    """Faults for every frame, drawn from a seed.

    :param lose: Probability that a frame is lost; the probabilities that it is duplicated or late
        are a third of it each.
    :param spoil: Probability that a frame with data gets errors that cancel out in its sum.
    """

    def __init__(self, network: Network, seed: int, lose: float, spoil: float) -> None:
        self.network, self.random = network, np.random.default_rng(seed)
        self.lose, self.spoil = lose, spoil
        self.spoilt = 0

    def deliver(self) -> None:
        frame, draw = self.network.in_flight[0], self.random.random()
        if draw < self.lose:
            self.network.in_flight.pop(0)
            return
        if draw < self.lose * 4 / 3:
            self.network.in_flight.append(frame.copy())
        elif draw < self.lose * 5 / 3:
            self.network.in_flight.append(self.network.in_flight.pop(0))
            return
        if frame.header.kind in (Kind.REDUCE, Kind.RESULT) and self.random.random() < self.spoil:
            self._spoil(frame)
        self.network.deliver()

    def _spoil(self, frame: Frame) -> None:
        cancel(frame)
        self.spoilt += 1

    def run(self, rounds: int = ROUNDS) -> None:
        self.network.run(rounds, deliver=self.deliver)


@pytest.mark.parametrize("seed", broad(range(21)))
@pytest.mark.parametrize("upstream", [True, False])
@pytest.mark.parametrize(
    ("ranks", "lose", "spoil"), [(3, 0.3, 0.2), (5, 0.2, 0.05), (8, 0.1, 0.03)]
)
@pytest.mark.parametrize("phases", [PHASES[:1], PHASES[1:]], ids=["whole", "phases"])
def test_a_storm_ends_with_the_exact_sum(ranks, lose, spoil, upstream, seed, phases):
    totals = [3 * ranks, 2 * ranks, 2 * ranks][: max(2, len(phases))]
    todo = collectives(ranks, totals, words=WORDS, seed=seed, phases=phases)
    network = Network(
        ranks, todo, window=3, nack_holdoff_us=50, upstream=upstream, retransmit_slots=4
    )
    storm = Storm(network, seed, lose, spoil)
    storm.run()
    assert storm.spoilt > 0


class VerifiesLate(Process):
    """A process that verifies no result before all are stored."""

    def _verify_early(self, end: int) -> None:
        pass


@pytest.mark.deep
def test_without_early_verification_some_storms_never_end():
    """The deadlock takes too many refused results and losses for an exploration to reach it."""
    endless = 0
    for seed in range(8):
        network = Network(
            8, collectives(8, [24, 16], words=WORDS, seed=seed), window=3, nack_holdoff_us=50
        )
        for member in network.members:
            member.process = VerifiesLate(member.rank, 3)
        try:
            Storm(network, seed, 0.1, 0.03).run(300)
        except AssertionError:
            endless += 1
    assert endless


class SendsNoRoundAgain(Rank):
    """An owner that leaves a round of a scattered chunk to the ranks on its way, as it does with
    other chunks.
    """

    def _is_scattered(self, seq: int, index: int) -> bool:
        return super()._is_scattered(seq, index) and not self._restarting

    def _restart(self, w: Work, round_: int) -> Frame | None:
        self._restarting = True
        out = super()._restart(w, round_)
        self._restarting = False
        return out

    _restarting = False


@pytest.mark.deep
def test_without_a_round_sent_again_some_reduce_scatters_never_end():
    """Ranks that have sent on a scattered chunk do not miss its later rounds."""
    endless = 0
    for seed in range(9):
        todo = collectives(8, [24, 16], words=WORDS, seed=seed, phases=PHASES[1:2])
        network = Network(8, todo, window=3, nack_holdoff_us=50)
        for member in network.members:
            member.rank.__class__ = SendsNoRoundAgain
        try:
            Storm(network, seed, 0.1, 0.03).run(300)
        except AssertionError:
            endless += 1
    assert endless
