"""BPF objects from Python: compile with clang, load through libbpf, maps as numpy arrays, links,
test runs.
"""

from testbed.kernel.compile import compile_bpf
from testbed.kernel.maps import Map
from testbed.kernel.object import BpfObject
from testbed.kernel.program import (
    XDP_ABORTED,
    XDP_DROP,
    XDP_PASS,
    XDP_REDIRECT,
    XDP_TX,
    Link,
    Program,
    TestRun,
)
from testbed.kernel.ring_buffer import RingReader

__all__ = [
    "XDP_ABORTED",
    "XDP_DROP",
    "XDP_PASS",
    "XDP_REDIRECT",
    "XDP_TX",
    "BpfObject",
    "Link",
    "Map",
    "Program",
    "RingReader",
    "TestRun",
    "compile_bpf",
]
