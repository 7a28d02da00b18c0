"""The plugin: fixtures are isolated, failures say how to repeat them, and a fabric that is kept can
be entered and removed.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import SpecError
from testbed.plan import plan_fabric
from testbed.testing import WrongSum, assert_exact, assert_faults_fired
from testbed.testing.lease import Fabrics
from tests.support.command import run_testbed
from tests.support.testing.helpers import run_pytest

pytestmark = [pytest.mark.net, pytest.mark.fabric(hosts=2)]

WRONG = """
import numpy as np
import pytest
from testbed.testing import assert_exact

@pytest.mark.fabric(hosts=2)
@pytest.mark.group(lanes="int32")
def test_wrong(group, faults):
    inputs = [np.ones(5000, np.float32)] * 2
    with faults("drop p=0.3"):
        results = group.all_reduce(inputs)
    results[1][4000] += 1
    assert_exact(results, inputs, "int32")
"""


class Left:
    """Something."""


def leave(context, place):
    """Keep an object, and open what says in a file that it was closed."""
    context.keep(Left())
    context.resources.callback(Path(place).write_text, "closed")


def keeps(context):
    return context.find(Left) is not None


def test_workers_forget_and_a_fabric_is_used_again_if_nothing_is_left(tmp_path):
    lent = plan_fabric(hosts=2), "sockets"
    with Fabrics() as fabrics:
        with fabrics.lease(*lent) as lease:
            first, workers = lease.fabric, lease.workers
            places = {name: {"place": str(tmp_path / name)} for name in ("h1", "h2")}
            workers.call_all(leave, places)
            assert all(workers.call_all(keeps, list(places)).values())
        assert [(tmp_path / name).read_text() for name in places] == ["closed", "closed"]
        with fabrics.lease(*lent) as lease:  # in order, and so used again
            assert lease.fabric is first
            assert not any(lease.workers.call_all(keeps, list(places)).values())
            left = ["ip", "link", "add", "extra", "type", "veth", "peer", "name", "other"]
            lease.fabric.run("h2", left)
        with fabrics.lease(*lent) as lease:
            assert lease.fabric is not first


def test_what_is_left_is_told(fabric, assert_nothing_left):
    assert_nothing_left()
    fabric.run("h2", ["ip", "link", "add", "extra", "type", "veth", "peer", "name", "other"])
    with pytest.raises(AssertionError, match="left: h2: extra down, noop, XDP None"):
        assert_nothing_left()


@pytest.mark.fabric(switch="bridge", topology="ring", mtu=1400)
def test_markers_add_up(fabric):
    plan = fabric.plan
    assert (len(plan.hosts), plan.switch_kind, plan.topology, plan.mtu) == (
        2,
        "bridge",
        "ring",
        1400,
    )
    assert fabric.datapath == "sockets"


@pytest.mark.group(backend="tcp-ring")
def test_groups_of_other_backends(fabric, group, faults):
    assert fabric.datapath == "sockets"
    with faults("drop p=0.05", "limit hosts=h1 rate=50mbit queue=30KiB") as injected:
        for result in group.all_reduce([np.ones(100_000, np.float32)] * 2):
            np.testing.assert_array_equal(result, np.full(100_000, 2, np.float32))
    assert_faults_fired(injected, "drop")
    assert injected.check_replay() == injected.fired()["drop"]
    # Offloads are off meanwhile: frames are those that a real wire would carry.
    assert injected.injector.log()["length"].max() <= 14 + fabric.plan.mtu
    with pytest.raises(
        AssertionError,
        match=r"drop fired \d+ times, at least 1000000 expected:\ndrop p=0.05: h[12]->h[12] ",
    ):
        assert_faults_fired(injected, "drop", at_least=1_000_000)
    with pytest.raises(
        AssertionError, match="no fault here has the action 'reorder'; there are drop, limit"
    ):
        assert_faults_fired(injected, "reorder")
    assert len(injected.summary()) == 2


@pytest.mark.fabric(hosts=3, switch="bridge")
@pytest.mark.group(backend="tcp-ring")
def test_a_switch_that_floods(group, faults, assert_nothing_left):
    inputs = [np.ones(100_000, np.float32)] * 3
    with faults("drop p=0.01", "flood switch=s1") as injected:
        for result in group.all_reduce(inputs):
            np.testing.assert_array_equal(result, np.full(100_000, 3, np.float32))
    assert injected.fired()["flood"] == 1
    assert "flood switch=s1: happened" in injected.summary()
    assert_nothing_left()


def test_faults_are_checked_before_they_are_in_force(faults):
    with pytest.raises(SpecError, match="action 'dorp' is unknown"):
        faults("dorp p=0.1")
    with pytest.raises(SpecError, match="'h9' is not in this fabric"):
        faults("drop link=h1->h9")
    with pytest.raises(SpecError, match="host: 'h9' is not in this fabric"):
        faults("pause host=h9")
    with pytest.raises(SpecError, match="switch: 's2' is not in this fabric; switches are s1"):
        faults("flood switch=s2")


@pytest.mark.deep
def test_a_wrong_sum_is_repeated_by_its_seed(tmp_path):
    done = run_pytest(tmp_path, WRONG, "--fault-seed", "99", "--fault-trace")
    assert done.returncode == 1
    text = done.stdout
    assert "WrongSum: rank 1 has np.float32(3.0) at index 4000, the sum is np.float32(2.0)" in text
    assert "wrong are 1 of rank 1, of 5000 elements each" in text
    assert "seed: 99\nreplay: pytest test_own.py::test_wrong --fault-seed 99\ndrop p=0.3: h" in text
    assert re.search(
        r"records of chunk 11, the first wrong one, and its neighbours \(\d+ of \d+\):\n +ms link ",
        text,
    )
    assert re.search(r"\n +\d+\.\d+ h1->h2 +re\w+ +0 +3 +11 +\d +0  (passed|drop)\n", text)


@pytest.mark.parametrize("seed", ["nan", "-1", "1e309", str(1 << 64)])
def test_a_seed_is_a_whole_number(tmp_path, seed):
    done = run_pytest(tmp_path, WRONG, f"--fault-seed={seed}")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    allowed = "a whole number from 0 to 18446744073709551615"
    assert f"argument --fault-seed: '{seed}': must be {allowed}" in done.stderr


def test_the_fabric_of_a_failure_is_kept(tmp_path):
    done = run_pytest(tmp_path, WRONG, "--keep")
    assert done.returncode == 1, done.stderr
    run = re.search(r"run (\w+) stays up, held by process \d+:\n", done.stdout)[1]
    try:
        status = run_testbed("status", "--json")
        assert [entry["state"] for entry in json.loads(status.stdout) if entry["run"] == run] == [
            "up"
        ]
        inside = ["exec", "--run", run, "h1", "--", "ping", "-c", "1", "h2"]
        assert run_testbed(*inside).returncode == 0
    finally:
        assert run_testbed("down", run).returncode == 0


@pytest.mark.deep
def test_without_a_failure_nothing_is_kept(tmp_path):
    done = run_pytest(tmp_path, WRONG.replace("+= 1", "+= 0"), "--keep")
    assert done.returncode == 0, done.stdout
    assert "stays up" not in done.stdout


def test_markers_are_checked(tmp_path):
    source = "import pytest\n@pytest.mark.fabric({})\ndef test_it(fabric): pass\n"
    done = run_pytest(tmp_path, source.format("host=3"))
    assert (
        "marker fabric: host is unknown: must be one of hosts, topology, k, switch," in done.stdout
    )
    assert (
        "marker fabric: (3,): must be keywords only"
        in run_pytest(tmp_path, source.format("3")).stdout
    )


def test_exact_means_bit_for_bit():
    inputs = [np.array([1.0, 2.0, 3.0], np.float32)] * 2
    good = np.array([2.0, 4.0, 6.0], np.float32)
    wrong = np.array([2.0, 4.0, np.nextafter(np.float32(6.0), np.float32(9.0))], np.float32)
    assert_exact([good, good], inputs, "int32")
    with pytest.raises(
        WrongSum, match=r"rank 1 has .* at index 2, the sum is .*; wrong are 1 of rank 1, of 3 "
    ) as caught:
        assert_exact([good, wrong], inputs, "int32")
    error = caught.value
    assert (error.element, error.size, error.lanes.bytes) == (2, 3, 4)
    with pytest.raises(AssertionError, match="1 results of 2 inputs"):
        assert_exact([good], inputs, "int32")
