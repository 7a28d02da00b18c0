"""GroupSpec: the values that it derives, and the ones that it refuses."""

import pickle
from types import SimpleNamespace

import pytest

from testbed.collectives.registry import check_names, open_backend
from testbed.comm.group import make_groups
from testbed.core.errors import SpecError

HOSTS = [
    SimpleNamespace(name=f"h{i + 1}", ip=f"10.0.0.{i + 1}", mac=f"02:00:00:00:00:{i:02x}")
    for i in range(33)
]


def test_ring_neighbours_and_pickling():
    specs = make_groups(HOSTS[:3], group_id=2, lanes="int16")
    assert [spec.right.name for spec in specs] == ["h2", "h3", "h1"]
    assert [spec.left.name for spec in specs] == ["h3", "h1", "h2"]
    assert [spec.me.rank for spec in specs] == [0, 1, 2]
    assert len({spec.cookie for spec in specs}) == 1
    assert pickle.loads(pickle.dumps(specs)) == specs


def test_every_group_that_forms_has_a_cookie_of_its_own():
    assert (
        len(
            {
                make_groups(HOSTS[:2], group_id=group)[0].cookie
                for group in (0, 1)
                for _ in range(32)
            }
        )
        == 64
    )


@pytest.mark.parametrize(
    ("hosts", "options", "text"),
    [
        ([], {}, "group: 0 members: must be 1..32"),
        (HOSTS, {}, "group: 33 members: must be 1..32"),
        (HOSTS[:1] * 2, {}, "group: two members share an IP address"),
        (
            HOSTS[:2],
            {"lanes": "int8"},
            'group: lanes = "int8": must be int16 or int32; did you mean int32?',
        ),
        (HOSTS[:2], {"mtu": 100}, "group: mtu = 100: must be 576 to 65535"),
        (HOSTS[:2], {"window": 0}, "group: window = 0: must be 1 to 256"),
        (HOSTS[:2], {"timeout": 0.0}, "group: timeout = 0.0: must be more than 0, at most 3600"),
        (
            HOSTS[:2],
            {"on_overflow": "wrap"},
            'group: on_overflow = "wrap": must be error or saturate',
        ),
        (HOSTS[:2], {"affinity": "cpu0"}, 'group: affinity = "cpu0": must be none, rank or one'),
        (HOSTS[:2], {"group_id": 4096}, "group: group_id = 4096: must be 0 to 4095"),
    ],
)
def test_invalid_groups_are_refused(hosts, options, text):
    with pytest.raises(SpecError) as caught:
        make_groups(hosts, **options)
    assert str(caught.value) == text


def test_unknown_backend():
    with pytest.raises(SpecError) as caught:
        open_backend("nccl", None, make_groups(HOSTS[:1])[0])
    assert (
        str(caught.value)
        == "backend 'nccl' does not exist: must be one of xdp-ring, tcp-ring, gloo, mpi, or"
        " module:Class"
    )
    with pytest.raises(SpecError, match="no backend given"):
        check_names([])
    assert check_names(["gloo", "mpi", "gloo"]) == ("gloo", "mpi")
