"""Stations against queueing theory, and trains against the frames that they stand for."""

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from testbed.sim.hardware import LinkModel
from testbed.sim.stations import Buffer, Cpu, Train, Transmitter
from tests.support.tiers import broad

LINK = LinkModel(rate=1e9, delay=2e-6, overhead=0)
LENGTH = 1250  # 10 us on that link


@pytest.mark.parametrize("load", broad([0.6, 0.3, 0.8]))
def test_the_wait_is_that_of_an_m_d_1_queue(load: float) -> None:
    """Pollaczek-Khinchine with constant service D: the mean wait is load * D / 2 (1 - load)."""
    env = simpy.Environment()
    line = Transmitter(env, LINK)
    service = LINK.seconds(LENGTH)
    random = np.random.default_rng(7)
    waits = []

    def arrivals() -> simpy.events.ProcessGenerator:
        for gap in random.exponential(service / load, 200_000):
            yield env.timeout(gap)
            seconds = line.send(LENGTH)
            assert seconds is not None
            waits.append(seconds - service - LINK.delay)

    env.process(arrivals())
    env.run()
    assert np.mean(waits) == pytest.approx(load * service / (2 * (1 - load)), rel=0.02)
    assert line.busy / line.free == pytest.approx(load, rel=0.02)


def test_a_full_queue_drops_the_frame_that_arrives() -> None:
    env = simpy.Environment()
    line = Transmitter(env, LinkModel(rate=1e9, queue=3 * LENGTH, overhead=0))
    assert [line.send(LENGTH) is not None for _ in range(5)] == [True, True, True, False, False]
    env.timeout(LINK.seconds(LENGTH))
    env.run()
    assert line.send(LENGTH) is not None
    assert (line.frames, line.dropped) == (4, 2)


def test_the_queues_of_a_switch_share_its_buffer() -> None:
    env = simpy.Environment()
    buffer = Buffer(3 * LENGTH)
    one, other = (Transmitter(env, LINK, buffer=buffer) for _ in range(2))
    assert [line.send(LENGTH) is not None for line in (one, one, other)] == [True] * 3
    assert (one.send(LENGTH), other.send(LENGTH)) == (None, None)


def test_an_idle_cpu_has_to_wake_up() -> None:
    env = simpy.Environment()
    cpu = Cpu(env, wakeup=5.0)
    assert [cpu.work(1.0), cpu.work(2.0)] == [6.0, 8.0]
    env.timeout(10)
    env.run()
    assert cpu.work(1.0) == 6.0
    assert cpu.busy == 4.0


@given(
    frames=st.integers(1, 40),
    gap=st.floats(0, 3e-5),
    services=st.lists(st.floats(1e-7, 3e-5), min_size=1, max_size=5),
)
def test_a_train_takes_as_long_as_its_frames(
    frames: int, gap: float, services: list[float]
) -> None:
    """Through any number of CPUs and links in a row, head and tail leave when they would alone."""
    env = simpy.Environment()
    links = [LinkModel(rate=8e6 / seconds, delay=1e-6, overhead=0) for seconds in services]
    times = [number * gap for number in range(frames)]
    train = Train(frames, 1, 0.0, times[-1])
    for seconds, link in zip(services, links, strict=True):
        Cpu(env).carry(train, seconds)
        times = in_turn(times, seconds)
        Transmitter(env, link).carry(train)
        times = [done + link.delay for done in in_turn(times, link.seconds(1))]
    assert (train.head, train.tail) == pytest.approx((times[0], times[-1]))


def in_turn(times: list[float], seconds: float) -> list[float]:
    """When each of the jobs that arrive at these times is done."""
    free, done = 0.0, []
    for time in times:
        free = max(free, time) + seconds
        done.append(free)
    return done
