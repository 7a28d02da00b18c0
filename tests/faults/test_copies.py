"""Copies of a flooded frame: bounded if one switch floods in any topology, and predicted exactly if
several do.
"""

import itertools
import random
from collections import Counter, deque
from collections.abc import Iterator

import pytest

from testbed.core.errors import SpecError
from testbed.faults.copies import Walk, check_bounded
from testbed.plan import FabricPlan, plan_fabric

PLANS = [
    *(plan_fabric("star", hosts) for hosts in (1, 2, 3, 32)),
    *(plan_fabric("ring", hosts) for hosts in (1, 2, 3, 4, 5, 6, 7, 16)),
    *(
        plan_fabric("leaf-spine", hosts, k=k)
        for hosts, k in ((1, 1), (4, 1), (2, 2), (4, 2), (5, 3), (9, 4), (16, 8))
    ),
]
SMALL = [
    *(plan_fabric("ring", hosts) for hosts in (2, 3, 4, 5, 6)),
    *(plan_fabric("leaf-spine", hosts, k=k) for hosts, k in ((4, 1), (4, 2), (6, 3))),
]
ENDLESS = 1000  # frames; in a small fabric, every flood that ends has ended long before


def name(plan: FabricPlan) -> str:
    return f"{plan.topology}-{len(plan.hosts)}-{len(plan.switches)}"


def pairs(plan: FabricPlan) -> Iterator[tuple[str, ...]]:
    return itertools.permutations([host.name for host in plan.hosts], 2)


def played(plan: FabricPlan, floods: set[str], sender: str, receiver: str) -> Counter[str] | None:
    """The same, computed by forwarding frames one by one; None if there seems to be no end."""
    far = {}
    for link in plan.links:
        far[link.a, link.a_port], far[link.b, link.b_port] = (
            (link.b, link.b_port),
            (
                link.a,
                link.a_port,
            ),
        )
    mac, arrived = plan.host(receiver).mac, Counter[str]()
    frames = deque([far[sender, 0]])
    for _ in range(ENDLESS):
        if not frames:
            return arrived
        at, ingress = frames.popleft()
        if at.startswith("h"):
            arrived[at] += 1
            continue
        switch = plan.switch(at)
        for port in switch.ports if at in floods else [switch.forwarding[mac]]:
            if port != ingress:
                frames.append(far[at, port])
    return None


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_one_switch_floods_at_most_one_copy_per_other_port(plan: FabricPlan) -> None:
    for switch in plan.switches:
        check_bounded(plan, {switch.name})
        nearby = {host.name for host in plan.hosts if host.switch == switch.name}
        for sender, receiver in pairs(plan):
            copies = Walk(plan, {switch.name}, plan.host(receiver).mac).copies(sender)
            assert copies[receiver] >= 1
            assert copies.total() <= max(1, len(switch.ports) - 1)
            assert sender not in copies
            # Only hosts of this switch hear frames for others: any other switch forwards them to
            # their destination.
            assert copies.keys() <= nearby | {receiver}
            if copies.total() > 1:
                assert copies.keys() >= nearby - {sender}


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_without_a_flood_each_frame_arrives_once(plan: FabricPlan) -> None:
    for sender, receiver in pairs(plan):
        assert Walk(plan, (), plan.host(receiver).mac).copies(sender) == {receiver: 1}


@pytest.mark.parametrize("plan", SMALL, ids=name)
def test_several_switches_may_flood_exactly_if_all_frames_end(plan: FabricPlan) -> None:
    names = [switch.name for switch in plan.switches]
    subsets = [set(some) for count in (1, 2, 3) for some in itertools.combinations(names, count)]
    for floods in random.Random(plan.topology).sample(subsets, min(len(subsets), 25)):
        found = {pair: played(plan, floods, *pair) for pair in pairs(plan)}
        if None in found.values():
            with pytest.raises(SpecError, match=r"for ever: flood one of them at a time"):
                check_bounded(plan, floods)
        else:
            check_bounded(plan, floods)
            for (sender, receiver), copies in found.items():
                assert Walk(plan, floods, plan.host(receiver).mac).copies(sender) == copies


def test_frames_for_unknown_hosts_are_dropped_by_the_next_switch_with_a_table() -> None:
    plan = plan_fabric("leaf-spine", 4)
    assert Walk(plan, {"leaf1"}, "ff:ff:ff:ff:ff:ff").copies("h1") == {"h2": 1}
    assert Walk(plan, (), "ff:ff:ff:ff:ff:ff").copies("h1") == {}


@pytest.mark.parametrize(
    ("topology", "hosts", "floods", "said"),
    [
        (
            "ring",
            4,
            "s1 s2",
            "flood of s1, s2 at once: a frame for h1 would go round s2, s3, s4, s1 for ever",
        ),
        (
            "ring",
            3,
            "s3 s1",
            "flood of s1, s3 at once: a frame for h1 would go round s1, s3, s2 for ever",
        ),
        (
            "leaf-spine",
            4,
            "leaf1 spine1",
            "a frame for h1 would go round leaf1, spine1, leaf2, spine2 for ever",
        ),
        ("star", 3, "s1 s2", "switch: 's2' is not in this fabric; switches are s1"),
    ],
)
def test_refusals(topology: str, hosts: int, floods: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_bounded(plan_fabric(topology, hosts), floods.split())
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("topology", "hosts", "floods"),
    [("ring", 2, "s1 s2"), ("leaf-spine", 4, "leaf1 leaf2"), ("ring", 4, "s1 s3")],
)
def test_switches_may_flood_at_once_if_frames_between_them_end(
    topology: str, hosts: int, floods: str
) -> None:
    check_bounded(plan_fabric(topology, hosts), floods.split())
