"""Telemetry of a real fabric: who pays for what, and what is counted."""

import json
import os
import subprocess
import sys

import pytest

from testbed.core.errors import KernelError
from testbed.telemetry.classify import UNCLASSIFIED
from testbed.telemetry.options import TelemetryOptions
from testbed.telemetry.profile import MACHINE
from testbed.telemetry.recorder import Recorder
from tests.support.telemetry import calls

OPTIONS = TelemetryOptions(enabled=True, rate=4001)  # a thousand samples of what is compared
SECONDS = 0.7  # of CPU time: it does not matter what else the machine does
DATAGRAM = calls.SIZE + 28  # with IP and UDP headers


def play(fabric, workers):
    receiver = fabric.plan.host("h2").ip
    every = {name: {"receiver": receiver, "seconds": SECONDS} for name in ("h1", "h3")}
    return workers.call_all(calls.play, every, timeout=100)


@pytest.mark.net
@pytest.mark.needs("BCC")
@pytest.mark.fabric(hosts=3, switch="bridge")
@pytest.mark.parametrize("gro", [True, False], ids=["napi", "backlog"])
def test_nobody_pays_for_another(fabric, workers, gro):
    """One host sends, one receives without a process that does anything, one computes.

    The receiver's and the switch's work is done in softirq, inside the sender's system calls or
    on top of the one that computes.
    """
    for host in fabric.hosts.values():
        host.namespace.offload(host.plan.ifname, gro=gro)
    switch = fabric.switches["s1"]
    for port in switch.plan.ports:
        switch.namespace.offload(switch.plan.ifname(port), gro=gro)
    workers["h2"].call(calls.listen)
    with Recorder(fabric, OPTIONS) as recorder, recorder.on("samples"):
        play(fabric, workers)
        profile = recorder.take()
    spent = {node: profile.cpu(node=node) for node in ("h1", "h2", "h3", "s1")}
    in_softirq = {
        node: sum(seconds for (softirq, _), seconds in classes.items() if softirq)
        for node, classes in spent.items()
    }
    total = {node: sum(classes.values()) for node, classes in spent.items()}
    assert total["h3"] == pytest.approx(SECONDS, rel=0.3)
    assert 0.1 * SECONDS < total["h1"] < 1.3 * SECONDS
    # The receiver runs nothing, so each second that it pays for is softirq.
    assert in_softirq["h2"] > 0.02
    assert total["h2"] - in_softirq["h2"] < 0.01
    assert in_softirq["s1"] > 0.02
    assert in_softirq["h3"] < 0.005 * total["h3"] + 0.003
    network = sum(seconds for (_, name), seconds in spent["h3"].items() if name in ("ip", "switch"))
    assert network < 0.01 * total["h3"]


@pytest.mark.net
@pytest.mark.needs("BCC")
@pytest.mark.fabric(hosts=3, switch="bridge")
def test_counts(fabric, workers):
    workers["h2"].call(calls.listen)
    with Recorder(fabric, OPTIONS) as recorder, recorder.on("counts"):
        sent = play(fabric, workers)["h1"]
        profile = recorder.take()
        again = recorder.take()
    found = {(each.node, each.kind, each.detail): each for each in profile.counts}
    assert found["h1", "syscall", "sendto"].number == pytest.approx(sent, abs=2)
    assert found["h1", "copied", "out"].total >= sent * calls.SIZE
    assert found["h1", "transmit", ""].number == pytest.approx(sent, rel=0.01, abs=5)
    received = found["h2", "receive", ""]
    dropped = found["h2", "drop", "socket_rcvbuff"].number
    assert received.number >= dropped > 0
    assert received.total / received.number == pytest.approx(DATAGRAM, rel=0.05)
    assert found["s1", "softirq", "net_rx"].total > 0
    assert found["h3", "off_cpu", "preempted"].number > 0
    assert not [each for each in again.counts if each.detail == "sendto"]


@pytest.mark.net
@pytest.mark.needs("BCC")
@pytest.mark.fabric(hosts=2)
def test_windows_select_samples(fabric, workers):
    with Recorder(fabric, OPTIONS) as recorder, recorder.on("samples"):
        play_h1 = {"h1": {"receiver": fabric.plan.host("h2").ip, "seconds": 0.3}}
        workers.call_all(calls.play, play_h1, timeout=100)
        everything = recorder.take({"*": ([0.0], [1e12])})
        workers.call_all(calls.play, play_h1, timeout=100)
        nothing = recorder.take({"*": ([], [])})
    assert sum(everything.cpu(inside=True).values()) == sum(everything.cpu().values()) > 0.1
    assert sum(nothing.cpu(inside=True).values()) == 0 < sum(nothing.cpu().values())


@pytest.mark.net
@pytest.mark.needs("BCC")
def test_a_bench_with_telemetry(tmp_path):
    path = tmp_path / "out.json"
    command = [sys.executable, "-c", "from testbed.cli import main; main()", "bench", "allreduce"]
    sizes = ["-b", "1M", "-e", "1M", "-n", "200", "--out", str(path)]
    done = subprocess.run(
        [*command, "--hosts", "3", "--backends", "xdp-ring,tcp-ring,gloo", "--telemetry", *sizes],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the kernel's network stack" in done.stdout
    for row in json.loads(path.read_text())["rows"]:
        telemetry = row["telemetry"]
        ours = [each for each in telemetry["samples"] if each[0] != MACHINE]
        samples = sum(number for *_, number in ours)
        unclassified = sum(number for _, _, name, _, number in ours if name == UNCLASSIFIED)
        assert samples > 100
        assert unclassified < 0.03 * samples
        names = {name for _, _, name, *_ in ours}
        if row["backend"] == "xdp-ring":
            assert "program.ring_link" in names
            assert "tcp" not in names
        else:
            assert {"tcp", "ip", "copy", "switch"} <= names
        kinds = {kind for _, kind, *_ in telemetry["counts"]}
        assert {"syscall", "off_cpu", "softirq"} <= kinds
        assert ("program" in kinds) == (row["backend"] == "xdp-ring")


@pytest.mark.net
@pytest.mark.needs("BCC")
def test_a_bench_of_exchanges_with_telemetry(tmp_path):
    path = tmp_path / "out.json"
    case = ["--receivers", "1", "-b", "4K", "-e", "4K", "--exchanges", "pinch"]
    command = [sys.executable, "-c", "from testbed.cli import main; main()", "bench", "broadcast"]
    done = subprocess.run(
        [*command, *case, "--telemetry", "-n", "5", "--out", str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the kernel's network stack" in done.stdout
    for row in json.loads(path.read_text())["rows"]:
        assert {kind for _, kind, *_ in row["telemetry"]["counts"]} >= {"syscall", "softirq"}


@pytest.mark.net
@pytest.mark.fabric(hosts=2)
def test_where_bcc_cannot_compile_the_error_is_one_line(fabric, monkeypatch, tmp_path):
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(KernelError) as caught, Recorder(fabric, OPTIONS):
        pass
    assert str(caught.value).startswith("telemetry: BCC cannot compile telemetry.bcc.c: ")
    assert str(caught.value).endswith("kconfig.h' file not found")
    assert "\n" not in str(caught.value)
    assert os.environ["BCC_KERNEL_SOURCE"] == str(tmp_path)
