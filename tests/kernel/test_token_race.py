"""Two CPUs process the same frame of an exchange by tokens at the same time: it lands once, and its
token is used once.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from testbed.protocol.pinch.packet import Packet
from testbed.protocol.sequence import word_of
from testbed.protocol.token.process import Process
from testbed.protocol.token.rank import LANDED, Rank, sealed
from testbed.protocol.wire import PinchKind
from tests.support.kernel.pair import Pair
from tests.support.kernel.tokens import Member, bytes_of, configs

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing can race"),
]

SEQ, FRAMES = 5, 1500


@contextmanager
def rank(shape: list[list[int]], stride: int = 1, window: int = 2) -> Iterator[Member]:
    """Rank 0 in an exchange with rank 1, which it has entered."""
    config = replace(next(configs(shape, stride)), window=window)
    with ExitStack() as stack:
        member = Member(config, stack, cpu=0)
        member.begin(SEQ)
        rank = member.rank
        process = Process(rank)  # nobody rings yet
        process.seq = SEQ
        process.send({1: [(number,) for number in range(shape[0][1])]})
        rank.next = rank.returned = word_of(SEQ, 0)
        member.write()
        yield member


def frames_of(shape: list[list[int]]) -> list[bytes]:
    """What rank 1 sends."""
    process = Process(Rank(replace(list(configs(shape, 1))[1], window=FRAMES)))
    process.open(SEQ)
    return [bytes_of(each) for each in process.send({0: [(n,) for n in range(FRAMES)]})]


def test_a_frame_and_its_duplicate_land_once() -> None:
    shape = [[0, 1], [FRAMES, 0]]
    with rank(shape) as member:
        frames = frames_of(shape)
        Pair(lambda turn: member.program.test_run(frames[turn])).run(FRAMES)
        counted = member.counted()
        assert counted["received"] == FRAMES
        assert counted["duplicate"] + counted["contended"] == FRAMES
        member.read()
        assert member.rank.complete[SEQ & 1] == 1
        landed = [slot for slot in member.rank.slots if slot.claim == word_of(SEQ, LANDED)]
        assert [slot.data for slot in landed] == [(number,) for number in range(FRAMES)]
        assert member.process.take() == {1: [(number,) for number in range(FRAMES)]}


def test_a_token_and_its_duplicate_are_used_once() -> None:
    with rank([[0, FRAMES], [1, 0]]) as member:
        config = member.rank.config
        body = (0,) * (1 + config.room)
        token = Packet(1, 0, PinchKind.ACK, config.group, config.cookie, SEQ, body=body)
        token = token._replace(sender=1, receiver=0, length=8, tag=config.tag)
        tokens = [bytes_of(sealed(token.having(number=number))) for number in range(FRAMES)]
        Pair(lambda turn: member.program.test_run(tokens[turn])).run(FRAMES)
        counted = member.counted()
        assert counted["duplicate"] == counted["sent"] == FRAMES
        assert member.control.returned == member.control.next == word_of(SEQ, FRAMES)


def test_frames_at_the_doorbell_are_filled_once() -> None:
    with rank([[0, FRAMES], [1, 0]], stride=2, window=FRAMES) as member:
        config = member.rank.config
        blank = Packet(0, 0, PinchKind.ACK, config.group, config.cookie)
        data = bytes_of(blank._replace(body=(0,) * (1 + config.room)))
        Pair(lambda _: member.doorbell.test_run(data)).run(FRAMES)
        counted = member.counted()
        assert counted["sent"] == FRAMES
        assert counted["ends"] + counted["held"] + counted["contended"] == FRAMES
        assert member.control.next == word_of(SEQ, FRAMES)
