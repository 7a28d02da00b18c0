"""What `testbed top` shows, of invented readings and of a run."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.top import COLUMNS, fitting, table
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


def drawn(width: int, measured: bool = True) -> list[str]:
    """The lines of a table of two nodes, one of them idle, on a terminal."""
    after = Counters(sent_bytes=10**9, sent=10**6, received_bytes=10**9, segments=10**6)
    found = [rates("h1", Counters(), after, 1.0, *([PROFILE] if measured else []))]
    found += [rates("switch12", Counters(), Counters(), 1.0)]
    console = Console(width=width, file=io.StringIO())
    console.print(table("lab", found, width, measured))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", range(60, 261, 10))
def test_a_table_fits_its_terminal(width: int):
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if line.strip().startswith(("h1", "switch12"))]) == 2
    header = next(line for line in lines if "node" in line)
    titles = [column.title for column in fitting(width)]
    assert all(title in header for title in titles)  # none is folded or cut
    numbers = next(line for line in lines if line.strip().startswith("h1"))
    assert numbers.count("8000.0") == 2


def test_80_columns_are_enough_for_cpu_time_and_rates():
    titles = [column.title for column in fitting(80)]
    assert {"node", "CPU %", "network", "programs", "rx Mb/s", "tx Mb/s", "again/s"} <= set(titles)
    assert [column.title for column in fitting(300)] == [column.title for column in COLUMNS]
    assert "a wider terminal, or --json, also has: " in " ".join(drawn(80))
    assert "wider" not in " ".join(drawn(300))


def test_a_node_that_does_nothing_is_idle_and_not_unknown():
    idle = next(line for line in drawn(80) if "switch12" in line)
    assert idle.split()[:2] == ["switch12", "0.0"]
    unknown = next(line for line in drawn(80, measured=False) if "switch12" in line)
    assert unknown.split()[:2] == ["switch12", "-"]


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
