"""A small part of what hosts do, for kernels in virtual machines: sums are exact while frames are
lost, and netem's losses are as frequent as our own engine's.
"""

import re

import pytest

from testbed.datapath import set_datapath
from testbed.fabric import Fabric
from testbed.faults.injector import Injector
from testbed.faults.netem import Netem
from testbed.plan import plan_fabric
from testbed.worker import Workers
from tests.support.collectives import ring_calls
from tests.support.rules import parse_rule

pytestmark = [pytest.mark.net, pytest.mark.timeout(300)]

FRAMES = 2000
SHARE = 0.1
SIGMAS = 5


@pytest.mark.parametrize("bits", [16, 32])
def test_sums_are_exact_under_loss(bits):
    plan = plan_fabric(hosts=2, switch="xdp")
    with Fabric(plan) as fabric, Workers(fabric, modules=[ring_calls.__name__]) as workers:
        set_datapath(fabric, "xdp")
        with Injector(fabric, [parse_rule("drop p=0.05")], seed=1) as injector:
            ring_calls.connect(
                workers, plan.hosts, lanes=f"int{bits}", capacity=1 << 18, timeout=60
            )
            sums = ring_calls.all_reduce(workers, plan.hosts, [100_003])
            ring_calls.check(sums, [100_003], bits)
            assert sum(injector.counters().values())


@pytest.mark.needs("qdisc netem")
@pytest.mark.parametrize("backend", ["engine", "netem"])
def test_losses_are_binomial(backend):
    rule = parse_rule(f"drop link=*->h2 p={SHARE}")
    with Fabric(plan_fabric(hosts=2)) as fabric, Workers(fabric):
        set_datapath(fabric, "sockets")
        faults = Netem(fabric, [rule]) if backend == "netem" else Injector(fabric, [rule], seed=1)
        with faults:
            said = fabric.run("h1", ["ping", "-q", "-f", "-c", f"{FRAMES}", "h2"]).stdout
    received = int(re.search(r"(\d+) received", said).group(1))
    expected, deviation = FRAMES * (1 - SHARE), (FRAMES * SHARE * (1 - SHARE)) ** 0.5
    assert abs(received - expected) < SIGMAS * deviation
