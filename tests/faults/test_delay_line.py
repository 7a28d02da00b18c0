"""The delay line: frames leave when they are due or overtaken, and every frame is accounted for."""

import contextlib
import itertools
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import FaultError, KernelError
from testbed.fabric import Fabric
from testbed.faults import delay_header
from testbed.faults.delay_counters import BUCKETS, DelayCounters, lower_bound
from testbed.faults.delay_header import DelayHeader, link_index
from testbed.faults.delay_line import ENTRANCE, EXIT, DelayLine
from testbed.faults.injector import Injector
from testbed.kernel import BpfObject, compile
from testbed.kernel.abi import Struct
from testbed.plan import Datapath
from testbed.probes.netns import Namespace
from tests.support.rules import parse_rule
from tests.support.tiers import broad
from tests.support.waiting import wait_until

ETHERTYPE = 0x88B5  # IEEE 802: local experimental
MS = 1_000_000  # ns
FAR = 60_000 * MS  # after the end of the test
TIMES = st.integers(0, 2**64 - 1)


def make_counters(lateness: dict[int, int] | None = None, **counts: int) -> DelayCounters:
    memory = Struct("delay_line", realtime=1, **counts)
    for bucket, count in (lateness or {}).items():
        memory.lateness[bucket] = count
    return DelayCounters.read(memory, overrun=0)


@given(
    st.integers(1, 2**32 - 1),
    st.lists(TIMES, min_size=1, max_size=delay_header.COPIES),
    st.integers(0, delay_header.MAX_LINKS - 1),
    TIMES,
    TIMES,
    st.integers(0, 2**32 - 1),
)
def test_a_header_reads_back_as_written(
    ifindex: int, due: list[int], link: int, release: int, latest: int, ingress: int
) -> None:
    header = DelayHeader(ifindex, tuple(due), link, release, latest, ingress)
    assert len(header.pack()) == delay_header.SIZE == 112
    assert DelayHeader.unpack(header.pack() + b"frame") == header


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0" * 50, "50 bytes: a delay header takes 112"),
        (b"\0" * 112, "ethertype 0000 must be 88b6, a delay header's"),
        (
            DelayHeader(1, (1,)).pack().replace(b"\xb6\x01\0", b"\xb6\x09\0"),
            "9 copies in a delay header: must be 1 to 8",
        ),
    ],
)
def test_invalid_headers_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DelayHeader.unpack(data)


def test_links_have_an_index_each() -> None:
    assert sorted(link_index(a, b) for a in range(32) for b in range(32)) == list(
        range(delay_header.MAX_LINKS)
    )


def test_buckets_cover_all_times() -> None:
    bounds = [lower_bound(bucket) for bucket in range(BUCKETS + 1)]
    assert bounds[:9] == list(range(9))
    assert all(low < high <= max(low + 1, low * 9 / 8) for low, high in itertools.pairwise(bounds))
    assert bounds[-1] == 2**64


def test_quantiles() -> None:
    assert math.isnan(make_counters().quantile(0.5))
    counters = make_counters({3: 98, 5: 2})
    assert counters.quantile(0.5) == counters.quantile(0.98) == pytest.approx(3e-9)
    assert counters.quantile(0.99) == counters.quantile(1) == pytest.approx(5e-9)


def test_counters_add_up() -> None:
    total = make_counters({3: 1}, sent=1, full=2) + make_counters(
        {3: 1, 4: 1}, sent=2, late=1, closed=5
    )
    assert (total.sent, total.late, total.full, total.closed, total.dropped) == (3, 1, 2, 5, 7)
    assert total.lateness[3:5] == (2, 1)
    assert total.realtime


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with Namespace() as namespace, namespace.entered():
        namespace.add_veth("port", "host")
        namespace.set_up("host", "port")
        yield namespace


class Ends:
    """Where delayed frames enter, and where they leave."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.port = socket.if_nametoindex("port")
        self.entrance, self.host = (
            stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            for _ in range(2)
        )
        self.entrance.bind((ENTRANCE, 0))
        self.host.bind(("host", ETHERTYPE))
        self.host.settimeout(10)

    def hold(self, number: int, *due: int, port: int = 0, **header: int) -> None:
        """Send a numbered frame into the entrance."""
        frame = bytes(12) + ETHERTYPE.to_bytes(2, "big") + number.to_bytes(4, "big") + bytes(42)
        self.entrance.send(DelayHeader(port or self.port, due, **header).pack() + frame)

    def arrived(self) -> int:
        """Number of the next frame that leaves."""
        return int.from_bytes(self.host.recv(2048)[14:18], "big")


@contextlib.contextmanager
def opened(**options: object) -> Iterator[tuple[DelayLine, Ends]]:
    with DelayLine(1500, **options) as line, contextlib.ExitStack() as stack:  # type: ignore[arg-type]
        yield line, Ends(stack)


def counted(line: DelayLine, received: int) -> DelayCounters:
    """The counters, as soon as so many frames have been received."""
    wait_until(lambda: line.counters().received >= received)
    return line.counters()


@pytest.mark.net
@pytest.mark.usefixtures("namespace")
class TestLine:
    @pytest.mark.alone
    def test_frames_leave_by_due_time(self) -> None:
        with opened() as (line, ends):
            start = time.monotonic_ns()
            due = {number: start + 20 * MS + number * 37 % 100 * 100_000 for number in range(100)}
            for number, when in due.items():
                ends.hold(number, when)
            for number in sorted(due, key=due.__getitem__):
                assert ends.arrived() == number
                assert time.monotonic_ns() >= due[number]
            counters = line.counters()
        assert (counters.received, counters.sent, counters.dropped) == (100, 100, 0)
        assert sum(counters.lateness) == 100

    @pytest.mark.deep
    def test_each_copy_has_a_time_of_its_own(self) -> None:
        with opened() as (line, ends):
            now = time.monotonic_ns()
            ends.hold(1, now + FAR, now + 20 * MS, 0)
            assert [ends.arrived(), ends.arrived()] == [1, 1]
            assert time.monotonic_ns() >= now + 20 * MS
            ends.hold(2, 0)
            assert ends.arrived() == 2
        assert (line.counters().sent, line.counters().closed) == (3, 1)

    def test_frames_due_at_the_same_time_keep_their_order(self) -> None:
        with opened() as (_, ends):
            due = time.monotonic_ns() + 20 * MS
            for number in range(200):
                ends.hold(number, due)
            assert [ends.arrived() for _ in range(200)] == list(range(200))

    def test_frames_without_room_are_counted(self) -> None:
        with opened(capacity=10) as (line, ends):
            due = time.monotonic_ns() + FAR
            for number in range(8):
                ends.hold(number, due)
            for number in range(8, 15):
                ends.hold(number, due, due)
            counters = counted(line, 15)
            assert (counters.full, counters.sent) == (10, 0)
        counters = line.counters()
        assert (counters.closed, counters.dropped) == (8 + 2 * 2, 22)

    @pytest.mark.alone
    def test_all_received_frames_are_counted_at_the_end(self) -> None:
        with opened(capacity=2000) as (line, ends):
            for number in range(1500):
                ends.hold(number, time.monotonic_ns() + FAR)
        counters = line.counters()
        assert (counters.received, counters.closed, counters.overrun) == (1500, 1500, 0)

    def test_frames_for_a_port_that_is_gone_are_counted(self) -> None:
        with opened() as (line, ends):
            ends.hold(1, 0, port=9999)
            ends.hold(2, 0)
            assert ends.arrived() == 2
            counters = line.counters()
            assert (counters.refused, counters.sent) == (1, 1)

    def test_frames_that_cannot_be_delayed_are_counted(self) -> None:
        with opened() as (line, ends):
            mark = bytes(12) + delay_header.ETHERTYPE.to_bytes(2, "big")
            ends.entrance.send(mark + bytes(20))  # short
            ends.entrance.send(mark + bytes(200))  # no copies
            ends.hold(1, 0, link=5, release=3)  # this line has no links
            ends.entrance.send(
                DelayHeader(ends.port, (1,)).pack() + bytes(3000)
            )  # longer than any frame of the switch
            assert counted(line, 4).invalid == 4

    def test_a_namespace_has_at_most_one_delay_line(self) -> None:
        with opened(), pytest.raises(KernelError, match=r"netlink: link add .*File exists"):
            DelayLine(1500)

    def test_nothing_is_left(self) -> None:
        with opened() as (line, _):
            assert {ENTRANCE, EXIT} <= {name for _, name in socket.if_nameindex()}
        assert {name for _, name in socket.if_nameindex()} == {"lo", "port", "host"}
        with pytest.raises(ProcessLookupError):
            os.kill(line.pid, 0)
        line.close()

    def test_a_dead_process_is_an_error(self) -> None:
        with opened() as (line, _):
            process = os.pidfd_open(line.pid)
            os.kill(line.pid, signal.SIGKILL)
            select.select([process], [], [], 10)
            os.close(process)
            with pytest.raises(
                FaultError, match="the delay line ended with status -9: it said nothing"
            ):
                line.counters()

    @pytest.mark.parametrize("capacity", [0, 1 << 21])
    def test_capacity_is_bounded(self, capacity: int) -> None:
        with pytest.raises(
            FaultError, match=f"capacity of a delay line: {capacity}: must be 1 to 1048576 frames"
        ):
            DelayLine(1500, capacity=capacity)

    def test_it_dies_with_its_parent(self) -> None:
        """Even if the parent has no time to close anything."""
        program = (
            "import sys, time; from testbed.faults.delay_line import DelayLine; line ="
            " DelayLine(1500); print(line.pid, flush=True); time.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        with parent:
            assert parent.stdout
            process = os.pidfd_open(int(parent.stdout.readline()))
            parent.kill()
        ended, _, _ = select.select([process], [], [], 10)
        os.close(process)
        assert ended


@pytest.fixture
def overtake(monkeypatch: pytest.MonkeyPatch) -> Iterator[BpfObject]:
    monkeypatch.setattr(compile, "BPF", Path(__file__).parent)
    with BpfObject("overtake") as program:
        yield program


@pytest.mark.net
@pytest.mark.usefixtures("namespace")
class TestOvertaking:
    def test_passing_frames_release_a_waiting_one(self, overtake: BpfObject) -> None:
        links = overtake.maps["links"].view(np.uint64)
        with opened(links=overtake.maps["links"], wakeups=overtake.maps["wakeups"]) as (line, ends):
            latest = time.monotonic_ns() + FAR
            links[0, 1] = 3
            ends.hold(1, 0, release=2, latest=latest)
            ends.hold(2, 0, 0, release=1, latest=latest)
            ends.hold(3, 0, release=600, latest=latest)
            assert counted(line, 3).sent == 0
            overtake.programs["pass"].test_run(bytes(64))
            assert [ends.arrived(), ends.arrived()] == [2, 2]
            overtake.programs["pass"].test_run(bytes(64))
            assert ends.arrived() == 1
            assert links[0].tolist() == [2, 1]
            # More records than the ring buffer holds at once.
            overtake.programs["pass"].test_run(bytes(64), repeat=1000)
            assert ends.arrived() == 3
            assert links[0].tolist() == [1002, 0]

    def test_a_frame_waits_no_longer_than_its_latest_time(self, overtake: BpfObject) -> None:
        links = overtake.maps["links"].view(np.uint64)
        with opened(links=overtake.maps["links"], wakeups=overtake.maps["wakeups"]) as (line, ends):
            links[link_index(2, 3), 1] = 1
            latest = time.monotonic_ns() + 20 * MS
            ends.hold(1, 0, link=link_index(2, 3), release=5, latest=latest)
            assert ends.arrived() == 1
            assert time.monotonic_ns() >= latest
            assert line.counters().sent == 1
        assert not links.any()

    def test_a_frame_may_wait_for_both_frames_and_a_time(self, overtake: BpfObject) -> None:
        """A frame that has been overtaken still does not leave before it is due."""
        with opened(links=overtake.maps["links"], wakeups=overtake.maps["wakeups"]) as (_, ends):
            overtake.programs["pass"].test_run(bytes(64))
            due = time.monotonic_ns() + 20 * MS
            ends.hold(1, due, release=1, latest=due + FAR)  # overtaken before it arrived
            assert ends.arrived() == 1
            assert time.monotonic_ns() >= due

    def test_a_dropped_frame_waits_no_longer(self, overtake: BpfObject) -> None:
        links = overtake.maps["links"].view(np.uint64)
        with opened(links=overtake.maps["links"], wakeups=overtake.maps["wakeups"], capacity=2) as (
            line,
            ends,
        ):
            links[0, 1] = 5
            for number in range(5):
                ends.hold(number, 0, release=9, latest=time.monotonic_ns() + FAR)
            assert counted(line, 5).full == 3
            assert links[0, 1] == 2
        assert links[0, 1] == 0


@pytest.mark.net
@pytest.mark.parametrize(
    "datapath",
    broad(
        pytest.param(datapath, marks=pytest.mark.fabric(hosts=2, datapath=datapath))
        for datapath in ("xdp", "sockets")
    ),
)
def test_frames_that_wait_when_faults_end_are_counted(fabric: Fabric, datapath: Datapath) -> None:
    with Injector(fabric, [parse_rule("delay delay=60s link=h1->h2")]) as injector:
        fabric.run("h1", ["ping", "-i", "0.01", "-c", "5", "-W", "0.2", "h2"])
        fabric.run("h2", ["ping", "-c", "1", "-W", "0.2", "h1"])
        wait_until(lambda: injector.delays().received == 6)  # type: ignore[union-attr]
    counters = injector.delays()
    assert counters
    assert (counters.received, counters.sent, counters.closed, counters.dropped) == (6, 0, 6, 6)
    assert not fabric.run("h1", ["ping", "-c", "1", "-W", "10", "h2"]).returncode
