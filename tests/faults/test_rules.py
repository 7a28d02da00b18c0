"""Rules as text: what is accepted, and the errors for the rest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import SpecError
from testbed.faults.rule_table import CERTAIN, Action, compile_rules
from testbed.faults.rules import Burst, Corrupt, Delay, Drop, Duplicate, Range, Reorder
from testbed.faults.spec import format_fault
from testbed.faults.units import parse_bytes, parse_rate, parse_seconds, split_words
from testbed.plan import plan_fabric
from tests.support.rules import parse_rule

PLAN = plan_fabric(hosts=4)

TAKEN = {
    "drop": Drop(),
    "drop p=0.01 link=h1->h2": Drop(p=0.01, link="h1->h2"),
    "drop group=4095 hop=255 attempt=0..255 chunk=4294967295": Drop(
        group=4095, hop=255, attempt="0..255", chunk=4294967295
    ),
    "drop kind=reduce,tcp chunk=3..9 hop=1": Drop(kind="reduce,tcp", chunk="3..9", hop=1),
    "duplicate copies=7": Duplicate(copies=7),
    "corrupt bits=3 seq=2 p=1": Corrupt(bits=3, seq=2),
    "delay delay=2ms": Delay(delay="2ms"),
    "delay delay=2ms jitter=500us distribution=pareto": Delay(
        delay="2ms", jitter="500us", distribution="pareto"
    ),
    "reorder behind=4 within=20ms": Reorder(behind=4, within="20ms"),
    "burst enter=0.01 leave=0.3 p=0.5": Burst(enter=0.01, leave=0.3, p=0.5),
}


@pytest.mark.parametrize("text", TAKEN)
def test_words_and_tables_say_the_same(text):
    assert parse_rule(text) == TAKEN[text]


NUMBER = "a number or a range such as 3..9, up to"
TIME = "a time with a unit, such as 200ms, of whole nanoseconds and at most a minute"
REFUSED = {
    "": "fault '': the first word must be the action, as in: drop p=0.01 link=h1->h2",
    "p=1": "fault 'p=1': the first word must be the action, as in: drop p=0.01 link=h1->h2",
    "drop p": "fault 'drop p': 'p' is not key=value",
    "drop p=1 p=0": "fault 'drop p=1 p=0': p is given twice",
    "shake": (
        "fault 'shake': action 'shake' is unknown: must be one of drop, duplicate, corrupt, delay,"
        " reorder, burst"
    ),
    "drop p=2": "fault 'drop p=2': p = 2: must be a number from 0 to 1",
    "drop p=nan": "fault 'drop p=nan': p = nan: must be a number from 0 to 1",
    "drop q=2": (
        "fault 'drop q=2': q is unknown: must be one of link, kind, group, seq, chunk, hop,"
        " attempt, p, backend"
    ),
    "drop link=h1": (
        "fault 'drop link=h1': link = h1: must be links of two hosts such as h1->h2, *->h2 or"
        " h1->*, separated by commas"
    ),
    "drop link=0h->h1": (
        "link = 0h->h1: must be links of two hosts such as h1->h2, *->h2 or h1->*, separated by"
        " commas"
    ),
    "drop link=h1->h1": "link = h1->h1: must be links of two hosts such as h1->h2, ",
    "delay link=h1->h2,h3->h3 delay=1ms": "link = h1->h2,h3->h3: must be links of two hosts such",
    "drop kind=sctp": "fault 'drop kind=sctp': kind = sctp: must be any of reduce, result,",
    "drop chunk=9..3": f"fault 'drop chunk=9..3': chunk = 9..3: must be {NUMBER}",
    "drop chunk=4294967296": (
        f"fault 'drop chunk=4294967296': chunk = 4294967296: must be {NUMBER} 4294967295"
    ),
    "drop group=0..4096": f"fault 'drop group=0..4096': group = 0..4096: must be {NUMBER} 4095",
    "drop hop=256": f"fault 'drop hop=256': hop = 256: must be {NUMBER} 255",
    "drop attempt=1..65536": (
        f"fault 'drop attempt=1..65536': attempt = 1..65536: must be {NUMBER} 65535"
    ),
    "drop hop=-1": f"fault 'drop hop=-1': hop = -1: must be {NUMBER}",
    "drop chunk=1_0": f"fault 'drop chunk=1_0': chunk = 1_0: must be {NUMBER} 4294967295",
    "drop chunk=1_0..2_0": (
        f"fault 'drop chunk=1_0..2_0': chunk = 1_0..2_0: must be {NUMBER} 4294967295"
    ),
    "drop p=0.0_1": "fault 'drop p=0.0_1': p = 0.0_1: must be a number from 0 to 1",
    "duplicate copies=1_0": (
        "fault 'duplicate copies=1_0': copies = 1_0: must be a whole number from 1 to 7"
    ),
    "delay delay=0.5ns": f"fault 'delay delay=0.5ns': delay = 0.5ns: must be {TIME}",
    "delay delay=1_0ms": f"fault 'delay delay=1_0ms': delay = 1_0ms: must be {TIME}",
    "reorder within=0.0000000001s": f"within = 0.0000000001s: must be {TIME}",
    "duplicate copies=8": (
        "fault 'duplicate copies=8': copies = 8: must be a whole number from 1 to 7"
    ),
    "corrupt bits=0.5": "fault 'corrupt bits=0.5': bits = 0.5: must be a whole number from 1 to 64",
    "delay": f"fault 'delay': delay is missing: must be {TIME}",
    "delay delay=2": f"fault 'delay delay=2': delay = 2: must be {TIME}",
    "delay delay=2min": f"fault 'delay delay=2min': delay = 120.0: must be {TIME}",
    "delay delay=1ms distribution=normal": "jitter: is missing, which distribution normal needs",
    "delay delay=1ms jitter=1ms distribution=constant": (
        "distribution = constant: must be uniform, normal or pareto"
    ),
    "delay delay=1ms jitter=1ms distribution=cauchy": (
        "distribution = cauchy: must be constant, uniform, normal or pareto"
    ),
    "reorder behind=0": "behind = 0: must be a whole number from 1 to 1024",
    "burst enter=0.1": "leave is missing: must be a number between 0 and 1",
    "burst enter=0.001 leave=0.01": "enter + leave = 0.011: must be 0.02 to 1",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_name_key_value_and_what_is_allowed(text):
    with pytest.raises(SpecError) as refusal:
        parse_rule(text)
    assert REFUSED[text] in str(refusal.value)


def test_every_finding_has_a_line():
    with pytest.raises(SpecError) as refusal:
        parse_rule("duplicate p=-1 copies=99 colour=red")
    assert [line.split(": ", 1)[1].split(" ")[0] for line in str(refusal.value).splitlines()] == [
        "p",
        "copies",
        "colour",
    ]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_seconds, "200ms", 0.2),
        (parse_seconds, "1.5s", 1.5),
        (parse_seconds, "50us", 50e-6),
        (parse_seconds, "2min", 120.0),
        (parse_rate, "100mbit", 100e6),
        (parse_rate, "64kbit", 64e3),
        (parse_bytes, "64KiB", 65536),
        (parse_bytes, "1500B", 1500),
    ],
)
def test_units(parse, text, value):
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "text", "allowed"),
    [
        (
            parse_seconds,
            "0.9ns",
            "'0.9ns' is not a time: must be a whole number of nanoseconds, such as 200ms",
        ),
        (
            parse_seconds,
            "1.0001us",
            "'1.0001us' is not a time: must be a whole number of nanoseconds, such as 200ms",
        ),
        (
            parse_rate,
            "0.0005kbit",
            "'0.0005kbit' is not a rate: must be a whole number of bits, such as 100mbit",
        ),
        (
            parse_bytes,
            "1500.5B",
            "'1500.5B' is not a size: must be a whole number of bytes, such as 64KiB",
        ),
    ],
)
def test_units_that_are_too_fine(parse, text, allowed):
    with pytest.raises(SpecError) as refusal:
        parse(text)
    assert str(refusal.value) == allowed


@given(st.integers(0, 60 * 10**9), st.sampled_from(["delay", "jitter"]))
def test_times_of_whole_nanoseconds_survive_a_round_trip(nanoseconds, key):
    rule = parse_rule(
        f"delay delay=1ms {key}={nanoseconds}ns"
        if key == "jitter"
        else f"delay delay={nanoseconds}ns"
    )
    assert round(getattr(rule, key) * 1e9) == nanoseconds
    assert parse_rule(format_fault(rule)) == rule


@pytest.mark.parametrize(
    ("parse", "noun"), [(parse_seconds, "a time"), (parse_rate, "a rate"), (parse_bytes, "a size")]
)
@pytest.mark.parametrize(
    "text", ["", "5", "ms", "-1ms", "1 ms", "1parsec", "1e3s", "1_0ms", "\u0661ms"]
)
def test_units_that_are_refused(parse, noun, text):
    with pytest.raises(SpecError, match=f"is not {noun}: must be a number with one of the units"):
        parse(text)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True),
        st.from_regex(r"[a-z>*,-]{1,9}|[0-9]{1,6}", fullmatch=True),
    )
)
def test_words_split_into_their_parts(keys):
    text = " ".join(["act", *(f"{key}={value}" for key, value in keys.items())])
    action, found = split_words(text)
    assert action == "act"
    assert (
        {key: str(value) for key, value in found.items()}
        == {key: str(int(value)) if value.isdigit() else value for key, value in keys.items()}
        or "inf" in text
        or "nan" in text
    )


def test_links_become_masks_by_sender():
    table = compile_rules(
        [parse_rule("drop link=h1->h2,*->h4"), parse_rule("drop link=h3->*"), parse_rule("drop")],
        PLAN,
    )
    assert [rule.receivers[:5] for rule in table.rules] == [
        (0b1010, 0b1000, 0b1000, 0b1000, 0),
        (0, 0, 0b1111, 0, 0),
        (0b1111, 0b1111, 0b1111, 0b1111, 0),
    ]


def test_probabilities_become_integers():
    table = compile_rules(
        [parse_rule("drop p=1"), parse_rule("drop p=0"), parse_rule("burst enter=0.25 leave=0.5")],
        PLAN,
        seed=-1,
    )
    assert table.seed == 2**64 - 1
    assert [rule.p for rule in table.rules] == [CERTAIN, 0, CERTAIN]
    burst = table.rules[2]
    assert (burst.enter, burst.stay) == (CERTAIN // 4, CERTAIN // 2)
    assert burst.stationary == pytest.approx(CERTAIN / 3)


def test_equal_delays_share_a_table():
    texts = (
        "delay delay=1ms",
        "delay delay=2ms p=0.1",
        "delay delay=1ms p=0.5",
        "reorder within=3ms behind=2",
    )
    table = compile_rules([parse_rule(text) for text in texts], PLAN)
    assert [rule.quantiles for rule in table.rules] == [0, 1, 0, 0]
    assert len(table.quantiles) == 2
    assert (table.rules[3].action, table.rules[3].count, table.rules[3].within) == (
        Action.REORDER,
        2,
        3_000_000,
    )
    assert table.rules[0].ranges == (Range(),) * 5
    assert table.holds(1500)


def test_hosts_and_numbers_of_rules_are_checked():
    with pytest.raises(
        SpecError, match="host: 'h5' is not in this fabric; hosts are h1, h2, h3, h4"
    ):
        compile_rules([parse_rule("drop link=*->h5")], PLAN)
    with pytest.raises(SpecError, match="faults: 65 rules on packets: must be at most 64"):
        compile_rules([parse_rule("drop")] * 65, PLAN)


@pytest.mark.parametrize("words", ["delay delay=2ms", "reorder p=0.1", "duplicate"])
def test_frames_that_leave_no_room_for_a_header_cannot_wait(words):
    """Else they would be lost, all of them: `struct delay_header` precedes them."""
    large, room = replace(PLAN, mtu=65_424), replace(PLAN, mtu=65_423)
    with pytest.raises(SpecError, match=r"^fabric\.mtu = 65424: must be at most 65423 with "):
        compile_rules([parse_rule(words)], large)
    compile_rules([parse_rule(words)], room)
    compile_rules([parse_rule("drop p=0.5")], large)
