"""What a rank says when nothing moves, whom it waits for when ranks meet, and for whom it stays
when they part.
"""

from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed.collectives.ring.port import Peer
from testbed.collectives.ring.recovery import FIRST, Recovery
from testbed.comm.group import GroupSpec, make_groups
from testbed.core.errors import CollectiveError
from testbed.plan import plan_fabric
from testbed.protocol.ring.memory import WrKind

SEQ = 5
HERE = Peer(SEQ, 0, 0, 4)
ELSEWHERE = Peer(SEQ - 1, SEQ - 1, 0, 0)


class Port:
    """A port whose peers are as told, and of which no results come.

    :param peers: What the ranks say of themselves, this one's own included; called at each look,
        with how many there have been.
    :param heard: Frames that come from each rank each time that it is waited for.
    :param meanwhile: Frames of other tensors that come each time.
    """

    def __init__(
        self,
        spec: GroupSpec,
        peers: Callable[[int], Sequence[Peer]],
        heard: Sequence[int],
        before: int = 0,
        meanwhile: int = 0,
    ) -> None:
        self.spec, self._peers, self._came, self._meanwhile = spec, peers, before, meanwhile
        self.control = SimpleNamespace(stored=0, front=2, verified=0)
        self._heard, self._total = np.array(heard, np.uint64), np.zeros(len(heard), np.uint64)
        self.waits = 0
        self.probed: list[tuple[int, int]] = []

    def begin(self, seq: int) -> None:
        assert seq == FIRST

    def counters(self) -> dict[str, int]:
        return {"bad_tensor": self._came, "bad_length": 0, "bad_chunk": 0}

    def wait(self, total: int, seconds: float) -> bool:
        self._came += self._meanwhile
        self._total = self._total + self._heard
        self.waits += 1
        return False

    def moved(self) -> int:
        return 0

    def heard(self) -> np.ndarray:
        return self._total

    def peers(self) -> Sequence[Peer]:
        return self._peers(self.waits)

    def post(self, kind: WrKind, seq: int, chunk: int, attempt: int = 0) -> None:
        assert kind == WrKind.PROBE
        self.probed.append((chunk, attempt))

    def flush(self) -> None:
        pass


def spec(ranks: int = 3, **options: Any) -> GroupSpec:
    return make_groups(plan_fabric(hosts=ranks).hosts, group_id=1, **{"timeout": 0.05} | options)[0]


@pytest.mark.parametrize(
    ("peers", "heard", "before", "meanwhile", "why"),
    [
        ([HERE] * 3, [0, 0, 0], 0, 0, "rank 1 (h2), rank 2 (h3) silent for 0.05 s"),
        ([HERE] * 3, [0, 1, 0], 0, 1, "rank 2 (h3) silent for 0.05 s"),
        (
            [HERE, HERE, ELSEWHERE],
            [0, 1, 1],
            0,
            1,
            "rank 2 (h3) up, but not in this all-reduce after 0.05 s",
        ),
        ([HERE] * 3, [0, 1, 1], 7, 1, "no progress for 0.05 s: the ranks reduce different tensors"),
        (
            [HERE] * 3,
            [0, 1, 1],
            7,
            0,
            (
                "no progress for 0.05 s: chunk 2 of h3 is missing; h2, h3 are up, waiting for chunk"
                " 4 of h2"
            ),
        ),
        (
            [HERE, HERE, Peer(SEQ, SEQ, 0, 0)],
            [0, 1, 1],
            0,
            0,
            "no progress for 0.05 s: chunk 2 of h3 is missing; h2 is up, waiting for chunk 4 of h2",
        ),
    ],
)
def test_a_rank_says_why_nothing_moves(peers, heard, before, meanwhile, why) -> None:
    """Frames of other tensors count only if they have come in this collective."""
    recovery = Recovery(Port(spec(), lambda _: peers, heard, before, meanwhile))  # type: ignore[arg-type]
    with pytest.raises(CollectiveError) as failure:
        recovery.wait(SEQ, 9)
    assert str(failure.value).startswith(f"rank 0 (h1): {why} (all-reduce 5: 0 of 9 chunks after ")


def test_a_few_chunks_are_named_of_many() -> None:
    peers = [Peer(SEQ, 0, 0, rank) for rank in range(8)]
    recovery = Recovery(Port(spec(8), lambda _: peers, [1] * 8))  # type: ignore[arg-type]
    with pytest.raises(
        CollectiveError,
        match=r"waiting for chunk 4 of h5; and others for 3 more chunks \(all-reduce 5",
    ):
        recovery.wait(SEQ, 9)


def test_every_rank_is_probed_while_nothing_comes() -> None:
    """Many times within the timeout, each time with another number: a loss must not be taken for a
    rank that is gone.
    """
    port = Port(spec(), lambda _: [HERE] * 3, [0, 0, 0])
    with pytest.raises(CollectiveError):
        Recovery(port).wait(SEQ, 9)  # type: ignore[arg-type]
    assert {rank for rank, _ in port.probed} == {1, 2}
    assert [attempt for _, attempt in port.probed] == list(range(1, len(port.probed) + 1))
    assert len(port.probed) >= 2 * 10


def stopped() -> Callable[[], float]:
    """The clock of a process that is stopped for an hour between any two looks."""
    hours = count()
    return lambda: 3600.0 * next(hours)


def test_a_rank_that_was_stopped_looks_before_it_gives_up() -> None:
    """Whatever the others have sent meanwhile, it has not seen."""
    waiting = Port(spec(), lambda _: [HERE] * 3, [0, 0, 0])
    with pytest.raises(CollectiveError):
        Recovery(waiting, stopped()).wait(SEQ, 9)  # type: ignore[arg-type]
    meeting = Port(spec(), lambda _: [Peer(0, 0, 0, 0)] * 3, [0, 0, 0])
    with pytest.raises(CollectiveError):
        Recovery(meeting, stopped()).meet()  # type: ignore[arg-type]
    parting = Port(spec(), lambda _: [DONE, NEEDS, DONE], [0, 0, 0])
    Recovery(parting, stopped()).linger(SEQ)  # type: ignore[arg-type]
    assert min(port.waits for port in (waiting, meeting, parting)) >= 10


def test_ranks_meet_once_all_have_said_that_they_are_there() -> None:
    here, nobody = Peer(FIRST, 0, 0, 0), Peer(0, 0, 0, 0)
    port = Port(
        spec(),
        lambda waits: [nobody, here if waits > 1 else nobody, here if waits > 2 else nobody],
        [0, 0, 0],
    )
    Recovery(port).meet()  # type: ignore[arg-type]
    assert [rank for rank, _ in port.probed] == [1, 2, 1, 2, 2]
    assert port.control.verified == FIRST


def test_who_does_not_open_the_group_is_named() -> None:
    port = Port(
        spec(), lambda _: [Peer(0, 0, 0, 0), Peer(FIRST, 0, 0, 0), Peer(0, 0, 0, 0)], [0, 1, 0]
    )
    with pytest.raises(
        CollectiveError,
        match=r"^rank 0 \(h1\): no answer from rank 2 \(h3\) within 0.05 s: every member",
    ):
        Recovery(port).meet()  # type: ignore[arg-type]


DONE = Peer(SEQ, SEQ, SEQ, 0)
NEEDS = Peer(SEQ, SEQ - 1, SEQ, 0)
UNACKNOWLEDGED = Peer(SEQ, SEQ, SEQ - 1, 0)


@pytest.mark.parametrize(
    ("recovery", "peers", "stays_for"),
    [
        ("upstream", [DONE, DONE, DONE], set()),
        ("upstream", [DONE, NEEDS, DONE], {1}),  # the rank behind may ask
        ("upstream", [DONE, DONE, NEEDS], set()),  # nobody else does
        ("upstream", [DONE, DONE, UNACKNOWLEDGED], {2}),  # the rank before stays until it is told
        ("upstream", [DONE, UNACKNOWLEDGED, DONE], set()),
        ("origin", [DONE, DONE, NEEDS], {2}),
        ("origin", [DONE, UNACKNOWLEDGED, NEEDS], {1, 2}),
    ],
)
def test_a_rank_stays_for_those_that_may_need_it(recovery, peers, stays_for) -> None:
    """They are heard all the time; it asks them how they are until they are done, here after five
    looks.
    """
    port = Port(
        spec(timeout=5.0, recovery=recovery),
        lambda waits: peers if waits < 5 else [DONE] * 3,
        [0, 1, 1],
    )
    Recovery(port).linger(SEQ)  # type: ignore[arg-type]
    assert {rank for rank, _ in port.probed} == stays_for
    assert port.waits == (5 if stays_for else 0)


@pytest.mark.parametrize("other", [Peer(FIRST, 0, 0, 0), Peer(0, 0, 0, 0)])
def test_a_rank_that_has_summed_nothing_stays_for_all_that_have_not_met_it(other) -> None:
    met = Peer(FIRST, FIRST, FIRST, 0)
    port = Port(spec(timeout=5.0), lambda waits: [met, met, other if waits < 5 else met], [0, 1, 1])
    Recovery(port).linger(FIRST)  # type: ignore[arg-type]
    assert {rank for rank, _ in port.probed} == {2}
    assert port.waits == 5


class Seconds:
    """A clock that goes on by a tenth of a second at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def test_a_rank_that_says_nothing_new_is_waited_for_until_the_timeout() -> None:
    """Whether it is cut off, and not heard, or stopped, and its programs answer."""
    for heard in ([0, 0, 0], [0, 1, 1]):
        clock = Seconds()
        port = Port(spec(timeout=10.0), lambda _: [DONE, NEEDS, DONE], heard)
        Recovery(port, clock).linger(SEQ)  # type: ignore[arg-type]
        assert 10.0 < clock.now < 11.0


def test_a_rank_that_goes_on_is_waited_for() -> None:
    """The timeout begins anew whenever it says something new."""

    def peers(waits: int) -> list[Peer]:
        needs = Peer(SEQ, SEQ - 1, SEQ, min(waits // 30, 3))
        return [DONE, needs, DONE]

    clock = Seconds()
    Recovery(Port(spec(timeout=10.0), peers, [0, 1, 1]), clock).linger(SEQ)  # type: ignore[arg-type]
    assert clock.now > 20.0


def test_a_rank_that_only_waits_to_be_told_is_soon_taken_for_gone() -> None:
    """It has left before it could acknowledge."""
    port = Port(spec(timeout=3600.0), lambda _: [DONE, DONE, UNACKNOWLEDGED], [0, 0, 0])
    Recovery(port, Seconds()).linger(SEQ)  # type: ignore[arg-type]
    assert {rank for rank, _ in port.probed} == {2}
