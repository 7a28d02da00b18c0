"""The structures that the programs of an exchange share with Python: offsets, sizes and values, by the compiler and by BTF."""

import ctypes
import json
import re
import shutil
import subprocess
import sysconfig

import numpy as np
import pytest

from testbed.exchange import pinch_layout
from testbed.exchange import pinch_maps as maps
from testbed.kernel import compile_bpf
from testbed.kernel.compile import BPF, FLAGS
from testbed.native import FLAGS as NATIVE_FLAGS
from testbed.native import SOURCES
from testbed.protocol.wire import FRAME_BYTES, PinchKind
from tests.collectives.test_ring_maps import layout, refusals

STRUCTURES = {"pinch_config": maps.Config, "pinch_control": maps.Control, "pinch_source": maps.Source}
RECORDS = {
    "pinch_flow": maps.FLOW,
    "pinch_frame": maps.FRAME,
    "pinch_vertex": maps.VERTEX,
    "pinch_edge": maps.EDGE,
    "pinch_hub": maps.HUB,
    "pinch_peer": maps.PEER,
}
HERE_ONLY = {"pinch_scratch"}  # no process sees it
DEFINED = {
    "PINCH_MAX_WORDS": pinch_layout.MAX_WORDS,
    "PINCH_ACK_WORDS": pinch_layout.ACK_WORDS,
    "PINCH_ACK_BEHIND": maps.ACK_BEHIND,
    "PINCH_BATCH": maps.BATCH,
    "PINCH_ORDERS": maps.ORDERS,
    "PINCH_ANYWHERE": maps.ANYWHERE,
    "PINCH_MAX_FLOWS": maps.MAX_FLOWS,
    "PINCH_COUNTERS": len(maps.COUNTERS),
    "RING_MAX_RANKS": len(maps.Config().peers),
}


def enumerators() -> dict[str, int]:
    values = {f"PINCH_{item.name}": item.value for items in (maps.Aggregation, PinchKind) for item in items}
    return values | {f"PINCH_{name.upper()}": index for index, name in enumerate(maps.COUNTERS)}


def record_layout(name: str, record: np.dtype) -> list[tuple[str, int]]:
    found = [(f"sizeof(struct {name})", record.itemsize)]
    for field, (kind, offset) in record.fields.items():
        found.append((f"__builtin_offsetof(struct {name}, {field})", offset))
        found.append((f"sizeof(((struct {name} *)0)->{field})", kind.itemsize))
    return found


def kernel_refusals(assertions: list[tuple[str, int]]) -> str:
    includes = (f"-I{BPF / 'include'}", f"-I/usr/include/{sysconfig.get_config_var('MULTIARCH')}")
    return refusals(assertions, '#include "pinch_ack.h"\n', *FLAGS, *includes, "-Wno-unused-function")


@pytest.mark.parametrize("name", [*STRUCTURES, *RECORDS])
def test_structures_have_the_layout_that_clang_gives_them(name) -> None:
    wanted = layout(name, STRUCTURES[name]) if name in STRUCTURES else record_layout(name, RECORDS[name])
    assert kernel_refusals(wanted) == ""


def test_acknowledgements() -> None:
    ack = maps.AckFrame
    words = ("__builtin_offsetof(struct pinch_ack, words)", ack.words.offset)
    assert kernel_refusals([("sizeof(struct pinch_ack)", FRAME_BYTES + 8 * pinch_layout.ACK_WORDS), words]) == ""


def test_constants_and_enumerators() -> None:
    assert kernel_refusals([*DEFINED.items(), *enumerators().items()]) == ""


def test_a_wrong_value_would_be_refused() -> None:
    assert "is 33 in Python" in kernel_refusals([("PINCH_BATCH", 33)])


@pytest.mark.parametrize(("name", "structure"), [("pinch_format", maps.Format), ("pinch", maps.NativePinch)])
def test_structures_of_the_native_library(name, structure) -> None:
    flags = (*NATIVE_FLAGS, "-Wno-unused-command-line-argument")  # nothing is linked here
    assert refusals(layout(name, structure), f'#include "{SOURCES / "pinch.c"}"\n', *flags) == ""


@pytest.fixture(scope="module", params=["aggregate", "broadcast"])
def btf(request) -> list[dict]:
    bpftool = shutil.which("bpftool") or "/usr/sbin/bpftool"
    command = [bpftool, "-j", "btf", "dump", "file", str(compile_bpf(request.param)), "format", "raw"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["types"]


@pytest.mark.kernel
@pytest.mark.parametrize("name", [*STRUCTURES, *RECORDS])
def test_the_objects_btf_says_the_same(btf, name) -> None:
    """The objects that are loaded, not only the headers that they were made from."""
    (found,) = [kind for kind in btf if kind["kind"] == "STRUCT" and kind["name"] == name]
    offsets = {member["name"]: member["bits_offset"] // 8 for member in found["members"]}
    if name in RECORDS:
        assert found["size"] == RECORDS[name].itemsize
        assert offsets == {field: offset for field, (_, offset) in RECORDS[name].fields.items()}
    else:
        structure = STRUCTURES[name]
        assert found["size"] == ctypes.sizeof(structure)
        assert offsets == {field[0]: getattr(structure, field[0]).offset for field in structure._fields_}


def test_every_structure_of_the_headers_is_compared() -> None:
    text = (BPF / "include" / "pinch.h").read_text() + (BPF / "include" / "pinch_maps.h").read_text()
    assert set(re.findall(r"^struct (pinch_\w+) \{", text, re.MULTILINE)) == STRUCTURES.keys() | RECORDS.keys() | HERE_ONLY
