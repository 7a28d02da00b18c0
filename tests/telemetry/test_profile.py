"""What a profile adds up to."""

import pytest

from testbed.telemetry.profile import MACHINE, Count, Profile, Samples, combined

PROFILE = Profile(
    seconds=10.0,
    inside=6.0,
    cpus=2,
    rate=100,
    lost=0,
    samples=(
        Samples("h1", False, "tcp", 300, 200),
        Samples("h1", True, "tcp", 100, 100),
        Samples("h2", False, "model", 200, 0),
        Samples(MACHINE, False, "python", 400, 100),
    ),
    counts=(
        Count("h1", "off_cpu", "poll", 7, 1.5),
        Count("h1", "drop", "no_socket", 3, 0),
        Count("h2", "copied", "in", 9, 4096.0),
    ),
)


def test_cpu_time_is_that_of_the_nodes_and_softirq_is_apart():
    assert PROFILE.cpu() == {(False, "tcp"): 3.0, (True, "tcp"): 1.0, (False, "model"): 2.0}
    assert PROFILE.cpu(inside=True) == {
        (False, "tcp"): 2.0,
        (True, "tcp"): 1.0,
        (False, "model"): 0.0,
    }
    assert PROFILE.cpu(node="h2") == {(False, "model"): 2.0}


def test_idle_is_what_remains_of_all_cpus():
    assert PROFILE.idle == pytest.approx(10.0)


def test_measures():
    found = {
        (each.node, each.metric): (each.value, each.unit)
        for mode in ("samples", "counts")
        for each in PROFILE.measures(mode)
    }
    assert found["h1", "cpu.softirq.tcp"] == (1.0, "s")
    assert found["h1", "communication_cpu.tcp"] == (2.0, "s")
    assert found["h1", "off_cpu.poll"] == (1.5, "s")
    assert found["h1", "context_switches.poll"] == (7, "switches")
    assert found["h1", "drops.no_socket"] == (3, "packets")
    assert found["h2", "copied_bytes.in"] == (4096.0, "B")
    assert found[MACHINE, "cpu.idle"] == (10.0, "s")


def test_plain_values_give_the_same_profile():
    assert Profile.of(PROFILE.to_dict()) == PROFILE


def test_profiles_add_up():
    double = combined([PROFILE, PROFILE])
    assert double
    assert double.seconds == 20.0
    assert double.cpu() == {key: 2 * value for key, value in PROFILE.cpu().items()}
    assert Count("h1", "off_cpu", "poll", 14, 3.0) in double.counts
    assert combined([]) is None
