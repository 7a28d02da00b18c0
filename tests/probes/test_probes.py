"""The probes: their findings if a capability is available, and if it is not."""

import os
import resource
import socket
import sys
from pathlib import Path

import pytest

from testbed.core.errors import KernelError
from testbed.probes import PROBES, TIERS, Finding, Level, Probe, find, lacking, machine, wires
from testbed.probes.finding import LIMIT, Missing, command, summary
from testbed.probes.netns import Namespace


def refuse(error: Exception) -> str:
    raise error


def test_tiers_and_needs_name_probes() -> None:
    named = {name for tier in TIERS.values() for name in tier}
    named |= {name for probe in PROBES.values() for name in probe.needs}
    assert named <= PROBES.keys()


def test_needs_come_first() -> None:
    order = list(PROBES)
    assert all(
        order.index(need) < order.index(name)
        for name, probe in PROBES.items()
        for need in probe.needs
    )


def test_an_available_capability_is_found() -> None:
    assert Probe("x", lambda: "seen", "fix it").run({}) == Finding("x", Level.OK, "seen")


@pytest.mark.parametrize(
    ("error", "detail", "remedy"),
    [
        (Missing("refused"), "refused", "general"),
        (Missing("refused", "special"), "refused", "special"),
        (
            KernelError("load x: EPERM\nlog:\n\nunbounded loop"),
            "load x: EPERM ... unbounded loop",
            "general",
        ),
        (
            FileNotFoundError(2, "No such file", "/sys/x"),
            "[Errno 2] No such file: '/sys/x'",
            "general",
        ),
    ],
)
def test_a_missing_capability_is_found_missing(error: Exception, detail: str, remedy: str) -> None:
    needed = Probe("x", lambda: refuse(error), "general")
    assert needed.run({}) == Finding("x", Level.FAIL, detail, remedy)
    optional = Probe("x", lambda: refuse(error), "general", purpose="tables")
    assert optional.run({}) == Finding("x", Level.WARN, f"{detail} (for tables)", remedy)


def test_bug_is_no_finding() -> None:
    with pytest.raises(ZeroDivisionError):
        Probe("x", lambda: refuse(ZeroDivisionError()), "general").run({})


def test_a_probe_whose_needs_are_missing_is_not_tried() -> None:
    probe = Probe("x", lambda: pytest.fail("was tried"), "general", needs=("root", "clang"))
    earlier = {
        "root": Finding("root", Level.FAIL, "no", "sudo"),
        "clang": Finding("clang", Level.OK, "yes"),
    }
    assert probe.run(earlier) == Finding(
        "x", Level.FAIL, "not tried, because it needs root", "sudo", blocked=True
    )


def test_what_takes_too_long_is_not_missing() -> None:
    def sleep() -> str:
        return command(["sleep", "1000"])

    limit = LIMIT.set(0.01)
    try:
        slow = Probe("x", sleep, "general", purpose="tables").run({})
    finally:
        LIMIT.reset(limit)
    why, remedy = "sleep did not end within 0.01 s", "testbed doctor --timeout 600"
    assert slow == Finding("x", Level.SLOW, why, remedy)
    needs = Probe("y", lambda: pytest.fail("was tried"), "general", needs=("x", "root"))
    root = Finding("root", Level.OK, "yes")
    why = "not tried, because it needs x"
    assert needs.run({"x": slow, "root": root}) == Finding(
        "y", Level.SLOW, why, remedy, blocked=True
    )
    missing = Finding("root", Level.FAIL, "no", "sudo")
    assert needs.run({"x": slow, "root": missing}).level is Level.FAIL


def test_a_failed_commands_own_words_are_reported() -> None:
    with pytest.raises(Missing, match=r"^Error: no such thing$"):
        command([sys.executable, "-c", "import sys; sys.exit('Error: no such thing')"])
    with pytest.raises(Missing, match=r"^no-such-command is not installed$") as missing:
        command(["no-such-command"])
    assert missing.value.remedy == "make apt"


def test_summary_of_nothing() -> None:
    assert summary(" \n") == "no reason given"


@pytest.mark.skipif(os.geteuid() == 0, reason="runs as root")
def test_root_names_the_user() -> None:
    assert str(find("root")).startswith(f"root: effective user id is {os.geteuid()}, not 0; fix: ")
    assert [finding.name for finding in lacking("kernel")] == ["root"]


def test_cgroup_needs_a_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: "proc /proc proc rw 0 0\n")
    with pytest.raises(Missing, match="no file system of type cgroup2 is mounted"):
        machine.cgroup()


@pytest.mark.kernel
def test_qdisc_in_the_kernels_words() -> None:
    finding = Probe("qdisc", lambda: wires.qdisc("nonsense"), "none").run({})
    assert finding.level is Level.FAIL
    assert (
        "nknown" in finding.detail
    )  # "Error: Specified qdisc kind is unknown.", or iproute2's own text


@pytest.mark.kernel
def test_memlock_is_charged_or_not_by_the_kernel() -> None:
    """The probe's map is larger than the limit that it reports, unless there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert limit == resource.RLIM_INFINITY or limit < machine.MAP_BYTES
    assert f"a map of {machine.MAP_BYTES >> 20} MiB was made" in machine.memlock()


@pytest.mark.kernel
def test_namespace_is_entered_and_left() -> None:
    outside = os.stat("/proc/thread-self/ns/net").st_ino
    with Namespace() as namespace:
        assert os.stat("/proc/thread-self/ns/net").st_ino == outside
        namespace.add_veth("here", "there")
        with namespace.entered():
            assert os.stat("/proc/thread-self/ns/net").st_ino != outside
            assert {name for _, name in socket.if_nameindex()} >= {"lo", "here", "there"}
        with pytest.raises(Missing):
            namespace.add_veth("here", "there")
        assert os.stat("/proc/thread-self/ns/net").st_ino == outside
        assert "here" not in {name for _, name in socket.if_nameindex()}
