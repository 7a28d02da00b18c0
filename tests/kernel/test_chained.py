"""Any XDP program becomes a part of a chain, and keeps its meaning: packet by packet."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.core.errors import KernelError
from testbed.kernel import XDP_DROP, XDP_PASS, XDP_TX, BpfObject, Map
from testbed.kernel.chained import Chained
from testbed.kernel.compile import compile_file
from tests.support.tiers import broad

pytestmark = pytest.mark.kernel

HEAD = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char LICENSE[] SEC("license") = "GPL";
"""
MAP = 'struct { __uint(type, %s); __uint(max_entries, 4); __uint(key_size, 4); __uint(value_size, 4); } m SEC(".maps");\n'  # noqa: E501
TO_A_MAP = '\nSEC("%s") int entry(struct xdp_md *ctx) { return bpf_redirect_map(&m, 0, XDP_PASS); }'
JUMPS = """
int other(struct xdp_md *ctx);
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 1); __uint(key_size, 4);
	__array(values, int (void *)); } jumps SEC(".maps") = { .values = { [0] = &other } };
SEC("xdp") int other(struct xdp_md *ctx) { return %s; }
SEC("xdp") int entry(struct xdp_md *ctx) { bpf_tail_call(ctx, &jumps, 0); return XDP_ABORTED; }
"""
#: Its own subprograms, one of them verified apart, a callback, variables of all kinds, and all of a
#: stack.
LARGE = """
const volatile __u32 limit = 3;
__u64 seen, calls;
static __u64 hidden = 7;
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __type(key, __u32);
	__type(value, __u64); } h SEC(".maps");
static __noinline int inner(struct xdp_md *ctx, int x)
{
	__u32 key = x;
	return bpf_map_update_elem(&h, &key, &seen, 0) + ctx->rx_queue_index;
}
__noinline int outer(struct xdp_md *ctx) { return inner(ctx, 1) + limit; }
static long once(__u32 index, void *context) { calls++; return 0; }
SEC("xdp/cpumap") int there(struct xdp_md *ctx) { return XDP_PASS; }
SEC("xdp") int entry(struct xdp_md *ctx)
{
	bpf_loop(5, once, 0, 0);
	seen += outer(ctx) + hidden;
	bpf_printk("seen %llu", seen);
	return seen == 10 && calls == 5 ? XDP_PASS : XDP_ABORTED;
}
"""
STACK = """
SEC("xdp") int entry(struct xdp_md *ctx)
{
	char all[504]; /* and 8 for the context */
	__builtin_memset(all, 2, sizeof(all));
	bpf_trace_printk(all, sizeof(all));
	return all[ctx->rx_queue_index & 255];
}
"""
#: As with a vmlinux.h: types of the kernel without its headers, and places that are relocated.
CORE = """
typedef unsigned int __u32; typedef unsigned long long __u64; typedef unsigned short __u16;
typedef int __s32; typedef long long __s64; typedef unsigned char __u8; typedef __u16 __be16;
typedef __u32 __be32; typedef __u32 __wsum;
enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS };
enum { BPF_MAP_TYPE_HASH = 1 };
struct xdp_md { __u32 data, data_end; };
struct task_struct { int pid; } __attribute__((preserve_access_index));
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
char LICENSE[] SEC("license") = "GPL";
SEC("xdp") int entry(struct xdp_md *ctx)
{
	return bpf_core_field_exists(struct task_struct, pid) ? XDP_PASS : XDP_ABORTED;
}
"""
#: As old samples do.
OWN_HELPERS = """
#include <linux/bpf.h>
#define SEC(name) __attribute__((section(name), used))
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
__u64 last;
SEC("xdp") int entry(struct xdp_md *ctx) { last = bpf_ktime_get_ns(); return XDP_PASS; }
char _license[] SEC("license") = "GPL";
"""
ANY_CONTEXT = 'SEC("%s") int entry(void *context) { return XDP_PASS; }'
PASSING = {
    "devmap": HEAD + MAP % "BPF_MAP_TYPE_DEVMAP" + TO_A_MAP % "xdp",
    "large": HEAD + LARGE,
    "prog array": HEAD + JUMPS % "XDP_PASS",
    "relocated": CORE,
    "own helpers": OWN_HELPERS,
    "cpumap": HEAD + MAP % "BPF_MAP_TYPE_CPUMAP" + TO_A_MAP % "xdp",
    "devmap, frags": HEAD + MAP % "BPF_MAP_TYPE_DEVMAP" + TO_A_MAP % "xdp.frags",
    "stack": HEAD + STACK,
    "any context": HEAD + ANY_CONTEXT % "xdp",
    "not by itself": HEAD + ANY_CONTEXT % "?xdp",
}


def table() -> Iterator[Map]:
    made = Map.create("behind", 3, 4, 4, 1)
    yield made
    os.close(made.fd)


behind, nothing = pytest.fixture(table, name="behind"), pytest.fixture(table, name="nothing")


def source(folder: Path, text: str) -> Path:
    (folder / "mine.bpf.c").write_text(text)
    return folder / "mine.bpf.c"


@pytest.mark.parametrize("frags", [True, False])
@pytest.mark.parametrize("name", broad(PASSING, quick=5))
def test_it_hands_on_what_it_passes(
    tmp_path: Path, behind: Map, nothing: Map, name: str, frags: bool
) -> None:
    """Also what a program passes that it calls by a tail call of its own."""
    path = compile_file(source(tmp_path, PASSING[name]))
    last = compile_file(source(tmp_path, HEAD + 'SEC("xdp") int last(void *c) { return XDP_TX; }'))
    with BpfObject(path, chained=Chained("entry", behind, frags)) as mine:
        assert mine.programs["entry"].test_run(bytes(64)).retval == XDP_PASS
    with (
        BpfObject(path, chained=Chained("entry", behind, frags)) as mine,
        BpfObject(last, chained=Chained("last", nothing, frags)) as following,
    ):
        behind.update(0, following.programs["last"].fd)
        assert mine.programs["entry"].test_run(bytes(64)).retval == XDP_TX


@pytest.mark.parametrize(
    "text",
    broad(
        [
            JUMPS % "XDP_DROP",
            'SEC("xdp") int entry(struct xdp_md *ctx) { return XDP_DROP; }',
            'SEC("xdp") long entry(struct xdp_md *ctx) { return (1L << 32) + XDP_DROP; }',
        ]
    ),
)
def test_any_other_verdict_ends_the_chain(tmp_path: Path, behind: Map, text: str) -> None:
    path = compile_file(source(tmp_path, HEAD + text))
    with BpfObject("pass") as last, BpfObject(path, chained=Chained("entry", behind, True)) as mine:
        behind.update(0, last.programs["pass"].fd)
        assert mine.programs["entry"].test_run(bytes(64)).retval == XDP_DROP


@pytest.mark.parametrize("flags", broad([["-g"], []]))
def test_a_compiled_object_is_taken_as_it_is(tmp_path: Path, behind: Map, flags: list[str]) -> None:
    """With or without types."""
    text, made = source(tmp_path, OWN_HELPERS), tmp_path / "mine.o"
    include = f"-I/usr/include/{os.uname().machine}-linux-gnu"
    command = ["clang", "-target", "bpf", "-O2", *flags, include, "-c", text, "-o", made]
    subprocess.run(command, check=True)
    path = compile_file(made)
    made.unlink()
    with BpfObject(path, chained=Chained("entry", behind, True)) as mine:
        assert mine.programs["entry"].test_run(bytes(64)).retval == XDP_PASS
        assert mine.maps[".bss"].lookup(0) != bytes(8)


def test_the_verifiers_reason_is_about_the_programs_own_line(tmp_path: Path, behind: Map) -> None:
    text = 'SEC("xdp") int entry(struct xdp_md *c) { return *(__u8 *)(long)c->data; }'
    path = compile_file(source(tmp_path, HEAD + text))
    with pytest.raises(KernelError, match="load mine: EACCES") as caught:
        BpfObject(path, chained=Chained("entry", behind, True))
    assert text in str(caught.value)
    assert "invalid access to packet" in str(caught.value)


def test_after_it_programs_are_loaded_as_before(tmp_path: Path, behind: Map) -> None:
    """Its handlers of sections are gone."""
    path = compile_file(source(tmp_path, HEAD + ANY_CONTEXT % "xdp"))
    with BpfObject(path, chained=Chained("entry", behind, True)):
        pass
    with BpfObject(path) as plain, BpfObject("pass") as frags:
        behind.update(0, frags.programs["pass"].fd)
        with pytest.raises(KernelError, match="update 0 in map behind: EINVAL"):
            behind.update(0, plain.programs["entry"].fd)
