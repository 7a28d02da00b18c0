"""When a waiting process looks and probes."""

import re
from pathlib import Path

from testbed.protocol.ring import quiet
from testbed.protocol.ring.memory import WrKind
from testbed.protocol.ring.process import Process
from testbed.protocol.ring.quiet import LEAST_TIMEOUT_NS, Quiet
from testbed.protocol.ring.rank import Rank
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
    assert found["MOST_TIMEOUT_NS"] == LEAST_TIMEOUT_NS << quiet.DOUBLINGS


def test_probes_back_off_until_something_arrives() -> None:
    process, looks = waiting()
    now, times = 0, []
    while now < 64 * LEAST_TIMEOUT_NS:
        looks.look(now)
        if probes(process):
            times.append(now // LEAST_TIMEOUT_NS)
        now += LEAST_TIMEOUT_NS
    assert times == [1, 3, 7, 15, 31, 63]
    process.memory.streams[0].progress += 1
    assert looks.look(now) == LEAST_TIMEOUT_NS
    assert (probes(process), process.stalls) == (0, 0)
    looks.look(now + LEAST_TIMEOUT_NS)
    assert probes(process) == 1


def test_the_time_until_the_next_look_is_that_of_the_next_probe() -> None:
    _, looks = waiting()
    assert looks.look(0) == LEAST_TIMEOUT_NS
    assert looks.look(LEAST_TIMEOUT_NS // 5) == LEAST_TIMEOUT_NS * 4 // 5
