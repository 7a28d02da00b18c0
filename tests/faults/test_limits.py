"""Limits: the arithmetic of queues and buckets, TCP at the rate, drops counted."""

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from testbed.core.errors import FaultError, SpecError
from testbed.fabric import Fabric
from testbed.faults.attach import LINK
from testbed.faults.delay_header import link_index
from testbed.faults.injector import Injector
from testbed.faults.limits import Limit, bucket_table, tbf_options
from testbed.faults.qdisc import Qdisc, QdiscCounters
from testbed.faults.shaper import Shaper, limited
from testbed.faults.spec import parse_fault
from testbed.kernel import XDP_DROP, BpfObject
from testbed.kernel.abi import dtype
from testbed.plan import Datapath, plan_fabric
from testbed.worker import Workers
from tests.support.faults import tcp
from tests.support.tiers import broad
from tests.support.waiting import wait_until

STAR = plan_fabric("star", 3, "bridge")
PINGS = ["ping", "-l", "100", "-c", "100", "-s", "1000", "-W", "0.2", "h2"]
"""100 frames of 1042 bytes at once, which at 64 kbit/s take 13 seconds."""


def make_limit(hosts: str = "h2", rate: str = "100mbit", **keys: Any) -> Limit:
    return Limit.model_validate({"hosts": hosts, "rate": rate, **keys})


def test_a_limit_says_what_it_needs() -> None:
    text = (
        "rate = 9: must be a rate with a unit, such as 100mbit [(]whole bits[)], from 64kbit to"
        " 30gbit"
    )
    with pytest.raises(SpecError, match=text):
        parse_fault("limit hosts=h2 rate=9")


def test_words_of_tbf() -> None:
    limit = make_limit(queue="64KiB")
    assert " ".join(tbf_options(limit, 1500)) == "tbf rate 100000000bit burst 12500b limit 65536b"
    # At least two frames, or the filter would let none pass.
    assert (
        " ".join(tbf_options(make_limit(rate="1mbit"), 9000))
        == "tbf rate 1000000bit burst 18028b limit 65536b"
    )


@given(st.integers(64, 30_000_000), st.integers(2, 65536))
def test_buckets_hold_the_queue(kbit: int, kib: int) -> None:
    table = bucket_table([make_limit("h3", f"{kbit}kbit", queue=f"{kib}KiB", direction="up")], STAR)
    rate, burst, full = np.frombuffer(table.pop(2 * 2), dtype("fault_limit")).tolist()[0]
    assert not table
    assert (rate, full) == (kbit * 1000, 0)
    assert burst * rate / 8e9 == pytest.approx(kib * 1024, rel=1e-3)


def test_buckets_by_direction() -> None:
    limits = [
        make_limit("h1,h2", direction="up"),
        make_limit("h2", direction="down"),
        make_limit("h3"),
    ]
    assert sorted(bucket_table(limits, STAR)) == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"rate": "1kbit"}, "rate"),
        ({"rate": "100"}, "rate"),
        ({"rate": "31gbit"}, "rate"),
        ({"rate": 100}, "rate"),
        ({"queue": "100B"}, "queue"),
        ({"queue": "1s"}, "queue"),
        ({"direction": "left"}, "direction"),
        ({"hosts": "h2,h2"}, "hosts"),
        ({"burst": "1KiB"}, "burst"),
    ],
)
def test_refused_values(keys: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make_limit(**keys)
    assert [error["loc"] for error in caught.value.errors()] == [(key,)]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ([make_limit("h7")], "host: 'h7' is not in this fabric; hosts are h1, h2, h3"),
        (
            [make_limit(), make_limit(direction="up")],
            "limit of h2: direction = up: there are two: must be one per direction",
        ),
        (
            [make_limit(queue="1000B")],
            "limit of h2: queue = 1000 B: must be at least a frame, 1514 B",
        ),
    ],
)
def test_refused_limits(limits: list[Limit], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        bucket_table(limits, STAR)
    assert str(caught.value) == text


def test_a_bucket_is_not_shared_by_switches() -> None:
    plan = plan_fabric("ring", 3)
    assert bucket_table([make_limit(direction="up")], plan)
    with pytest.raises(SpecError) as caught:
        bucket_table([make_limit()], plan)
    assert (
        str(caught.value)
        == "limit of h2: direction = both: must be up, since under XDP senders at different"
        " switches would not share the rate"
    )


def address(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


@pytest.mark.kernel
def test_xdp_drops_frames_that_exceed_the_bucket() -> None:
    h1, h2, h3 = STAR.hosts
    limits = [
        make_limit("h1", "64kbit", queue="4KiB", direction="up"),
        make_limit("h2", "64kbit", queue="2KiB", direction="down"),
    ]
    with BpfObject("impair") as engine:
        for host in STAR.hosts:
            engine.maps["hosts"].update(address(host.mac), host.rank)
        for index, bucket in bucket_table(limits, STAR).items():
            engine.maps["limits"].update(index, bucket)
        links = engine.maps["links"].view(LINK)[:, 0]

        # With frames of 1000 bytes, the bucket gains room for another one in 125 ms.
        for sender, receiver, room in ((h1, h3, 4), (h3, h2, 2), (h3, h1, 50)):
            frame = address(receiver.mac) + address(sender.mac) + b"\x08\0\x45" + bytes(985)
            start = time.monotonic()
            passed = sum(
                engine.programs["impair_xdp"].test_run(frame).retval != XDP_DROP for _ in range(50)
            )
            assert room <= passed <= room + math.ceil((time.monotonic() - start) / 0.125)
            assert passed + int(links["limited"][link_index(sender.rank, receiver.rank)]) == 50


@pytest.mark.net
@pytest.mark.needs("qdisc tbf")
@pytest.mark.fabric(hosts=2, switch="bridge")
@pytest.mark.parametrize("direction", broad(["down", "up"]))
def test_tcp_is_no_faster_than_the_rate(fabric: Fabric, workers: Workers, direction: str) -> None:
    """However late the two processes run: the filter passes at once no more than a bucket."""
    host = "h1" if direction == "up" else "h2"
    size, rate = 4_000_000, 50e6  # bytes, bits per second; a bucket has 6250 bytes
    with Shaper(fabric, [make_limit(host, "50mbit", direction=direction)]) as shaper:
        arguments = {"receiver": "h2", "size": size}
        moments = workers.call_all(tcp.transfer, {"h1": arguments, "h2": arguments}, timeout=60)
        assert moments["h2"] - moments["h1"] > 0.99 * 8 * size / rate
        counters = shaper.counters()
        assert counters.keys() == {(host, direction)}
        assert counters[host, direction].size > size
    for node in ("s1", "h1"):
        assert "tbf" not in fabric.run(node, ["tc", "qdisc"]).stdout


@pytest.mark.net
@pytest.mark.needs("qdisc tbf")
@pytest.mark.fabric(hosts=2, switch="bridge")
def test_frames_that_find_the_queue_full_are_counted(fabric: Fabric) -> None:
    with Shaper(fabric, [make_limit("h2", "64kbit", queue="4KiB", direction="down")]) as shaper:

        def counters() -> QdiscCounters:
            return shaper.counters()["h2", "down"]

        fabric.run("h1", PINGS)
        wait_until(lambda: counters().frames + counters().dropped == 100)
        assert counters().dropped > 0
    with pytest.raises(
        FaultError,
        match=r"tc qdisc add dev s1-eth1 root nosuch: Error: .*kind is unknown.*testbed doctor",
    ):
        Qdisc(fabric, "s1", "s1-eth1", ["nosuch"])
    with Qdisc(fabric, "s1", "s1-eth1", tbf_options(make_limit(), 1500)) as qdisc:
        fabric.run("s1", ["tc", "qdisc", "del", "dev", "s1-eth1", "root"], check=True)
        with pytest.raises(FaultError, match="tbf on s1-eth1 of s1 has gone"):
            qdisc.counters()


@pytest.mark.net
@pytest.mark.needs("qdisc tbf")
@pytest.mark.parametrize(
    "datapath",
    broad(
        pytest.param(datapath, marks=pytest.mark.fabric(hosts=2, datapath=datapath))
        for datapath in ("xdp", "sockets")
    ),
)
def test_limits_on_both_datapaths(fabric: Fabric, datapath: Datapath) -> None:
    limits = [make_limit("h2", "64kbit", queue="4KiB", direction="down")]
    with Injector(fabric) as injector:
        with limited(fabric, limits, injector) as dropped:
            assert dropped() == 0
            fabric.run("h1", PINGS)
            assert 0 < dropped() <= 98  # a full bucket holds two frames
        answer = fabric.run("h1", ["ping", "-f", "-c", "100", "-s", "1000", "-W", "10", "h2"])
        assert " 0% packet loss" in answer.stdout
    if datapath == "xdp":
        with pytest.raises(FaultError, match="limit: the datapath xdp needs an injector"):
            limited(fabric, limits).__enter__()
        with pytest.raises(FaultError, match="limit: frames that XDP redirects pass no qdisc"):
            Shaper(fabric, limits)
