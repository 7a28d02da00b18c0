"""Every program loads, with constants like a host's; or the doctor says what the kernel lacks."""

from contextlib import closing

import pytest

from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct
from testbed.kernel.compile import sources
from testbed.testing.graphs import draw_partitioned, embeddings
from tests.support.kernel.pinch import Loaded
from tests.support.kernel.reference import KernelRank
from tests.support.protocol.network import config

pytestmark = pytest.mark.kernel

CONFIGURED = {"aggregate", "broadcast", "capture", "ring"}
NEVER_LOADED = {"abi"}
JUMBO = {"probe_jumbo"}
GRAPH = draw_partitioned(0, 60, 500, 3)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs("multi-buffer XDP") if name in JUMBO else ())
        for name in sources()
        if name not in CONFIGURED | NEVER_LOADED
    ],
)
def test_loads(name: str) -> None:
    with BpfObject(name) as programs:
        assert programs.programs


@pytest.mark.parametrize("name", ["capture", "capture_whole"])
def test_capture_loads(name: str) -> None:
    config = Struct("capture_config", end=1, snap=64)
    with BpfObject("capture", rodata=config, programs=[name]) as programs:
        assert programs.programs


@pytest.mark.parametrize("upstream", [True, False])
def test_ring_loads(upstream: bool) -> None:
    with closing(KernelRank(config(0, 3, upstream=upstream))) as rank:
        assert rank.object.programs


@pytest.mark.parametrize(
    ("kind", "lanes", "dim", "mtu"),
    [
        ("sum", "int16", 64, 1500),
        ("weighted", "int32", 512, 576),
        ("max", "int16", 512, 3506),
        ("max", "int32", 512, 3506),
    ],
)
def test_exchange_loads(kind: str, lanes: str, dim: int, mtu: int) -> None:
    with Loaded(GRAPH, embeddings(1, GRAPH, dim), kind, lanes, mtu=mtu) as loaded:
        assert loaded.ports


def test_exchange_of_the_process_loads() -> None:
    with Loaded(GRAPH, embeddings(1, GRAPH, 64), aggregate="process") as loaded:
        assert loaded.ports
