"""What a program holds is read by its types; what cannot be read is said, beside what can."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import KernelError
from testbed.datapath.contents import Contents
from testbed.kernel import BpfObject
from testbed.kernel.compile import compile_file

pytestmark = pytest.mark.kernel

HEAD = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char LICENSE[] SEC("license") = "GPL";
SEC("xdp") int nothing(struct xdp_md *ctx) { return XDP_PASS; }
"""
TYPED = """
struct mac { __u8 octets[6]; };
struct flow { __u32 from, to; __u16 ports[2]; __u8 mac[6]; __u16 pad; };
struct odd { __u32 width : 3, rest : 29; };
union either { __u32 whole; __u16 halves[2]; };
struct inner { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32);
	__type(value, __u64); };
#define A(kind, entries, k, v, name) struct { __uint(type, BPF_MAP_TYPE_##kind); \\
	__uint(max_entries, entries); __type(key, k); __type(value, v); } name SEC(".maps")
#define NEST(kind, name) struct { __uint(type, BPF_MAP_TYPE_##kind); __uint(max_entries, 2); \\
	__type(key, __u32); __array(values, struct inner); } name SEC(".maps")
struct lpm { __u32 prefixlen; __u8 address[4]; };
A(HASH, 4, struct mac, __u64, macs);
A(HASH, 4, struct flow, struct flow, flows);
A(LRU_HASH, 4, __u8[6], struct mac, recent);
A(PERCPU_HASH, 4, struct mac, __u64, each_cpu);
A(LRU_PERCPU_HASH, 4, __u32, struct mac, each_cpu_recent);
A(HASH, 4, struct odd, union either, odd);
A(HASH, 4, __u32, __int128, large);
A(DEVMAP, 2, __u32, __u32, ports);
A(CPUMAP, 2, __u32, struct bpf_cpumap_val, cpus);
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 4); __uint(map_flags, 1);
	__type(key, struct lpm); __type(value, __u32); } routes SEC(".maps");
NEST(ARRAY_OF_MAPS, nested);
NEST(HASH_OF_MAPS, nested_by_key);
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2); __uint(key_size, 4);
	__array(values, int (void *)); } jumps SEC(".maps") = { .values = { [1] = &nothing } };
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 2); __uint(key_size, 3);
	__uint(value_size, 2); } untyped SEC(".maps");
struct mac self = { { 1, 2, 3, 4, 5, 6 } };
union either one = { 7 };
volatile __s32 below = -3;
bool yes = 1;
"""
UNREADABLE = """
#define M(kind, name, more...) struct { __uint(type, BPF_MAP_TYPE_##kind); more } name SEC(".maps")
#define SIZED(k, v) __uint(max_entries, 4); __uint(key_size, k); __uint(value_size, v);
M(RINGBUF, ring, __uint(max_entries, 4096););
M(QUEUE, queue, SIZED(0, 4));
M(STACK, stack, SIZED(0, 4));
M(BLOOM_FILTER, bloom, SIZED(0, 4));
M(PERF_EVENT_ARRAY, events, SIZED(4, 4));
M(XSKMAP, sockets, SIZED(4, 4));
M(SOCKMAP, pipes, SIZED(4, 4));
M(CGROUP_ARRAY, groups, SIZED(4, 4));
M(SK_STORAGE, storage, __uint(map_flags, 1); __type(key, int); __type(value, __u64););
M(STACK_TRACE, traces, SIZED(4, 80));
__u64 seen = 5;
"""


@contextmanager
def loaded(folder: Path, text: str) -> Iterator[Contents]:
    source = folder / "mine.bpf.c"
    source.write_text(HEAD + "#include <stdbool.h>\n" + text)
    path = compile_file(source)
    with BpfObject(path) as made:
        yield Contents(source, path, made.maps)


def test_all_that_has_keys_is_read(tmp_path: Path) -> None:
    mac, flow = bytes(range(1, 7)), np.array([9, 8], "<u4").tobytes() + b"\1\0\2\0" + bytes(8)
    with loaded(tmp_path, TYPED) as contents:
        maps = contents.maps
        for name, key, value in [
            ("macs", mac, 40),
            ("flows", flow, flow),
            ("recent", mac, mac),
            ("odd", 1, 2),
            ("large", 1, bytes(16)),
            ("routes", b"\x18\0\0\0\n\0\0\0", 6),
            ("untyped", b"abc", b"de"),
        ]:
            maps[name].update(key, value)
        cpus = maps["each_cpu"].per_cpu
        maps["each_cpu"].update(mac, (1).to_bytes(8, "little") * cpus)
        maps["each_cpu_recent"].update(3, (mac + bytes(2)) * cpus)
        assert contents.read("macs") == {(mac,): 40}
        ((key, value),) = contents.read("flows").items()
        assert key == (9, 8, (1, 2), bytes(6), 0)
        assert value["ports"].tolist() == [1, 2]
        assert contents.read("each_cpu") == {(mac,): cpus}
        assert contents.read("jumps").keys() == {1}
        assert contents.read("odd") == {b"\1\0\0\0": b"\2\0\0\0"}
        assert contents.read("one") == b"\7\0\0\0"
        values, reasons = contents.all()
    assert reasons == {}
    values = json.loads(json.dumps(values))
    assert values["macs"] == {"(010203040506)": 40}
    assert values["flows"] == {
        "(9, 8, (1, 2), 000000000000, 0)": {
            "from": 9,
            "to": 8,
            "ports": [1, 2],
            "mac": [0] * 6,
            "pad": 0,
        }
    }
    assert values["recent"] == {"010203040506": {"octets": [1, 2, 3, 4, 5, 6]}}
    assert values["each_cpu_recent"] == {"3": [{"octets": [1, 2, 3, 4, 5, 6]}] * cpus}
    assert values["large"] == {"1": "00" * 16}
    assert values["routes"] == {"(24, 0a000000)": 6}
    assert values["untyped"] == {"616263": "6465"}
    assert values["nested"] == values["nested_by_key"] == values["ports"] == values["cpus"] == {}
    assert (values["below"], values["yes"]) == (-3, True)
    assert values["self"] == {"octets": [1, 2, 3, 4, 5, 6]}


def test_what_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    with loaded(tmp_path, UNREADABLE) as contents:
        values, reasons = contents.all()
        with pytest.raises(KernelError) as caught:
            contents.read("ring")
        with pytest.raises(KeyError, match=r"mine\.bpf\.c has no \.data: it has seen, ring, "):
            contents.read(".data")
    text = "ring, a map of type ringbuf, cannot be read: it has no keys"
    assert str(caught.value) == reasons["ring"] == text
    assert values["seen"] == 5
    assert {"ring", "queue", "stack", "bloom", "storage", "events"} <= reasons.keys()
    assert values.keys() | reasons.keys() == {*contents.names}
    assert "ENOTSUPP" in reasons["storage"]


def test_an_object_without_types_is_read_as_bytes(tmp_path: Path) -> None:
    source = tmp_path / "mine.bpf.c"
    source.write_text(HEAD + "__u32 seen = 5;")
    path = compile_file(source)
    bare = tmp_path / "bare.bpf.o"
    with BpfObject(path) as made:
        bare.write_bytes(path.read_bytes().replace(b".BTF\0", b".BTX\0"))
        assert Contents(source, bare, made.maps).all() == ({"seen": "05000000"}, {})
