"""The programs on a host's devices: each group's frames go to that group's programs, and all others
to the stack.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import ARP, Ether

from testbed.core.errors import KernelError
from testbed.kernel import XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, BpfObject
from testbed.kernel.abi import constant
from testbed.protocol.ring.memory import WrKind
from testbed.protocol.wire import FRAME
from tests.support.kernel.packets import SEQ, kick, loaded, prepare, reduce
from tests.support.protocol.network import GROUP

pytestmark = pytest.mark.kernel

TABLES = {"groups": "ring_link", "doorbells": "ring_doorbell", "executors": "ring_execute"}


@pytest.fixture(scope="module")
def host() -> Iterator[tuple]:
    with BpfObject("dispatch") as dispatch, loaded() as (kernel, native):
        for table, program in TABLES.items():
            dispatch.maps[table].update(GROUP, kernel.object.programs[program].fd)
        yield dispatch, kernel, native


@pytest.fixture
def run(host):
    dispatch, kernel, native = host
    prepare(kernel, native)
    return lambda program, data: dispatch.programs[program].test_run(data).retval


def strangers(host) -> int:
    return int(np.frombuffer(host[0].maps["strangers"].lookup(0), np.uint64).sum())


OTHERS = {
    "TCP": bytes(Ether(dst="02:00:00:00:00:02") / IP(dst="10.0.0.2") / TCP() / bytes(60)),
    "ARP": bytes(Ether() / ARP() / bytes(60)),
    "another UDP port": reduce(0)[:36] + b"\0\1" + reduce(0)[38:],
    "a short frame": reduce(0)[:79],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_traffic_goes_to_the_stack(run, name) -> None:
    """On the link. No other traffic belongs on the doorbell."""
    assert run("dispatch_link", OTHERS[name]) == XDP_PASS
    assert run("dispatch_doorbell", OTHERS[name]) == XDP_DROP
    assert run("dispatch_execute", OTHERS[name]) == XDP_DROP


def test_frames_that_the_kernel_makes_reach_the_doorbell(host) -> None:
    before, frame = strangers(host), bytearray(kick())
    group = FRAME.fields["group"][1]
    frame[group : group + 2] = bytes(2)  # which is nobody's
    host[0].programs["dispatch_doorbell"].run_live(bytes(frame), 100)
    assert strangers(host) == before + 100
    with pytest.raises(KernelError, match="live run of dispatch_doorbell"):
        host[0].programs["dispatch_doorbell"].run_live(bytes(4096), 2)  # larger than a page
    host[0].programs["dispatch_doorbell"].run_live(bytes(constant("TOKEN_PAGE")), 2)


def test_frames_of_a_group_reach_its_programs(run, host) -> None:
    before = strangers(host)
    assert run("dispatch_link", reduce(0)) == XDP_TX
    assert run("dispatch_doorbell", kick()) == XDP_DROP  # no work request is waiting
    host[2].post(WrKind.LAUNCH, SEQ, 4)
    assert run("dispatch_doorbell", kick()) == XDP_REDIRECT
    assert run("dispatch_execute", kick()) == XDP_REDIRECT
    assert strangers(host) == before
    assert host[1].counters()["sent"] == 2


@pytest.mark.parametrize("group", [0, 4095, 4096])
@pytest.mark.parametrize("program", ["dispatch_link", "dispatch_doorbell", "dispatch_execute"])
def test_frames_of_other_groups_are_counted(run, host, program, group) -> None:
    before = strangers(host)
    assert run(program, reduce(0, group=group)) == XDP_DROP
    assert strangers(host) == before + 1
    assert not any(host[1].counters().values())
