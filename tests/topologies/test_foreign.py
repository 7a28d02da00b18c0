"""Mininet Topo classes of other packages, with arguments, other names, and what is refused."""

import subprocess

import pytest

from testbed.core.errors import SpecError
from testbed.faults.spec import parse_fault
from testbed.plan import FabricOptions, plan_fabric
from testbed.scenario import parse_scenario
from tests.support.command import run_testbed

HERE = "tests.support.topologies"


def test_arguments_as_in_mn() -> None:
    plan = plan_fabric("mininet.topolib:TreeTopo,depth=2,fanout=3")
    assert (len(plan.hosts), len(plan.switches)) == (9, 4)
    assert plan_fabric("mininet.topo:SingleSwitchTopo,3").host("h3").port == 3
    assert FabricOptions(topology="mininet.topo:SingleSwitchTopo,7").hosts == 7
    assert FabricOptions(topology="mininet.topo:SingleSwitchTopo,7", hosts=7).hosts == 7


def test_other_names() -> None:
    plan = plan_fabric(f"{HERE}:Named")
    assert [host.name for host in plan.hosts] == ["client", "server.a", "server.b"]
    (switch,) = plan.switches
    assert switch.ifname(1) == "eth1"  # an interface's name has 15 characters at most
    assert [link.a for link in plan.links] == ["client", "server.a", "server.b"]
    scenario = parse_scenario(
        {
            "scenario": {"name": "s"},
            "fabric": {"topology": f"{HERE}:Named"},
            "dataset": {"name": "synthetic"},
            "faults": ["drop p=0.1 link=client->server.a", "pause host=server.b at=0s for=1s"],
        }
    )
    assert scenario.fabric.hosts == 3
    with pytest.raises(SpecError, match=r"h1 is not a host .*: must be client, server\.a, server"):
        parse_scenario(
            {
                **scenario.model_dump(mode="json", exclude={"programs"}),
                "faults": ["pause host=h1 at=0s for=1s"],
            }
        )


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        ("star,4", 'topology = "star,4": star takes no arguments but hosts and k'),
        ("mininet.topolib:TreeTopo,depth=2,fanout=6", "has 36 hosts: must be 1 to 32"),
        (f"{HERE}:Failing,3", "Failing: ZeroDivisionError: "),
        (f"{HERE}:Odd,two links", "host h1 has 2 links: must have one"),
        (f"{HERE}:Odd,apart", "host h2 is not connected to h1"),
        (f"{HERE}:Odd,direct", "link h1-h2: must join a host and a switch, or two switches"),
        (f"{HERE}:Odd,name", "node 'h 1': its name must be at most 32 letters"),
        (f"{HERE}:Odd,address", "host h1 has ip: options of hosts are not honoured here"),
        (f"{HERE}:Odd,trunk", "link s1-s2 has bw=10: a Topo's links have no options here, and"),
    ],
)
def test_what_a_fabric_cannot_have_is_refused(topology: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan_fabric(topology)
    assert text in str(caught.value)


def test_a_number_of_hosts_that_the_topology_does_not_have() -> None:
    with pytest.raises(SpecError, match="hosts = 5: must be 3, as topology"):
        plan_fabric("mininet.topo:SingleSwitchTopo,3", hosts=5)


def test_words_of_tclink_are_refused_with_the_faults_that_they_mean() -> None:
    """The faults in the text are ones that the engine takes."""
    with pytest.raises(SpecError) as caught:
        plan_fabric(f"{HERE}:Odd,shaped")
    head, _, faults = str(caught.value).partition("as faults they are: ")
    assert "link h1-s1 has bw=10, delay=5ms, loss=2, max_queue_size=100" in head
    texts = faults.split("; ")
    assert len([parse_fault(text) for text in texts]) == 5
    assert texts[0] == "limit host=h1 rate=10mbit queue=151400B"


def type_at_the_prompt(topology: str, typed: str) -> subprocess.CompletedProcess[str]:
    return run_testbed("up", "--topology", topology, "--cli", input=typed)


@pytest.mark.net
def test_names_without_numbers_on_a_fabric() -> None:
    done = type_at_the_prompt(f"{HERE}:Named", "pingall\nserver.a hostname -I\nexit\n")
    assert done.returncode == 0, done.stderr
    assert "*** Results: 0% dropped (6/6 received)\n" in done.stdout
    assert "10.0.0.2" in done.stdout.partition("Results")[2]


@pytest.mark.net
def test_mininets_prompt() -> None:
    typed = "pingall\nh1s2 hostname -I\nnothing\nlink s1 s2 down\nexit\n"
    done = type_at_the_prompt("mininet.topo:LinearTopo,k=2,n=2", typed)
    assert done.returncode == 0, done.stderr
    assert "h2s1 -> h1s1 h1s2 h2s2 \n" in done.stdout
    assert "*** Results: 0% dropped (12/12 received)\n" in done.stdout
    assert "10.0.0." in done.stdout.partition("Results")[2]
    assert "'nothing' is no command and no node: nodes are h1s1, " in done.stdout
    assert "*** link is not available here\n" in done.stdout
