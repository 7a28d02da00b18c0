"""netem: which rules it can implement, as arguments of tc; and the error of a kernel without it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from testbed.core.errors import FaultError, SpecError
from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults.netem import Netem, netem_options, netem_table
from testbed.faults.rule_table import compile_rules
from testbed.faults.spec import format_fault, parse_fault, rules_of
from testbed.plan import plan_fabric
from testbed.probes import Level, find
from testbed.results import load_run
from testbed.run import run_scenario
from testbed.scenario import Scenario, parse_scenario
from testbed.worker import Workers
from tests.support.rules import parse_rule

PREFIX = "netem limit 65536 "
HOSTS = ("h1", "h2", "h3")
NO_NETEM = (
    "tc qdisc add dev s1-eth2 root netem limit 65536 loss random {}: Error: Specified qdisc kind is"
    " unknown."
)


def scenario(
    *faults: str, switch: str = "bridge", backends: tuple[str, ...] = ("tcp-ring",)
) -> Scenario:
    table: dict[str, Any] = {
        "scenario": {"name": "netem"},
        "fabric": {"hosts": 2, "switch": switch},
        "collective": {"backends": backends, "timeout": 20.0},
        "dataset": {"name": "synthetic", "scale": 6, "classes": 2, "feature_dim": 8},
        "model": {"hidden": 8, "fanout": [2, 2]},
        "training": {"epochs": 1, "batch_size": 16},
        "faults": faults,
    }
    return parse_scenario(table)


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
        (
            "delay delay=2ms jitter=1ms distribution=normal",
            "delay 2000us 1000us distribution normal",
        ),
        ("reorder p=0.25 within=10ms", "delay 10000us reorder 75%"),
    ],
)
def test_words(rule: str, words: str) -> None:
    assert " ".join(netem_options([parse_rule(rule)])) == PREFIX + words


def test_rules_of_one_receiver_are_one_qdisc() -> None:
    rules = [
        parse_rule(text)
        for text in ("drop p=0.01 link=*->h2", "delay delay=2ms", "corrupt p=0.5 link=*->h3,*->h2")
    ]
    assert {name: " ".join(options) for name, options in netem_table(rules, HOSTS).items()} == {
        "h1": PREFIX + "delay 2000us",
        "h2": PREFIX + "loss random 1% delay 2000us corrupt 50%",
        "h3": PREFIX + "delay 2000us corrupt 50%",
    }


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (
            "drop kind=tcp,udp",
            (
                "netem: drop: kind = tcp,udp: only link and p can be set, since netem reads no such"
                " header"
            ),
        ),
        (
            "drop attempt=0",
            (
                "netem: drop: attempt = 0: only link and p can be set, since netem reads no such"
                " header"
            ),
        ),
        (
            "drop link=h1->h2",
            (
                "netem: drop: link = h1->h2: must be *->h2, since a port's qdisc sees what all"
                " hosts send"
            ),
        ),
        (
            "duplicate copies=2",
            "netem: duplicate: copies = 2: must be 1, since netem supports nothing else",
        ),
        (
            "corrupt bits=8",
            "netem: corrupt: bits = 8: must be 1, since netem supports nothing else",
        ),
        (
            "reorder behind=3",
            "netem: reorder: behind = 3: must be 1, since netem supports nothing else",
        ),
        (
            "delay delay=2ms jitter=1ms distribution=pareto",
            (
                "netem: delay: distribution = pareto: must be constant, uniform or normal, since"
                " its pareto differs"
            ),
        ),
        (
            "drop; drop p=0.5 link=*->h2",
            "netem: drop and drop of one receiver: must be one of them",
        ),
        (
            "delay delay=1ms; reorder",
            "netem: reorder and delay of one receiver: must be one of them",
        ),
        (
            "drop link=*->h9",
            "netem: drop: link = *->h9: must be a receiver of this fabric: h1, h2, h3",
        ),
    ],
)
def test_rules_that_netem_cannot_implement_are_refused(rules: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        netem_table([parse_rule(rule) for rule in rules.split("; ")], HOSTS)
    assert str(caught.value) == text


RING = {"backends": ("xdp-ring", "tcp-ring")}
XDP = {"switch": "xdp"}


@pytest.mark.parametrize(
    ("faults", "changes", "text"),
    [
        (
            "drop kind=tcp backend=netem",
            {},
            "netem: drop: kind = tcp: only link and p can be set, since netem ",
        ),
        (
            "drop link=h1->h2 backend=netem",
            {},
            "netem: drop: link = h1->h2: must be *->h2, since a port's qdisc sees ",
        ),
        (
            "drop backend=netem; burst enter=0.1 leave=0.5 backend=netem",
            {},
            "netem: burst and drop of one receiver: ",
        ),
        (
            "drop backend=netem",
            XDP | RING,
            "drop: backend = netem: must be engine with switch xdp and xdp-ring, ",
        ),
        (
            "drop backend=netem; flood switch=s1 at=1s",
            {},
            "drop: backend = netem: must be engine beside a flood, since ",
        ),
        (
            "drop backend=netem; limit host=h2 rate=1mbit",
            {},
            "limit of h2: direction = both: must be up beside netem, ",
        ),
    ],
)
def test_scenarios_that_netem_cannot_do_are_refused(
    faults: str, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(SpecError) as caught:
        scenario(*faults.split("; "), **changes)
    assert str(caught.value).startswith(f"scenario: faults: {text}")


@pytest.mark.parametrize(
    ("faults", "changes"),
    [
        ("drop backend=netem", XDP),
        ("drop backend=netem", RING),
        ("drop backend=netem; drop kind=tcp; limit host=h2 rate=1mbit direction=up", {}),
        ("drop backend=netem link=*->h1; limit host=h2 rate=1mbit", {}),
    ],
)
def test_scenarios_that_netem_can_do(faults: str, changes: dict[str, Any]) -> None:
    assert rules_of(scenario(*faults.split("; "), **changes).faults)[0].backend == "netem"


def test_backends_are_words_and_tables_alike() -> None:
    rule = parse_fault("drop p=0.01 link=*->h2 backend=netem")
    assert format_fault(rule) == "drop link=*->h2 p=0.01 backend=netem"
    assert format_fault(parse_fault("drop backend=engine")) == "drop"
    with pytest.raises(SpecError, match="backend = tc: must be engine or netem"):
        parse_fault("drop backend=tc")


def test_the_engine_takes_no_rule_of_netems() -> None:
    with pytest.raises(
        SpecError, match="drop: backend = netem: must be engine where fates are counted and"
    ):
        compile_rules([parse_rule("drop backend=netem")], plan_fabric("star", 2))


@pytest.mark.net
@pytest.mark.usefixtures("cache")
def test_a_run_with_netem_or_the_kernels_words(tmp_path: Path) -> None:
    given, out = (
        scenario("drop p=0.05 link=*->h2 backend=netem", "drop p=0.05 link=h2->h1"),
        tmp_path / "run",
    )
    if find("qdisc netem").level is not Level.OK:
        with pytest.raises(FaultError) as caught:
            run_scenario(given, out, quiet=True)
        assert str(caught.value).startswith(NO_NETEM.format("5%"))
        assert str(caught.value).count("\n") == 0
        kept = json.loads((out / "manifest.json").read_text())["error"]
        assert str(caught.value) in (kept, f"{kept}; results so far are in {out}")
        return
    run = load_run(run_scenario(given, out, quiet=True))
    assert run.metric("fault_frames_netem")["link"].tolist() == ["*->h2"]
    assert set(run.metric("faults_fired")["fault"]) == {"drop link=h2->h1 p=0.05"}


@pytest.mark.net
def test_frames_that_xdp_redirects_bypass_netem() -> None:
    with Fabric(plan_fabric("star", 2, "xdp")) as fabric, Workers(fabric):
        set_datapath(fabric, "xdp")
        with pytest.raises(FaultError, match="netem: frames that XDP redirects pass no qdisc"):
            Netem(fabric, [parse_rule("drop")])


@pytest.mark.net
def test_rules_in_force_or_the_kernels_words() -> None:
    with Fabric(plan_fabric("star", 2, "bridge")) as fabric:
        if find("qdisc netem").level is not Level.OK:
            with pytest.raises(FaultError, match=re.escape(NO_NETEM.format("100%"))):
                Netem(fabric, [parse_rule("drop link=*->h2")])
            assert not fabric.faults
            return
        with Netem(fabric, [parse_rule("drop link=*->h2")]) as netem:
            assert fabric.run("h1", ["ping", "-c", "3", "-i", "0.01", "-W", "1", "h2"]).returncode
            assert netem.counters()["h2"].dropped == 3
        assert not fabric.run("h1", ["ping", "-c", "1", "-W", "2", "h2"]).returncode
