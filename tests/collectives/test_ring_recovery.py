"""What a rank's error says when there is no progress, for which ranks it waits when a group opens,
and for which ones it lingers when it closes.
"""

from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed.collectives.ring.maps import Peer
from testbed.collectives.ring.recovery import FIRST, Recovery
from testbed.comm.group import GroupSpec, make_groups
from testbed.core.errors import CollectiveError
from testbed.plan import plan_fabric
from testbed.protocol.ring.liveness import End, Reason
from testbed.protocol.ring.memory import UNTIMED, WrKind
from testbed.protocol.status import Operation

SEQ = 5
HERE = Peer(SEQ, 0, 0, 4)
ELSEWHERE = Peer(SEQ - 1, SEQ - 1, 0, 0)


class Port:
    """A port with given peers, which receives no results.

    :param peers: What the ranks say about themselves, including this one; called at each look with
        the number of looks so far.
    :param heard: Frames that arrive from each rank during each wait.
    :param meanwhile: Frames of other tensors that arrive during each wait.
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
        self.ended: End | None = None
        self.maps = self.process = self
        self.probed: list[tuple[int, int]] = []

    def end(self, end: End) -> None:
        self.ended = end

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
    options = {"timeout": 0.05, "connect_timeout": 0.05} | options
    return make_groups(plan_fabric(hosts=ranks).hosts, group_id=1, **options)[0]


@pytest.mark.parametrize(
    ("peers", "heard", "before", "meanwhile", "why"),
    [
        ([HERE] * 3, [0, 0, 0], 0, 0, "rank 1 (h2), rank 2 (h3) silent for 0.05 s"),
        ([HERE] * 3, [0, 1, 0], 0, 0, "rank 2 (h3) silent for 0.05 s"),
        (
            [HERE, HERE, ELSEWHERE],
            [0, 1, 1],
            0,
            0,
            "rank 2 (h3) up, but not in this all-reduce after 0.05 s",
        ),
        ([HERE] * 3, [0, 1, 0], 7, 1, "the ranks reduce different tensors"),
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
def test_a_rank_says_why_there_is_no_progress(peers, heard, before, meanwhile, why) -> None:
    """Frames of other tensors count only if they have arrived during this collective."""
    recovery = Recovery(Port(spec(), lambda _: peers, heard, before, meanwhile))  # type: ignore[arg-type]
    with pytest.raises(CollectiveError) as failure:
        recovery.wait(SEQ, 9)
    assert str(failure.value).startswith(f"rank 0 (h1): {why} (all-reduce 5: 0 of 9 chunks after ")


def test_errors_name_the_collective() -> None:
    peers = [HERE, HERE, ELSEWHERE]
    recovery = Recovery(Port(spec(), lambda _: peers, [0, 1, 1], 0, 0))  # type: ignore[arg-type]
    with pytest.raises(
        CollectiveError,
        match=r"h3\) up, but not in this all-gather after 0.05 s \(all-gather 5: 0 of 9 chunks",
    ):
        recovery.wait(SEQ, 9, Operation.ALL_GATHER)


@pytest.mark.parametrize(
    ("heard", "end"),
    [
        ([0, 0, 1], End(Reason.SILENT, (1,))),
        ([0, 1, 1], End(Reason.STUCK)),
    ],
)
def test_a_rank_that_gives_up_says_so_to_all_others(heard, end) -> None:
    port = Port(spec(), lambda _: [HERE] * 3, heard)
    with pytest.raises(CollectiveError):
        Recovery(port).wait(SEQ, 9)  # type: ignore[arg-type]
    assert port.ended == end
    assert {rank for rank, _ in port.probed[-2:]} == {1, 2}


def test_a_rank_that_was_done_and_has_left_is_not_to_blame() -> None:
    peers = [HERE, HERE, Peer(SEQ, SEQ, 0, 0)]
    port = Port(spec(), lambda _: peers, [0, 0, 0])
    with pytest.raises(CollectiveError, match=r"^rank 0 \(h1\): rank 1 \(h2\) silent for 0.05 s"):
        Recovery(port).wait(SEQ, 9)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "heard", "why"),
    [
        (End(Reason.SILENT, (2,)), [0, 1, 0], "rank 2 (h3) silent for 60 s"),
        # A rank that this one hears cannot be silent: the rank that says so was itself cut off.
        (End(Reason.SILENT, (1, 2)), [0, 1, 0], "rank 2 (h3) silent for 60 s"),
        (
            End(Reason.SILENT, (0, 1)),
            [0, 1, 1],
            "it has heard nothing from rank 0 (h1), rank 1 (h2)",
        ),
        (
            End(Reason.ABSENT, (1,)),
            [0, 1, 1],
            "rank 1 (h2) up, but not in this all-reduce after 60 s",
        ),
        (
            End(Reason.TENSORS),
            [0, 1, 1],
            "the ranks reduce different tensors",
        ),
        (End(Reason.STUCK), [0, 1, 1], "no progress for 60 s"),
        (
            End(Reason.DAMAGED),
            [0, 1, 1],
            "results are not what their checks say, again and again for 60 s",
        ),
    ],
)
def test_a_rank_that_is_told_says_what_the_first_one_has_said(end, heard, why) -> None:
    """It does so at once, and passes the reason on, so that the others learn it instead of finding
    this rank gone.
    """
    port = Port(spec(timeout=60.0), lambda _: [HERE] * 3, heard)
    port.ended = end
    with pytest.raises(CollectiveError) as failure:
        Recovery(port).wait(SEQ, 9)  # type: ignore[arg-type]
    assert str(failure.value).startswith(
        f"rank 0 (h1): another rank has given up: {why} (all-reduce 5: 0 of 9 chunks after "
    )
    assert port.ended == end
    assert {rank for rank, _ in port.probed} == {1, 2}
    assert port.waits == 1


def test_a_frame_of_another_tensor_ends_the_wait_at_once() -> None:
    """Otherwise ranks that have seen no such frame would give up first, and report that there is no
    progress.
    """
    port = Port(spec(timeout=60.0), lambda _: [HERE] * 3, [0, 1, 1], meanwhile=1)
    with pytest.raises(CollectiveError, match="the ranks reduce different tensors"):
        Recovery(port).wait(SEQ, 9)  # type: ignore[arg-type]
    assert port.ended == End(Reason.TENSORS)
    assert port.waits == 1


def test_a_few_chunks_are_named_of_many() -> None:
    peers = [Peer(SEQ, 0, 0, rank) for rank in range(8)]
    recovery = Recovery(Port(spec(8), lambda _: peers, [1] * 8))  # type: ignore[arg-type]
    with pytest.raises(
        CollectiveError,
        match=r"waiting for chunk 4 of h5; and others for 3 more chunks \(all-reduce 5",
    ):
        recovery.wait(SEQ, 9)


def test_every_rank_is_probed_while_nothing_arrives() -> None:
    """Ranks are probed many times within the timeout, each time with another number, because a loss
    must not make a rank look gone.
    """
    port = Port(spec(), lambda _: [HERE] * 3, [0, 0, 0])
    with pytest.raises(CollectiveError):
        Recovery(port).wait(SEQ, 9)  # type: ignore[arg-type]
    assert {rank for rank, _ in port.probed} == {1, 2}
    attempts = [attempt - UNTIMED for _, attempt in port.probed]
    assert attempts == list(range(1, len(port.probed) + 1))
    assert len(port.probed) >= 2 * 10


def stopped() -> Callable[[], float]:
    """The clock of a process that is stopped for an hour between any two looks."""
    hours = count()
    return lambda: 3600.0 * next(hours)


def test_a_rank_that_was_stopped_looks_before_it_gives_up() -> None:
    """It has not yet seen what the others have sent in the meantime."""
    waiting = Port(spec(), lambda _: [HERE] * 3, [0, 0, 0])
    with pytest.raises(CollectiveError):
        Recovery(waiting, stopped()).wait(SEQ, 9)  # type: ignore[arg-type]
    meeting = Port(spec(), lambda _: [Peer(0, 0, 0, 0)] * 3, [0, 0, 0])
    with pytest.raises(CollectiveError):
        Recovery(meeting, stopped()).meet()  # type: ignore[arg-type]
    parting = Port(spec(), lambda _: [DONE, NEEDS, DONE], [0, 0, 0])
    Recovery(parting, stopped()).linger(SEQ)  # type: ignore[arg-type]
    assert min(port.waits for port in (waiting, meeting, parting)) >= 10


def test_ranks_have_met_once_all_have_reported() -> None:
    here, nobody = Peer(FIRST, 0, 0, 0), Peer(0, 0, 0, 0)
    port = Port(
        spec(),
        lambda waits: [nobody, here if waits > 1 else nobody, here if waits > 2 else nobody],
        [0, 0, 0],
    )
    Recovery(port).meet()  # type: ignore[arg-type]
    assert [rank for rank, _ in port.probed] == [1, 2, 1, 2, 2]
    assert port.control.verified == FIRST


def test_a_rank_may_open_the_group_later_than_a_collective_may_be_silent() -> None:
    here, nobody = Peer(FIRST, 0, 0, 0), Peer(0, 0, 0, 0)
    port = Port(
        spec(timeout=1.0, connect_timeout=60.0),
        lambda waits: [nobody, here, here if waits > 10 else nobody],
        [0, 1, 0],
    )
    seconds = count(step=5)
    Recovery(port, lambda: float(next(seconds))).meet()  # type: ignore[arg-type]
    assert port.control.verified == FIRST


def test_a_rank_that_does_not_open_the_group_is_named() -> None:
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
        ("upstream", [DONE, NEEDS, DONE], {1}),  # the next rank may ask
        ("upstream", [DONE, DONE, NEEDS], set()),  # no other rank does
        (
            "upstream",
            [DONE, DONE, UNACKNOWLEDGED],
            {2},
        ),  # the preceding rank stays until it is told
        ("upstream", [DONE, UNACKNOWLEDGED, DONE], set()),
        ("origin", [DONE, DONE, NEEDS], {2}),
        ("origin", [DONE, UNACKNOWLEDGED, NEEDS], {1, 2}),
    ],
)
def test_a_rank_stays_for_those_that_may_need_it(recovery, peers, stays_for) -> None:
    """They are heard all the time; the rank probes them until they are done, here after five
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
    """A clock that advances by a tenth of a second at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


KNOWS = Peer(SEQ, SEQ - 1, SEQ - 1, 0, 1)


def test_a_rank_that_has_given_up_stays_until_all_others_know() -> None:
    port = Port(spec(), lambda waits: [HERE, KNOWS, KNOWS if waits > 3 else HERE], [0, 1, 1])
    Recovery(port, Seconds()).part()  # type: ignore[arg-type]
    assert {rank for rank, _ in port.probed} == {2}
    assert port.waits == 4


@pytest.mark.parametrize(("heard", "least", "most"), [([0, 0, 0], 0.2, 2.0), ([0, 1, 1], 1.0, 7.0)])
def test_a_rank_that_has_given_up_does_not_stay_for_long(heard, least, most) -> None:
    """A rank that is not heard may be gone, and a rank that does not answer is not waited for."""
    clock = Seconds()
    Recovery(Port(spec(), lambda _: [HERE] * 3, heard), clock).part()  # type: ignore[arg-type]
    assert least < clock.now < most


def test_nobody_stays_for_a_rank_that_has_given_up() -> None:
    port = Port(spec(recovery="origin"), lambda _: [DONE, KNOWS, DONE], [0, 1, 1])
    Recovery(port).linger(SEQ)  # type: ignore[arg-type]
    assert port.waits == 0


def test_a_rank_that_says_nothing_new_is_waited_for_until_the_timeout() -> None:
    """Whether it is cut off and not heard, or stopped while its programs answer."""
    for heard in ([0, 0, 0], [0, 1, 1]):
        clock = Seconds()
        port = Port(spec(timeout=10.0), lambda _: [DONE, NEEDS, DONE], heard)
        Recovery(port, clock).linger(SEQ)  # type: ignore[arg-type]
        assert 10.0 < clock.now < 11.0


def test_a_rank_that_goes_on_is_waited_for() -> None:
    """The timeout starts over whenever it says something new."""

    def peers(waits: int) -> list[Peer]:
        needs = Peer(SEQ, SEQ - 1, SEQ, min(waits // 30, 3))
        return [DONE, needs, DONE]

    clock = Seconds()
    Recovery(Port(spec(timeout=10.0), peers, [0, 1, 1]), clock).linger(SEQ)  # type: ignore[arg-type]
    assert clock.now > 20.0


def test_a_silent_rank_that_only_lacks_an_acknowledgement_is_soon_considered_gone() -> None:
    """It has left before it could confirm."""
    port = Port(spec(timeout=3600.0), lambda _: [DONE, DONE, UNACKNOWLEDGED], [0, 0, 0])
    Recovery(port, Seconds()).linger(SEQ)  # type: ignore[arg-type]
    assert {rank for rank, _ in port.probed} == {2}
