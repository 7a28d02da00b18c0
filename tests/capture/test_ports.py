"""What names of ports stand for."""

import pytest

from testbed.capture.ports import End, Port, parse_ports
from testbed.core.errors import SpecError
from testbed.plan import plan_fabric

PLAN = plan_fabric("ring", 3)


def test_a_host_has_one_port_and_sees_both_directions_of_its_link():
    assert parse_ports(PLAN, ["h2"]) == [
        Port("h2", End("h2", "eth0"), End("s2", "s2-eth1")),
    ]


def test_a_switch_stands_for_all_of_its_ports_each_once():
    found = parse_ports(PLAN, ["s1:1", "s1", "h1"])
    assert [port.name for port in found] == ["s1:1", "s1:2", "s1:3", "h1"]
    assert found[0] == Port("s1:1", End("s1", "s1-eth1"), End("h1", "eth0"))
    assert found[1].other.node in ("s2", "s3")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "node: is missing; give hosts or switches, such as h1 or s1:2"),
        (["h9"], "node: 'h9': must be one of h1, h2, h3, s1, s2, s3"),
        (["s1:7"], "port: 's1:7': must be one of s1:1, s1:2, s1:3"),
        (["h1:1"], "port: 'h1:1': must be one of h1"),
    ],
)
def test_unknown_names_are_refused(names, text):
    with pytest.raises(SpecError) as caught:
        parse_ports(PLAN, names)
    assert str(caught.value) == text
