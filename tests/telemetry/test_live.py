"""What `testbed top` shows, of invented readings and of a run."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.top import table
from testbed.fabric.runs import find_run
from testbed.telemetry.live import Counters, Live, interfaces_of, rates
from testbed.telemetry.profile import Count, Profile, Samples
from tests.support.telemetry import calls

DEVICES = "\n".join(
    [
        "Inter-|   Receive  |  Transmit",
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop",
        "    lo: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9",
        "s1-eth1: 100 2 0 3 0 0 0 0 400 4 0 1 0 0 0 0",
        "s1-eth2:1000 20 0 0 0 0 0 0 4000 40 0 0 0 0 0 0",
    ]
)
SNMP = (
    "Ip: Forwarding\nIp: 1\nTcp: InSegs OutSegs RetransSegs\nTcp: 5 7 2\nUdp: InDatagrams\nUdp: 3\n"
)
PROFILE = Profile(
    seconds=0.5,
    inside=0.5,
    cpus=2,
    rate=100,
    lost=0,
    samples=(
        Samples("h1", False, "tcp", 10, 0),
        Samples("h1", True, "program.ring_link", 25, 0),
        Samples("h2", False, "model", 50, 0),
    ),
    counts=(
        Count("h1", "drop", "no_socket", 3, 0.0),
        Count("h1", "program", "ring_link", 100, 0.1),
        Count("h1", "off_cpu", "poll", 7, 1.0),
    ),
)


def test_counters_are_those_of_the_nodes_links():
    found = Counters.of(DEVICES, SNMP, ["s1-eth1", "s1-eth2"])
    assert found == Counters(1100, 22, 4400, 44, 4, 7, 2)
    assert Counters.of(DEVICES, "", ["eth0"]) == Counters()


def test_rates():
    found = rates("h1", Counters(sent_bytes=100), Counters(sent_bytes=350, sent=10), 2.0, PROFILE)
    assert (found.sent, found.sent_bits) == (5.0, 1000.0)
    assert found.cpu == {"program.ring_link": 0.5, "tcp": 0.2}
    assert found.parts == {"program": 0.5, "network": 0.2}
    assert found.softirq == 0.5
    assert found.drops == {"no_socket": 6.0}
    assert found.programs == {"ring_link": 200.0}
    assert found.waits == {"poll": 2.0}
    assert json.loads(json.dumps(found.to_dict()))["cpu"]["tcp"] == 0.2


def test_a_table_has_a_line_for_each_node_even_without_samples():
    found = [rates(name, Counters(), Counters(), 1.0) for name in ("h1", "h2")]
    assert table("lab", found).row_count == 2


@pytest.mark.parametrize("interval", ["0", "61"])
def test_an_interval_out_of_range_is_refused(interval):
    result = CliRunner().invoke(app, ["top", "--interval", interval])
    assert str(result.exception) == f"--interval: {interval}: must be 0.2 to 60 seconds"


@pytest.mark.net
@pytest.mark.needs("BCC")
@pytest.mark.fabric(hosts=2, switch="bridge")
@pytest.mark.alone
def test_a_run_is_watched_from_another_process(fabric, workers):
    assert set(interfaces_of(fabric.plan)) == set(fabric.nodes)
    workers["h2"].call(calls.listen)
    command = [sys.executable, "-c", "from testbed.cli import main; main()", "top", fabric.run_id]
    command += ["--json", "--interval", "0.5"]
    seen = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            receiver = fabric.plan.host("h2").ip
            while seen < {"network", "sent", "socket_rcvbuff"}:
                play = {"h1": {"receiver": receiver, "seconds": 0.5}}
                workers.call_all(calls.play, play, timeout=100)
                line = json.loads(watching.stdout.readline())
                nodes = {each["node"]: each for each in line["nodes"]}
                assert set(nodes) == {*fabric.nodes, "machine"}
                seen |= set(nodes["h1"]["parts"]) & {"network"}
                seen |= {"sent"} if nodes["h1"]["sent_bits"] else set()
                seen |= set(nodes["h2"]["drops"]) & {"socket_rcvbuff"}
        finally:
            watching.terminate()


@pytest.mark.net
@pytest.mark.fabric(hosts=1)
def test_without_headers_the_rates_remain(fabric, monkeypatch, tmp_path):
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with Live(find_run(fabric.run_id)) as live:
        assert live.missing
        (h1, s1) = live.look(0.01)
    assert (h1.node, s1.node) == ("h1", "s1")
    assert not h1.cpu
