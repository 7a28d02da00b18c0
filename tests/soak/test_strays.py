"""Strays: how they are made; they arrive, change no sum, and leave nothing behind."""

import os
from collections import Counter

import numpy as np
import pytest

from testbed.comm.group import make_groups
from testbed.core.errors import FabricError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.soak import calls, tap
from testbed.soak.holdings import Holdings, trim
from testbed.soak.strays import FIELDS, Herd, Strays
from testbed.worker import Workers
from tests.support.collectives.ring_calls import close_in, counters_in, open_in, reduce_values_in

PLAN = plan_fabric(hosts=3)
HOSTS = [host.name for host in PLAN.hosts]
MACS = {host.name: bytes.fromhex(host.mac.replace(":", "")) for host in PLAN.hosts}
DRAWS = 4000


def frame(number: int, receiver: str = "h1") -> bytes:
    return MACS[receiver] + bytes(58) + number.to_bytes(4, "little") + bytes(60)


def flips(data: bytes, original: bytes) -> list[int]:
    """Offsets of the bits that differ, apart from the receiver."""
    found = np.frombuffer(data, np.uint8) ^ np.frombuffer(original, np.uint8)
    return [int(bit) for bit in np.flatnonzero(np.unpackbits(found[6:], bitorder="little")) + 48]


def test_a_herd_of_none_has_no_strays():
    assert Herd(PLAN, seed=1).stray() is None


def test_strays_are_damaged_only_in_known_fields_and_never_come_from_their_receiver():
    herd, original = Herd(PLAN, seed=1), frame(7)
    herd.add(original)
    counts, receivers = Counter[int](), Counter[str | None]()
    known = {
        bit for offset, width in FIELDS.values() for bit in range(8 * offset, 8 * (offset + width))
    }
    for _ in range(DRAWS):
        host, data = herd.stray()
        assert data[:6] != MACS[host], "a switch sends nothing back to where it came from"
        assert len(data) == len(original)
        flipped = flips(data, original)
        assert set(flipped) <= known
        counts[len(flipped)] += 1
        receivers[next((name for name, mac in MACS.items() if mac == data[:6]), None)] += 1
    assert set(counts) == {0, 1, 2, 3}
    assert counts[0] > DRAWS / 5, "copies of what has been, as it was"
    assert min(receivers[name] for name in ("h2", "h3")) > DRAWS / 20, (
        "for others than the frame was for"
    )
    assert receivers[None] > 0, "for nobody that there is"


def test_strays_are_of_the_latest_frames_and_of_much_older_ones():
    herd = Herd(PLAN, seed=1, room=64, latest=4)
    for number in range(1000):
        herd.add(frame(number))
    ages = Counter(
        1000 - int.from_bytes(data[64:68], "little")
        for _, data in (herd.stray() for _ in range(DRAWS))
        if not flips(data, frame(int.from_bytes(data[64:68], "little")))
    )
    assert sum(count for age, count in ages.items() if age <= 4) > ages.total() / 3
    assert sum(count for age, count in ages.items() if age > 100) > ages.total() / 20


def test_the_same_seed_gives_the_same_strays():
    def drawn(seed: int) -> list[tuple[str, bytes] | None]:
        herd = Herd(PLAN, seed)
        for number in range(600):
            herd.add(frame(number))
        return [herd.stray() for _ in range(50)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.net
@pytest.mark.parametrize("switch", ["xdp", "bridge"])
@pytest.mark.alone
def test_strays_arrive_change_no_sum_and_leave_nothing(switch):
    plan = plan_fabric(hosts=3, switch=switch)
    with Fabric(plan) as fabric, Workers(fabric, modules=(tap.__name__, calls.__name__)) as workers:
        set_datapath(fabric, "xdp")
        specs = make_groups(plan.hosts, mtu=plan.mtu, lanes="int32", capacity=1 << 14, timeout=30.0)
        workers.call_all(
            open_in,
            {h.name: {"spec": s} for h, s in zip(plan.hosts, specs, strict=True)},
            timeout=60,
        )
        values = np.arange(5000, dtype=np.float32)
        expected = 3 * values

        def reduce() -> None:
            found = workers.call_all(
                reduce_values_in, {name: {"values": values} for name in HOSTS}, timeout=60
            )
            for result in found.values():
                np.testing.assert_allclose(result, expected, rtol=1e-6)

        def held() -> dict[str, Holdings]:
            workers.call_all(calls.trim, list(workers), timeout=60)
            trim()
            return {name: Holdings.of(worker.pid) for name, worker in workers.items()} | {
                "here": Holdings.of(os.getpid())
            }

        reduce()
        before, counted = held(), workers.call_all(counters_in, HOSTS)
        with Strays(fabric, rate=2000, seed=1) as strays:
            while strays.sent < 2000:
                reduce()
        reduce()
        refused = Counter[str]()
        for name, now in workers.call_all(counters_in, HOSTS).items():
            refused.update(
                {
                    key: now[key] - counted[name][key]
                    for key in now
                    if key.startswith("bad_") or key == "duplicate"
                }
            )
        assert refused.total() > 100, (
            f"most of {strays.sent} strays are for a group that is there, and damaged or late"
        )
        for name, now in held().items():
            now.growth(name, before[name])
        workers.call_all(close_in, HOSTS)


@pytest.mark.net
def test_strays_need_workers_and_the_datapath():
    with Fabric(plan_fabric(hosts=2)) as fabric:
        with pytest.raises(FabricError, match="none are running"), Strays(fabric, 100, 1):
            pass
        with (
            Workers(fabric, modules=("testbed.soak.tap",)),
            pytest.raises(FabricError, match="the datapath is sockets: must be xdp"),
            Strays(fabric, 100, 1),
        ):
            pass
