"""netem: what of our rules it can do, in tc's words; and what a kernel without it says."""

import re

import pytest

from testbed.errors import FaultError, SpecError
from testbed.fabric import Fabric
from testbed.faults.netem import Netem, netem_options, netem_table
from testbed.faults.rules import parse_rule
from testbed.plan import plan_fabric
from testbed.probes import Level, find
from testbed.worker import Workers

PREFIX = "netem limit 65536 "


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("drop p=0.01", "loss random 1%"),
        ("drop", "loss random 100%"),
        ("drop p=0.000001", "loss random 0.0001%"),
        ("burst enter=0.01 leave=0.25", "loss gemodel 1% 25% 100% 0%"),
        ("burst enter=0.01 leave=0.25 p=0.5", "loss gemodel 1% 25% 50% 0%"),
        ("duplicate p=0.5", "duplicate 50%"),
        ("corrupt p=0.125", "corrupt 12.5%"),
        ("delay delay=2ms", "delay 2000us"),
        ("delay delay=1500ns", "delay 1.5us"),
        ("delay delay=2ms p=0.3", "delay 2000us reorder 70%"),
        ("delay delay=2ms jitter=1ms", "delay 2000us 1000us"),
        ("delay delay=2ms jitter=1ms distribution=uniform", "delay 2000us 1000us"),
        ("delay delay=2ms jitter=1ms distribution=normal", "delay 2000us 1000us distribution normal"),
        ("reorder p=0.25 within=10ms", "delay 10000us reorder 75%"),
    ],
)
def test_words(rule: str, words: str) -> None:
    assert " ".join(netem_options([parse_rule(rule)])) == PREFIX + words


def test_rules_of_one_receiver_are_one_qdisc() -> None:
    rules = [parse_rule(text) for text in ("drop p=0.01 link=*->h2", "delay delay=2ms", "corrupt p=0.5 link=*->h3,*->h2")]
    assert {name: " ".join(options) for name, options in netem_table(rules, plan_fabric("star", 3)).items()} == {
        "h1": PREFIX + "delay 2000us",
        "h2": PREFIX + "loss random 1% delay 2000us corrupt 50%",
        "h3": PREFIX + "delay 2000us corrupt 50%",
    }


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("drop kind=tcp", "netem: drop: kind is given: allowed are link and p, since netem reads no such header"),
        ("drop attempt=0", "netem: drop: attempt is given: allowed are link and p, since netem reads no such header"),
        ("drop link=h1->h2", "netem: drop: link = h1->h2: allowed is *->h2, since a port's qdisc sees what all hosts send"),
        ("duplicate copies=2", "netem: duplicate: copies = 2: allowed is 1, netem knows no other"),
        ("corrupt bits=8", "netem: corrupt: bits = 8: allowed is 1, netem knows no other"),
        ("reorder behind=3", "netem: reorder: behind = 3: allowed is 1, netem knows no other"),
        (
            "delay delay=2ms jitter=1ms distribution=pareto",
            "netem: delay: distribution = pareto: allowed is constant, uniform or normal, since its own is another",
        ),
        ("drop; drop p=0.5 link=*->h2", "netem: drop and drop of one receiver: allowed is one of them"),
        ("delay delay=1ms; reorder", "netem: reorder and delay of one receiver: allowed is one of them"),
        ("drop link=*->h9", "host: 'h9' is not in this fabric; hosts are h1, h2, h3"),
    ],
)
def test_what_netem_cannot_do(rules: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        netem_table([parse_rule(rule) for rule in rules.split("; ")], plan_fabric("star", 3))
    assert str(caught.value) == text


@pytest.mark.net
def test_frames_that_xdp_redirects_meet_no_netem() -> None:
    with Fabric(plan_fabric("star", 2, "xdp")) as fabric, Workers(fabric):
        fabric.set_datapath("xdp")
        with pytest.raises(FaultError, match="netem: frames that XDP redirects pass no qdisc"):
            Netem(fabric, [parse_rule("drop")])


@pytest.mark.net
def test_rules_in_force_or_the_kernels_words() -> None:
    with Fabric(plan_fabric("star", 2, "bridge")) as fabric:
        if find("qdisc netem").level is not Level.OK:
            text = "tc qdisc add dev s1-eth2 root netem limit 65536 loss random 100%: Error: Specified qdisc kind is unknown."
            with pytest.raises(FaultError, match=re.escape(text)):
                Netem(fabric, [parse_rule("drop link=*->h2")])
            return
        with Netem(fabric, [parse_rule("drop link=*->h2")]) as netem:
            assert fabric.run("h1", ["ping", "-c", "3", "-i", "0.01", "-W", "1", "h2"]).returncode
            assert netem.counters()["h2"].dropped == 3
        assert not fabric.run("h1", ["ping", "-c", "1", "-W", "2", "h2"]).returncode
