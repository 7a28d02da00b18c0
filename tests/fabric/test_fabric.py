"""A fabric that is up: addresses, links, forwarding by both kinds of switch, offloads."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from testbed.core.errors import FabricError, SpecError
from testbed.datapath import set_datapath
from testbed.datapath import switch as datapath
from testbed.fabric import Fabric
from testbed.plan import plan_fabric
from testbed.worker import Workers
from tests.support.fabric import calls
from tests.support.tiers import broad

pytestmark = pytest.mark.net

FABRICS = [
    ("star", 3, "bridge"),
    ("star", 3, "xdp"),
    ("ring", 4, "bridge"),
    ("ring", 4, "xdp"),
    ("leaf-spine", 4, "bridge"),
    ("leaf-spine", 4, "xdp"),
    ("fat-tree", 4, "bridge"),
    ("fat-tree", 4, "xdp"),
]


@pytest.fixture(scope="module")
def star() -> Iterator[Fabric]:
    with Fabric(plan_fabric("star", 3, "bridge", mtu=2000, queues=2)) as fabric:
        yield fabric


def ip(fabric: Fabric, node: str, *arguments: str) -> list[dict[str, Any]]:
    answer = fabric.run(node, ["ip", "-json", "-details", *arguments], check=True)
    return list(json.loads(answer.stdout))


def ping_all(fabric: Fabric) -> None:
    for source, destination in permutations(fabric.plan.hosts, 2):
        answer = fabric.run(source.name, ["ping", "-c", "1", "-W", "2", destination.name])
        assert answer.returncode == 0, (
            f"{source.name} -> {destination.name}: {answer.stdout}{answer.stderr}"
        )


@pytest.mark.parametrize(("topology", "hosts", "switch"), broad(FABRICS, 3))
def test_all_hosts_reach_all(topology: str, hosts: int, switch: str) -> None:
    with Fabric(plan_fabric(topology, hosts, switch)) as fabric, Workers(fabric) as workers:
        ping_all(fabric)
        set_datapath(fabric, "xdp")
        ping_all(fabric)
        counted = workers.call_all(datapath.counters, list(fabric.switches))
        if switch == "xdp":
            # On the two shortest paths of each ping, the program forwards at every switch, and the
            # bridge at none.
            assert all(counters[0] == (0, 0) for counters in counted.values())
            delivered = {
                host.name: counted[host.switch][host.port][0] for host in fabric.plan.hosts
            }
            assert delivered == {host.name: 2 * (hosts - 1) for host in fabric.plan.hosts}
        else:
            redirected = [
                frames for ports in counted.values() for port, (frames, _) in ports.items() if port
            ]
            assert not any(redirected)
        # Frames that XDP redirects also arrive: across the switch, without a program at the far
        # host.
        first, last = fabric.plan.hosts[0], fabric.plan.hosts[-1]
        workers[first.name].call(calls.redirect_kicks)
        workers[last.name].call(calls.listen)
        workers[first.name].call(calls.ring, mac=last.mac, frames=50)
        arrived = workers[last.name].call(calls.receive, frames=50, timeout=10.0)
        assert sorted(arrived) == list(range(50))
        set_datapath(fabric, "sockets")
        ping_all(fabric)


def test_interfaces_are_as_planned(star: Fabric) -> None:
    for host in star.plan.hosts:
        links = {link["ifname"]: link for link in ip(star, host.name, "link")}
        assert links.keys() == {"lo", "eth0", "doorbell0", "doorbell1"}
        assert links["eth0"]["address"] == host.mac
        for name in ("eth0", "doorbell0", "doorbell1"):
            link = links[name]
            assert (link["mtu"], link["num_tx_queues"], link["num_rx_queues"]) == (2000, 2, 2)
            assert {"UP", "LOWER_UP"} <= set(link["flags"])
            assert ("NOARP" in link["flags"]) == (name != "eth0")
        addresses = {
            (link["ifname"], address["local"], address["prefixlen"])
            for link in ip(star, host.name, "address")
            for address in link["addr_info"]
        }
        assert addresses == {("lo", "127.0.0.1", 8), ("eth0", host.ip, 16)}  # no IPv6 addresses
        neighbours = {
            (entry["dst"], entry["lladdr"], *entry["state"])
            for entry in ip(star, host.name, "neighbour")
        }
        assert neighbours == {
            (peer.ip, peer.mac, "PERMANENT") for peer in star.plan.hosts if peer != host
        }
    ports = {link["ifname"]: link for link in ip(star, "s1", "link")}
    for number in star.plan.switch("s1").ports:
        port = ports[f"s1-eth{number}"]
        assert (port["mtu"], port["num_tx_queues"], port["num_rx_queues"]) == (2000, 2, 2)
        assert port["master"] == "br0"


def test_the_bridge_neither_learns_nor_floods(star: Fabric) -> None:
    plan = star.plan.switch("s1")
    answer = star.run("s1", ["bridge", "-json", "-details", "link"], check=True)
    for port in json.loads(answer.stdout):
        for setting in ("learning", "flood", "mcast_flood", "bcast_flood"):
            assert port[setting] is False
    answer = star.run("s1", ["bridge", "-json", "fdb"], check=True)
    static = {
        e["mac"]: e["ifname"] for e in json.loads(answer.stdout) if e.get("state") == "static"
    }
    assert static == {mac: plan.ifname(port) for mac, port in plan.forwarding.items()}


def test_idle_links_are_silent(star: Fabric) -> None:
    def received() -> list[int]:
        hosts = [
            ip(star, host.name, "-stats", "link", "show", "eth0")[0] for host in star.plan.hosts
        ]
        return [host["stats64"]["rx"]["packets"] for host in hosts]

    before = received()
    # The switch drops broadcast and unknown unicast, so no host answers.
    star.run("h1", ["ping", "-c", "1", "-W", "0.2", "-b", "10.0.255.255"])
    assert received() == before


def features(fabric: Fabric, node: str, ifname: str) -> dict[str, bool]:
    answer = fabric.run(node, ["ethtool", "-k", ifname], check=True)
    found = re.findall(r"^\s*([\w-]+): (on|off)", answer.stdout, re.MULTILINE)
    return {name: value == "on" for name, value in found}


OFFLOADS = (
    "tx-checksumming",
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
)


@pytest.mark.parametrize("offload", broad([True, False]))
def test_offloads_are_as_planned_again_after_xdp(offload: bool) -> None:
    with Fabric(plan_fabric("star", 2, "xdp", offload=offload)) as fabric, Workers(fabric):
        ends = [("h1", "eth0"), ("h2", "eth0"), ("s1", "s1-eth1"), ("s1", "s1-eth2")]
        planned = dict.fromkeys(OFFLOADS, offload)
        for end in ends:
            assert planned.items() <= features(fabric, *end).items()
        set_datapath(fabric, "xdp")
        for end in ends:
            assert features(fabric, *end)["generic-receive-offload"]
        assert not features(fabric, "h1", "eth0")["tx-checksumming"]
        # TCP works across redirects, although checksums are normally offloaded to the device.
        server = fabric.popen(
            "h2", ["iperf3", "--server", "--one-off"], track="iperf3", stdout=-3, stderr=-3
        )
        command = ["iperf3", "--client", "h2", "--bytes", "1M", "--connect-timeout", "1000"]
        while fabric.run("h1", command).returncode:
            assert server.poll() is None
        assert server.wait(10) == 0
        set_datapath(fabric, "sockets")
        for end in ends:
            assert planned.items() <= features(fabric, *end).items()
        for port in ip(fabric, "s1", "link"):
            assert "xdp" not in port


def test_datapath_errors() -> None:
    with Fabric(plan_fabric("star", 1, "xdp")) as fabric:
        with pytest.raises(FabricError, match=r"programs are owned by the .*workers"):
            set_datapath(fabric, "xdp")
        with pytest.raises(
            SpecError, match="datapath: 'dpdk' is unknown: must be one of xdp, sockets"
        ):
            set_datapath(fabric, "dpdk")  # type: ignore[arg-type]


def test_a_started_process_is_inside(
    star: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if mnexec is slow: otherwise a fault of the host would miss a process that is not there
    yet.
    """
    slow = tmp_path / "mnexec"
    slow.write_text(f'#!/bin/sh\nsleep 0.2\nexec {shutil.which("mnexec")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with star.popen("h1", ["sleep", "1000"], track="sleeper") as process:
        try:
            assert os.path.samefile(
                f"/proc/{process.pid}/ns/net", f"/proc/{star.hosts['h1'].pid}/ns/net"
            )
        finally:
            process.kill()


def test_a_process_that_ends_before_it_is_inside(
    star: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnexec").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "mnexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with star.popen("h1", ["true"], track="nothing") as process:
        assert process.wait(10) == 3


def test_a_process_that_never_gets_inside(
    star: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnexec").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "mnexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("testbed.fabric.core.START_TIMEOUT", 0.1)
    with pytest.raises(
        FabricError, match=r"^sleeper: is not inside h1 0\.1 s after it was started$"
    ):
        star.popen("h1", ["true"], track="sleeper")
    assert "sleeper" not in [entry.name for entry in star.state.read().processes if entry.alive]


def test_mininets_own_interface_works(star: Fabric) -> None:
    assert "1 received" in star.net.get("h1").cmd("ping -c 1", star.hosts["h2"].plan.ip)
    assert star.net.get("h1").pexec("hostname")[2] == 0
