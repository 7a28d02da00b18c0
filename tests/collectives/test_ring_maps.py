"""The structures that C and Python share: offsets, sizes and values, by the compiler and by the object's BTF."""

import ctypes
import json
import re
import shutil
import subprocess
import sysconfig
from enum import IntEnum

import pytest

from testbed.collectives import ring_maps as maps
from testbed.collectives.group import Member
from testbed.collectives.lanes import NativeLanes
from testbed.collectives.ring_layout import Layout
from testbed.kernel import compile_bpf
from testbed.kernel.compile import BPF, FLAGS
from testbed.native import FLAGS as NATIVE_FLAGS
from testbed.native import SOURCES
from testbed.protocol import memory, wire

STRUCTURES = {
    "ring_control": maps.Control,
    "ring_chunk": maps.Chunk,
    "ring_tensor": maps.Tensor,
    "ring_order": maps.RingOrder,
    "ring_asks": maps.RingAsks,
    "ring_queue": maps.RingQueue,
    "ring_ask": maps.RingAsk,
    "ring_lane": maps.Lane,
    "ring_rank": maps.Rank,
    "ring_kept": maps.Kept,
    "ring_parked": maps.Parked,
    "ring_config": maps.Config,
    "ring_peer": maps.Peer,
}
UNMAPPED = {"ring_frame": maps.Frame}  # in no map, hence not in BTF
FRAME_LOWER = {"lower"}  # Ethernet, IPv4 and UDP: one field here, three in C
DEFINED = {
    "RING_PORT": wire.PORT,
    "RING_MAGIC": wire.MAGIC,
    "RING_VERSION": wire.VERSION,
    "RING_FLAG_RESULT": wire.RESULT,
    "RING_FLAG_SETTLED": wire.SETTLED,
    "RING_FLAG_TOLD": wire.TOLD,
    "RING_FLAG_EARLIER": wire.EARLIER,
    "RING_FLAG_RESTART": wire.RESTART,
    "RING_NOTHING": wire.NOTHING,
    "RING_MAX_RANKS": wire.MAX_RANKS,
    "RING_BLOCK": wire.BLOCK,
    "RING_MAX_BLOCKS * RING_BLOCK": wire.MAX_PAYLOAD,
    "sizeof(struct ring_frame)": wire.FRAME_BYTES,
    "RING_PARKING": memory.PARKING,
    "RING_PARKING_TRIES": memory.PARKING_TRIES,
    "RING_ASKS": memory.ASKS,
    "ORDER_ANYWHERE": memory.ANYWHERE,
    "RING_ORDERS": memory.ORDERS,
    "RING_FAN_SMALL": maps.FAN_SMALL,
    "RING_FAN_LARGE": maps.FAN_LARGE,
    "RING_COUNTERS": len(memory.COUNTERS),
}


def enumerators() -> dict[str, int]:
    """Names of C's enumerators and the values that Python has for them."""
    enums: dict[str, type[IntEnum]] = {"RING_": wire.Kind, "ORDER_": memory.Order, "RESULT_": memory.ResultState}
    values = {prefix + item.name: item.value for prefix, items in enums.items() for item in items}
    return values | {f"RING_{name.upper()}": index for index, name in enumerate(memory.COUNTERS)}


def refusals(assertions: list[tuple[str, int]], headers: str, *command: str) -> str:
    """What the compiler says to assertions that an expression has a value; nothing if all hold."""
    clang = shutil.which("clang")
    assert clang is not None
    source = headers + "".join(f'_Static_assert({what} == {value}, "is {value} in Python");\n' for what, value in assertions)
    done = subprocess.run(
        [clang, *command, "-fsyntax-only", "-x", "c", "-"], input=source, capture_output=True, text=True, check=False
    )
    return done.stderr


def layout(name: str, structure: type[ctypes.Structure]) -> list[tuple[str, int]]:
    fields = [field[0] for field in structure._fields_ if field[0] not in FRAME_LOWER]
    found = [(f"sizeof(struct {name})", ctypes.sizeof(structure))]
    for field in fields:
        place = getattr(structure, field)
        found.append((f"__builtin_offsetof(struct {name}, {field})", place.offset))
        found.append((f"sizeof(((struct {name} *)0)->{field})", place.size))
    return found


def kernel_refusals(assertions: list[tuple[str, int]]) -> str:
    includes = (f"-I{BPF / 'include'}", f"-I/usr/include/{sysconfig.get_config_var('MULTIARCH')}")
    return refusals(assertions, '#include "ring.h"\n#include "ring_maps.h"\n', *FLAGS, *includes)


@pytest.mark.parametrize("name", [*STRUCTURES, *UNMAPPED])
def test_structures_have_the_layout_that_clang_gives_them(name) -> None:
    assert kernel_refusals(layout(name, (STRUCTURES | UNMAPPED)[name])) == ""


def test_constants_and_enumerators() -> None:
    assert kernel_refusals([*DEFINED.items(), *enumerators().items()]) == ""


def test_a_wrong_value_would_be_refused() -> None:
    assert "is 17171 in Python" in kernel_refusals([("RING_PORT", 17171)])


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("ring", maps.NativeRing),
        ("layout", Layout),
        ("control", maps.Control),
        ("parked", maps.Parked),
        ("record", maps.Chunk),
        ("lane", maps.Lane),
        ("peer", maps.Rank),
        ("order", maps.RingOrder),
        ("lanes", NativeLanes),
    ],
)
def test_structures_of_the_native_library(name, structure) -> None:
    flags = (*NATIVE_FLAGS, "-Wno-unused-command-line-argument")  # nothing is linked here
    assert refusals(layout(name, structure), f'#include "{SOURCES / "ring.c"}"\n', *flags) == ""


@pytest.fixture(scope="module")
def btf() -> list[dict]:
    bpftool = shutil.which("bpftool") or "/usr/sbin/bpftool"
    command = [bpftool, "-j", "btf", "dump", "file", str(compile_bpf("ring")), "format", "raw"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["types"]


@pytest.mark.kernel
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_objects_btf_says_the_same(btf, name) -> None:
    """The object that is loaded, not only the headers that it was made from."""
    (found,) = [kind for kind in btf if kind["kind"] == "STRUCT" and kind["name"] == name]
    structure = STRUCTURES[name]
    assert found["size"] == ctypes.sizeof(structure)
    offsets = {member["name"]: member["bits_offset"] // 8 for member in found["members"]}
    assert offsets == {field[0]: getattr(structure, field[0]).offset for field in structure._fields_}


@pytest.mark.kernel
def test_maps_have_the_value_sizes_of_the_structures(btf) -> None:
    """Counters have an element an enumerator: BTF knows the array's length."""
    arrays = {kind["nr_elems"] for kind in btf if kind["kind"] == "ARRAY"}
    assert len(memory.COUNTERS) in arrays


def test_peer_is_what_the_programs_put_into_headers() -> None:
    """MAC and address as they stand in memory; the sum makes the check that encode makes."""
    one, other = Member(0, "h1", "10.1.2.3", "02:00:00:00:00:01"), Member(1, "h2", "10.255.0.254", "0a:0b:0c:0d:0e:0f")
    peer = maps.peer(one, other)
    assert bytes(peer.mac).hex(":") == other.mac
    assert peer.ip.to_bytes(4, "little") == bytes([10, 255, 0, 254])
    source, destination = wire.Endpoint(one.mac, one.ip), wire.Endpoint(other.mac, other.ip)
    data = wire.encode(wire.Frame(wire.Header(wire.Kind.PROBE), source=source, destination=destination))
    total = int.from_bytes(data[16:18], "little")
    folded = peer.ip_sum + total
    folded = (folded & 0xFFFF) + (folded >> 16)
    assert (~folded & 0xFFFF).to_bytes(2, "little") == data[24:26]


def test_every_structure_of_the_header_is_compared() -> None:
    text = (BPF / "include" / "ring.h").read_text() + (BPF / "include" / "wire.h").read_text()
    text += (BPF / "include" / "ring_maps.h").read_text()
    assert set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE)) == (STRUCTURES | UNMAPPED).keys()
