"""When a waiting process looks and probes."""

import re
from pathlib import Path

from testbed.protocol.ring import quiet
from testbed.protocol.ring.memory import UNTIMED, WrKind
from testbed.protocol.ring.process import Process
from testbed.protocol.ring.quiet import LEAST_TIMEOUT_NS, Quiet
from testbed.protocol.ring.rank import Rank
from testbed.protocol.sequence import word_of
from tests.support.protocol.network import config

ROOT = Path(__file__).parents[2]


def waiting() -> tuple[Process, Quiet]:
    process = Process(Rank(config(0, 3), seq=1), window=1)
    process.begin(2, 4, 128, 0)
    process.publish(4)
    process.memory.sq.clear()
    made = Quiet(process)
    made.begin(0)
    return process, made


def probes(process: Process) -> int:
    found = sum(request.kind == WrKind.PROBE for request in process.memory.sq)
    process.memory.sq.clear()
    return found


def test_the_constants_are_those_of_the_c_code() -> None:
    text = (ROOT / "testbed/native/ring_wait.h").read_text()
    found = {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)", text)}
    assert found["LEAST_TIMEOUT_NS"] == LEAST_TIMEOUT_NS
    assert found["DOUBLINGS"] == quiet.DOUBLINGS
    assert found["RECOVERY_DOUBLINGS"] == quiet.RECOVERY_DOUBLINGS
    assert found["UNDER_WAY"] == quiet.UNDER_WAY
    assert found["MOST_TIMEOUT_NS"] == LEAST_TIMEOUT_NS << quiet.DOUBLINGS


def test_probes_back_off_until_something_arrives() -> None:
    process, looks = waiting()
    now, times = 0, []
    while now < 64 * LEAST_TIMEOUT_NS:
        looks.look(now)
        if probes(process):
            times.append(now // LEAST_TIMEOUT_NS)
        now += LEAST_TIMEOUT_NS
    assert times == [0, 1, 3, 7, 15, 31, 63]  # the first one measures the round trip
    process.memory.streams[0].progress += 1
    assert looks.look(now) == LEAST_TIMEOUT_NS
    assert (probes(process), process.stalls) == (0, 0)
    looks.look(now + LEAST_TIMEOUT_NS)
    assert probes(process) == 1


def test_probes_are_no_closer_than_a_part_of_a_round_trip() -> None:
    process, looks = waiting()
    process.memory.nack_holdoff_us = 1_600_000
    looks.look(0)
    assert looks.look(0) == 100_000_000
    assert probes(process) == 1


def test_while_frames_are_missing_each_round_trip_is_measured() -> None:
    """Although the stream does not rest: it may have become longer."""
    process, looks = waiting()
    memory, times = process.memory, []
    memory.rto_us = 2000
    for now_us in range(0, 10_000, 100):
        memory.lossy = memory.seq if now_us >= 5000 else 0
        memory.streams[0].progress += 1
        looks.look(1000 * now_us)
        if probes(process):
            times.append(now_us)
    assert times == [0, 5000, 7000, 9000]


def test_an_answer_sets_the_retransmission_timeout() -> None:
    """RFC 6298, 2.2 and 2.3, in whole microseconds, rounded up."""
    process, looks = waiting()
    memory = process.memory
    for sent_us, trip_us, expected in ((0, 800, 2401), (1000, 800, 2001), (2000, 2400, 3501)):
        process.probe(0, sent_us)
        attempt = memory.sq.pop().attempt
        memory.streams[0].answer = word_of(sent_us + trip_us, attempt)
        looks.look(0)
        assert memory.rto_us == expected
    memory.streams[0].answer = word_of(9_000_000, UNTIMED | 1)
    looks.look(0)
    assert memory.rto_us == expected


def test_the_time_until_the_next_look_is_that_of_the_next_probe() -> None:
    _, looks = waiting()
    assert looks.look(0) == LEAST_TIMEOUT_NS
    assert looks.look(LEAST_TIMEOUT_NS // 5) == LEAST_TIMEOUT_NS * 4 // 5
