"""Events and faults as text and tables: which are accepted, which are refused, and with which
errors.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import SpecError
from testbed.faults.events import Event, check_floods, check_overlap
from testbed.faults.spec import (
    MODELS,
    events_of,
    format_fault,
    hosts_of,
    limits_of,
    meet_frames,
    parse_fault,
    rules_of,
)
from testbed.plan import plan_fabric

HOSTS = st.lists(st.integers(1, 32), min_size=1, max_size=4, unique=True).map(
    lambda numbers: [f"h{n}" for n in numbers]
)
TIMES = st.integers(0, 10**9).map(lambda ns: ns / 1e9)


@st.composite
def events(draw: st.DrawFn) -> str:
    action = draw(st.sampled_from(["link-down", "partition", "kill", "pause", "slow", "flood"]))
    names = draw(HOSTS)
    keys = {"at": draw(TIMES)}
    text = f"hosts={','.join(names)}"
    if action == "partition":
        text = f"sets={','.join(names)}|h33"
    if action == "flood":
        text = f"switches={','.join(name.replace('h', 'spine') for name in names)}"
    if action != "kill" and draw(st.booleans()):
        keys["for"] = draw(TIMES) + 1e-9
    if action == "slow":
        keys["share"] = draw(st.integers(1, 100)) / 100
    return " ".join([action, text, *(f"{key}={value}" for key, value in keys.items())])


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_fault(text)
    return str(caught.value)


@given(events())
def test_words_and_tables_give_the_same_event(text: str) -> None:
    event = parse_fault(text)
    assert parse_fault(format_fault(event)) == event


@pytest.mark.parametrize(
    "text",
    [
        "link-down host=h3 at=20ms for=50ms",
        "partition sets=h1,h2|h3 at=1.5s for=300s",
        "pause hosts=h1,h3 for=250us",
        "slow host=h2 share=0.25 at=1.000000001s",
        "flood switch=s1 at=1ms for=2s",
        "flood switches=leaf1,leaf2",
        "kill host=h2 at=0.1234567891",
        "kill host=h2 at=5e-10",
        "kill host=h2",
        "limit host=h1 rate=50mbit queue=2KiB direction=up",
        "limit hosts=h1,h2 rate=1.5gbit queue=30kB",
        "limit host=h1 rate=64.001kbit queue=1501B",
        "delay link=h1->h2 delay=2ms jitter=1ms",
        "delay delay=1.5us",
        "delay delay=0s",
        "drop link=*->h2,h3->h4 p=0.1",
        "drop link=h1->h2 kind=reduce seq=3 chunk=17 attempt=0",
        "duplicate p=0.02 copies=2",
        "reorder p=0.05 behind=3 within=20ms",
        "burst p=0.9 enter=0.005 leave=0.2",
        "drop link=*->h2 p=0.01 backend=netem",
    ],
)
def test_words_are_those_of_a_user(text: str) -> None:
    assert format_fault(parse_fault(text)) == text


@given(st.integers(1, 86400 * 10**9))
def test_times_of_events_survive_a_round_trip(nanoseconds: int) -> None:
    event = parse_fault(f"pause host=h2 at=1ns for={nanoseconds}ns")
    assert parse_fault(format_fault(event)) == event


@given(st.integers(64_000, 30 * 10**9), st.integers(576, 64 << 20))
def test_rates_and_queues_survive_a_round_trip(rate: int, queue: int) -> None:
    limit = parse_fault(f"limit host=h2 rate={rate}bit queue={queue}B")
    assert parse_fault(format_fault(limit)) == limit


@pytest.mark.parametrize(
    ("texts", "met"),
    [
        ((), False),
        (
            (
                "kill host=h2",
                "link-down host=h1",
                "flood switch=s1",
                "drop link=*->h2 backend=netem",
            ),
            False,
        ),
        (("kill host=h2", "drop p=0.01"), True),
        (("limit host=h1 rate=1mbit",), True),
        (("partition sets=h1|h2",), True),
    ],
)
def test_which_faults_need_the_engine(texts: tuple[str, ...], met: bool) -> None:
    assert meet_frames(map(parse_fault, texts)) == met


@pytest.mark.parametrize(
    "text",
    [
        "drop",
        "drop link=h1->h2,*->h3 kind=reduce,tcp chunk=3..9 attempt=0 p=0.01",
        "duplicate copies=3",
        "corrupt p=0.5 bits=7",
        "delay delay=0.0000015s",
        "delay delay=2s jitter=0.000000001s distribution=pareto",
        "reorder behind=5 within=0.05s",
        "burst enter=0.01 leave=0.25",
        "limit host=h2 rate=100mbit queue=64KiB direction=up",
        "limit hosts=h1,h2 rate=64.5kbit",
    ],
)
def test_words_and_tables_give_the_same_rule(text: str) -> None:
    rule = parse_fault(text)
    assert parse_fault(format_fault(rule)) == rule


def test_times_have_units_or_are_seconds() -> None:
    event = parse_fault("pause host=h2 at=1.5s for=200ms")
    assert event == parse_fault("pause hosts=h2 at=1.5 for=0.2")
    assert isinstance(event, Event)
    assert (event.at, event.end, event.names) == (1.5, 1.7, ("h2",))
    forever = parse_fault("link-down host=h1")
    assert isinstance(forever, Event)
    assert (forever.at, forever.end) == (0, None)


def test_events_know_their_hosts_and_links() -> None:
    faults = [
        parse_fault(text)
        for text in (
            "drop link=h1->h2,*->h3",
            "limit host=h2 rate=1mbit",
            "partition sets=h1,h2|h3",
            "kill host=h2",
            "flood switch=s1",
        )
    ]
    assert [hosts_of(fault) for fault in faults] == [
        ("link", ("h1", "h2", "h3")),
        ("hosts", ("h2",)),
        ("sets", ("h1", "h2", "h3")),
        ("hosts", ("h2",)),
        ("switches", ()),
    ]
    assert [rule.action for rule in rules_of(faults)] == ["drop"]
    assert [limit.rate for limit in limits_of(faults)] == [1e6]
    assert [event.action for event in events_of(faults)] == ["partition", "kill", "flood"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("boom", f"action 'boom' is unknown: must be one of {', '.join(MODELS)}"),
        ("drop p", "'p' is not key=value"),
        ("kill", "hosts is missing: must be hosts such as h2, separated by commas, each once"),
        ("kill host=h2 for=1", "for is unknown: must be one of at, hosts"),
        ("pause host=h2 hosts=h3", "host is unknown: must be one of at, hosts, for"),
        (
            "pause host=h2,h2",
            "hosts = h2,h2: must be hosts such as h2, separated by commas, each once",
        ),
        (
            "flood",
            (
                "switches is missing: must be switches such as s1 or leaf2, separated by commas,"
                " each"
                " once"
            ),
        ),
        (
            "flood switch=1s",
            "switches = 1s: must be switches such as s1 or leaf2, separated by commas, each once",
        ),
        (
            "flood switches=s1,s1",
            "switches = s1,s1: must be switches such as s1 or leaf2, separated by commas, each"
            " once",
        ),
        (
            "flood switch=*",
            "switches = *: must be switches such as s1 or leaf2, separated by commas, each once",
        ),
        ("flood switch=s1 host=h2", "hosts is unknown: must be one of at, for, switches"),
        ("kill host=h2 switch=s1", "switches is unknown: must be one of at, hosts"),
        ("slow host=h2", "share is missing: must be a number from 0.01 to 1"),
        ("slow host=h2 share=0", "share = 0: must be a number from 0.01 to 1"),
        (
            "pause host=h2 at=-1",
            (
                "at = -1.0: must be seconds, or a time with a unit such as 200ms (whole"
                " nanoseconds), up to a day"
            ),
        ),
        (
            "partition sets=h1",
            "sets = h1: must be two or more sets of hosts such as h1,h2|h3,h4, each host once",
        ),
    ],
)
def test_refusals(text: str, said: str) -> None:
    assert refusal(text) == f"fault {text!r}: {said}"


def overlap(*texts: str) -> None:
    check_overlap(events_of(map(parse_fault, texts)))


def test_events_that_end_each_other_are_refused() -> None:
    with pytest.raises(
        SpecError, match="link-down of h2 at 2 s and link-down at 1 s are in force at once"
    ):
        overlap("link-down host=h2 at=1 for=2", "link-down hosts=h1,h2 at=2 for=5")
    with pytest.raises(SpecError, match="slow of h2 at 1 s and pause at 2 s are in force at once"):
        overlap("pause host=h2 at=2 for=2", "slow host=h2 at=1 share=0.5")
    with pytest.raises(SpecError, match="flood of s1 at 1 s and flood at 0 s are in force at once"):
        overlap("flood switches=s1,s3", "flood switch=s1 at=1 for=1")


@pytest.mark.parametrize(
    "texts",
    [
        ("pause host=h2 at=1 for=1", "pause host=h2 at=2 for=1"),
        ("pause host=h2 at=1", "pause host=h3 at=1"),
        ("pause host=h2", "link-down host=h2"),
        ("kill host=h2", "kill host=h2 at=1"),
    ],
)
def test_events_apart_are_allowed(texts: tuple[Any, ...]) -> None:
    overlap(*texts)


def floods(*texts: str, topology: str = "ring", hosts: int = 4) -> None:
    check_floods(events_of(map(parse_fault, texts)), plan_fabric(topology, hosts))


@pytest.mark.parametrize(
    "texts",
    [
        ("flood switches=s1,s2",),
        ("flood switch=s1", "flood switch=s2"),
        ("flood switch=s2 at=1 for=1ms", "pause host=h2", "flood switch=s1 at=0.5 for=2"),
        ("flood switch=s3 at=2", "flood switch=s1 for=3", "flood switch=s2 at=1"),
    ],
)
def test_simultaneous_floods_with_endless_frames_are_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(
        SpecError,
        match=r"flood of s1, s2(, s3)? at once: a frame for h1 would go round .* for ever",
    ):
        floods(*texts)


@pytest.mark.parametrize(
    "texts",
    [
        ("flood switch=s1 for=1", "flood switch=s2 at=1"),  # ends precede starts
        ("flood switch=s2 at=3", "flood switch=s1 at=1 for=2"),
        ("flood switches=s1,s3",),
        ("pause hosts=h1,h2", "flood switch=s4"),
    ],
)
def test_floods_one_after_the_other_are_allowed(texts: tuple[str, ...]) -> None:
    floods(*texts)
