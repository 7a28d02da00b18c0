"""How long a rank lingers when it closes, on a clock that only its waiting advances."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from testbed.comm.group import make_groups
from testbed.exchange.pinch import recovery
from testbed.exchange.pinch.process import Waited
from testbed.exchange.pinch.recovery import Recovery
from testbed.plan import plan_fabric

TIMEOUT = 10.0
RTT = 0.02  # seconds: the first timer of a rank that has measured no round trip


class Port:
    """A port of rank 0 of three.

    :param back: When the last rank has finished its exchanges, seconds from now.
    :param asks: Whether a rank asks something at a given time.
    :param met: When all ranks have met in the next exchange, if the scale is known.
    :param ended: Whether exchanges have ended and some rank does not know it.
    """

    def __init__(
        self,
        back: float,
        asks: Callable[[float], bool] = lambda now: False,
        ended: bool = False,
        met: float = 1e9,
    ) -> None:
        self.met = met
        self.now, self.back, self.asks = 0.0, back, asks
        self.heard = [0, 0, 0]
        self.group = make_groups(plan_fabric("star", 3, "bridge").hosts, timeout=TIMEOUT)[0]
        self.maps = SimpleNamespace(control=SimpleNamespace(partners=0))
        self.handshakes = Handshakes(self, ended)
        self.process = self.kicks = self

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.heard[2] += self.asks(self.now)

    def wait(self, seconds: float) -> Waited:
        self.sleep(seconds)
        return Waited.UNFIT if self.handshakes.may_go else Waited.TIME_UP

    def seen(self) -> SimpleNamespace:
        return SimpleNamespace(heard=list(self.heard), met=self.met <= self.now)

    def send_handshakes(self, attempt: int) -> None:
        pass


class Handshakes:
    def __init__(self, port: Port, ended: bool) -> None:
        self.port, self.ended = port, ([1] if ended else [],)

    @property
    def may_go(self) -> bool:
        return self.port.now >= self.port.back

    def enter(self, exponent: int, fits: range) -> None:
        pass


def lingers(port: Port, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a rank lingers, in seconds."""
    monkeypatch.setattr(recovery, "time", port)
    Recovery(port, TIMEOUT).linger()
    return port.now


def test_a_rank_that_comes_back_before_the_timeout_is_waited_for(monkeypatch) -> None:
    assert 3.0 < lingers(Port(back=3.0), monkeypatch) < 3.0 + 20 * RTT


def test_a_rank_that_does_not_come_back_is_waited_for_until_the_timeout(monkeypatch) -> None:
    assert TIMEOUT <= lingers(Port(back=1e9), monkeypatch) < TIMEOUT + 2 * RTT


def test_ranks_that_meet_in_the_next_exchange_have_finished_the_last(monkeypatch) -> None:
    assert 3.0 < lingers(Port(back=1e9, met=3.0), monkeypatch) < 3.0 + 20 * RTT


def test_when_all_are_done_a_rank_stays_as_long_as_another_asks(monkeypatch) -> None:
    """A question arrives every other round trip, because the others are lost."""
    quiet = lingers(Port(back=0.0), monkeypatch)
    assert 5 * RTT < quiet < 20 * RTT
    asked = Port(back=0.0, asks=lambda now: now < 1.0 and round(now / RTT) % 2 == 0)
    assert 1.0 + quiet - 3 * RTT < lingers(asked, monkeypatch) < 1.0 + quiet
    assert lingers(Port(back=0.0, asks=lambda now: True), monkeypatch) < TIMEOUT + 2 * RTT


def test_a_rank_tells_others_of_an_end_for_a_second(monkeypatch) -> None:
    assert 1.0 <= lingers(Port(back=1e9, ended=True), monkeypatch) < 1.0 + 2 * RTT
