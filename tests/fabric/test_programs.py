"""Users' programs on hosts' links: beside the testbed's own, on both datapaths, under faults."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import KernelError, SpecError
from testbed.datapath import set_datapath
from testbed.datapath.programs import check_frames, compile_program
from testbed.fabric import Fabric
from testbed.fabric.state import new_run_id
from testbed.kernel.compile import compile_file
from testbed.testing.faults import FaultsInForce
from testbed.testing.group import Group
from testbed.worker import WorkerContext, Workers
from tests.support.capturing import capturing
from tests.support.command import run_testbed
from tests.support.tiers import broad

COUNT = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "unit.h"

struct pair { __u32 a, b; };
const volatile __u32 unit = UNIT;
__u64 seen;
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} lengths SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct pair);
} pairs SEC(".maps");

SEC("xdp")
int count(struct xdp_md *ctx)
{
	__u64 *length = bpf_map_lookup_elem(&lengths, &(__u32){1});
	struct pair value = {7, 8};

	if (length)
		*length += 1;
	bpf_map_update_elem(&pairs, &(__u32){5}, &value, BPF_ANY);
	__sync_fetch_and_add(&seen, unit);
	return XDP_PASS;
}

SEC("tc")
int one(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&seen, unit);
	return -1;
}

SEC("tc")
int two(struct __sk_buff *skb)
{
	return -1;
}
char LICENSE[] SEC("license") = "GPL";
"""
# Sends datagrams for port 7 back.
ECHO = """
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SWAP(a, b) { __typeof__(a) was = a; a = b; b = was; }
struct mac { __u8 octets[6]; };
struct frame { struct ethhdr eth; struct iphdr ip; struct udphdr udp; } __attribute__((packed));

SEC("xdp")
int echo(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;

	if ((void *)(f + 1) > (void *)(long)ctx->data_end || f->ip.protocol != IPPROTO_UDP ||
		f->udp.dest != bpf_htons(7))
		return XDP_PASS;
	SWAP(*(struct mac *)f->eth.h_dest, *(struct mac *)f->eth.h_source)
	SWAP(f->ip.saddr, f->ip.daddr)
	SWAP(f->udp.source, f->udp.dest)
	return XDP_TX;
}
char LICENSE[] SEC("license") = "GPL";
"""
NUMBERS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("my programs")  # a path with a space
    (folder / "unit.h").write_text("#define UNIT 1\n")
    (folder / "count.bpf.c").write_text(COUNT)
    (folder / "echo.bpf.c").write_text(ECHO)
    return folder


def test_the_cache_knows_the_files_that_are_included(folder: Path) -> None:
    first = compile_file(folder / "count.bpf.c")
    assert first == compile_file(folder / "count.bpf.c")
    try:
        (folder / "unit.h").write_text("#define UNIT 2\n")
        assert compile_file(folder / "count.bpf.c") != first
    finally:
        (folder / "unit.h").write_text("#define UNIT 1\n")


@pytest.mark.parametrize(
    ("file", "hook", "section", "text"),
    [
        ("none.c", "xdp", None, "there is no such file"),
        ("echo.bpf.c", "egress", None, "hook: 'egress': must be one of xdp, xdp-generic, tc-"),
        ("echo.bpf.c", "tc-egress", None, "no program for hook tc-egress, whose sections begin"),
        ("count.bpf.c", "tc-ingress", None, "several programs for hook tc-ingress; name one by"),
        ("count.bpf.c", "tc-ingress", "three", "no program in section 'three' for hook"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(
    folder: Path, file: str, hook: str, section: str | None, text: str
) -> None:
    with pytest.raises(SpecError) as caught:
        compile_program(folder / file, hook, section)
    assert text in str(caught.value)


def test_the_compilers_message_is_the_error(tmp_path: Path) -> None:
    (tmp_path / "bad.bpf.c").write_text("int x = y;\n")
    with pytest.raises(KernelError, match="undeclared identifier 'y'"):
        compile_program(tmp_path / "bad.bpf.c")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\1\2", "mine.bpf.c: is neither C source nor a compiled object (ELF)"),
        (Path("/bin/true").read_bytes(), "is not a valid eBPF object file"),
        (
            b'struct map { int type; } packets __attribute__((section("maps"), used)) = {2};\n'
            b'__attribute__((section("xdp"), used)) int f(void *context) { return packets.type; }',
            "legacy map definitions in 'maps' section are not supported by libbpf",
        ),
    ],
)
def test_what_cannot_be_opened_is_refused_with_the_reason(
    tmp_path: Path, data: bytes, text: str
) -> None:
    (tmp_path / "mine.bpf.c").write_bytes(data)
    with pytest.raises(KernelError) as caught:
        compile_program(tmp_path / "mine.bpf.c")
    assert text in str(caught.value)


def test_programs_of_a_devmap_or_cpumap_are_none_of_a_device(tmp_path: Path) -> None:
    """An object is taken as it is."""
    text = "".join(
        f'__attribute__((section("{section}"), used)) int {name}(void *c) {{ return 2; }}\n'
        for name, section in [("a", "xdp/devmap"), ("b", "xdp.frags/cpumap"), ("c", "xdp")]
    )
    (tmp_path / "mine.bpf.c").write_text(text)
    made = tmp_path / "mine.o"
    made.write_bytes(compile_program(tmp_path / "mine.bpf.c").path.read_bytes())
    assert compile_program(made).function == "c"


def test_frames_in_pieces_are_for_programs_that_take_them(folder: Path, tmp_path: Path) -> None:
    plain = compile_program(folder / "echo.bpf.c")
    check_frames(plain, 3506)
    check_frames(compile_program(folder / "echo.bpf.c", "xdp-generic"), 9000)
    with pytest.raises(SpecError, match=r"section 'xdp': with an MTU of 9000, .* 'xdp\.frags' "):
        check_frames(plain, 9000)
    (tmp_path / "frags.bpf.c").write_text(ECHO.replace('"xdp"', '"xdp.frags"'))
    check_frames(compile_program(tmp_path / "frags.bpf.c"), 9000)


def test_a_section_that_libbpf_does_not_know(tmp_path: Path) -> None:
    text = '__attribute__((section("mine"))) int f(void *ctx) { return 0; }\n'
    (tmp_path / "odd.bpf.c").write_text(text)
    with pytest.raises(KernelError, match="f: libbpf knows no section 'mine'"):
        compile_program(tmp_path / "odd.bpf.c")


def answers(context: WorkerContext, port: int = 7) -> int:
    """How many of some datagrams to h2 come back; lost ones are sent again."""
    tries = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.1)
        for number in range(NUMBERS):
            answer = b""
            while answer != bytes([number]):
                tries += 1
                sock.sendto(bytes([number]), (context.fabric_plan.host("h2").ip, port))
                try:
                    answer = sock.recv(64)
                except TimeoutError:
                    assert tries < 100 * NUMBERS
    return tries


@pytest.mark.net
class TestOnLinks:
    @pytest.fixture(autouse=True, params=broad(["xdp", "sockets"]))
    def datapath(self, request: pytest.FixtureRequest, testbed_lease: object) -> str:
        return str(request.param)

    @pytest.mark.fabric(hosts=2)
    def test_programs_count_in_every_place(
        self, fabric: Fabric, workers: Workers, folder: Path, datapath: str
    ) -> None:
        set_datapath(fabric, datapath)  # type: ignore[arg-type]
        host, ping = fabric.hosts["h2"], ["ping", "-c", "1", "-W", "5", "h2"]
        source = folder / "count.bpf.c"
        with (
            host.attach(source, rodata={"unit": 3}, maps={"lengths": 3}) as first,
            host.attach(source, order="last") as last,
            host.attach(source, hook="tc-ingress", section="one") as ingress,
            host.attach(source, hook="tc-egress", section="one", order="last") as egress,
        ):
            assert fabric.run("h1", ping).returncode == 0
            assert (first.read("seen"), last.read("seen")) == (3, 1)
            assert (ingress.read("seen"), egress.read("seen")) == (1, 1)
            assert first.read("lengths") == {0: 0, 1: 1, 2: 0}
            assert last.read("pairs")[5].tolist() == (7, 8)
            assert first.values()["unit"] == 3
            with pytest.raises(KeyError, match=r"count\.bpf\.c has no nothing: it has "):
                first.read("nothing")
            with pytest.raises(KernelError, match="either native or generic XDP programs"):
                host.attach(source, hook="xdp-generic")
            with pytest.raises(KernelError, match="count has no variable 'x': it has unit, seen"):
                host.attach(source, rodata={"x": 1})
            shared = host.attach(source, maps={"lengths": first.maps["lengths"]})
            assert shared.read("lengths") == {0: 0, 1: 1, 2: 0}
            shared.close()
        if datapath == "sockets":
            with host.attach(source, hook="xdp-generic") as generic:
                assert fabric.run("h1", ping).returncode == 0
                assert generic.read("seen") == 1

    @pytest.mark.fabric(hosts=2)
    def test_frames_that_are_sent_back_arrive(
        self, fabric: Fabric, workers: Workers, folder: Path, datapath: str
    ) -> None:
        """Also while faults are in force, and after the datapath has changed under the program."""
        set_datapath(fabric, datapath)  # type: ignore[arg-type]
        with fabric.hosts["h2"].attach(folder / "echo.bpf.c"):
            assert workers["h1"].call(answers) == NUMBERS
            with FaultsInForce(fabric, ["drop p=0.3"], 7, False) as injected:
                assert workers["h1"].call(answers) > NUMBERS
            assert injected.fired()
            set_datapath(fabric, "sockets" if datapath == "xdp" else "xdp")
            assert workers["h1"].call(answers) == NUMBERS


@pytest.mark.net
@pytest.mark.fabric(hosts=2, datapath="xdp")
def test_collectives_go_on_behind_it(fabric: Fabric, folder: Path) -> None:
    with (
        Group(fabric, "xdp-ring", capacity=1024) as group,
        fabric.hosts["h2"].attach(folder / "count.bpf.c") as first,
        fabric.hosts["h2"].attach(folder / "count.bpf.c", order="last") as last,
    ):
        sums = group.all_reduce([np.ones(1024, np.float32)] * 2)
        assert [float(each.sum()) for each in sums] == [2048, 2048]
        assert first.read("seen") > 0  # the ring's frames, which the dispatcher keeps
        assert last.read("seen") == 0


LENGTH = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
__u64 longest;
SEC("xdp") int measure(struct xdp_md *ctx)
{
	__u64 length = ctx->data_end - ctx->data;
	if (length > longest)
		longest = length;
	return XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
"""
PINNED = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENTRIES);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} counts SEC(".maps");
SEC("xdp") int count(struct xdp_md *ctx)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &(__u32){0});
	if (count)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
"""


@pytest.mark.net
@pytest.mark.fabric(hosts=2, switch="bridge")
def test_pins_go_with_the_last_program_that_has_them(
    fabric: Fabric, workers: Workers, tmp_path: Path
) -> None:
    host, exists = fabric.hosts["h2"], ["test", "-e", "/sys/fs/bpf/counts"]
    small, large = tmp_path / "small.bpf.c", tmp_path / "large.bpf.c"
    small.write_text(PINNED.replace("ENTRIES", "1"))
    large.write_text(PINNED.replace("ENTRIES", "9"))
    first, second = host.attach(small), host.attach(small)
    assert fabric.run("h1", ["ping", "-c", "1", "-W", "5", "h2"]).returncode == 0
    assert first.read("counts") == second.read("counts") == {0: 2}
    with pytest.raises(KernelError, match="couldn't reuse pinned map at '/sys/fs/bpf/counts'"):
        host.attach(large)
    first.close()
    assert fabric.run("h2", exists).returncode == 0
    second.close()
    assert fabric.run("h2", exists).returncode == 1
    with host.attach(large) as corrected:
        assert len(corrected.read("counts")) == 9
    object_, pin = str(compile_file(large)), "/sys/fs/bpf/mine"
    load = ["bpftool", "prog", "load", object_, pin]
    assert fabric.run("h2", load).returncode == 0  # which pins the map, too
    host.attach(large).close()
    assert fabric.run("h2", exists).returncode == 0


@pytest.mark.net
@pytest.mark.fabric(hosts=2, switch="bridge", mtu=9000)
def test_in_the_stack_a_program_sees_whole_frames_also_behind_a_capture(
    fabric: Fabric, workers: Workers, tmp_path: Path
) -> None:
    (tmp_path / "length.bpf.c").write_text(LENGTH)
    host, ping = fabric.hosts["h2"], ["ping", "-c", "1", "-W", "5", "-s", "8000", "h2"]
    with pytest.raises(SpecError, match="with an MTU of 9000"):
        host.attach(tmp_path / "length.bpf.c")
    with host.attach(tmp_path / "length.bpf.c", hook="xdp-generic") as whole:
        assert fabric.run("h1", ping).returncode == 0
        assert whole.read("longest") == 14 + 20 + 8 + 8000
        with capturing(fabric, tmp_path / "x.pcapng", "h2", "--count", "2") as process:
            assert fabric.run("h1", ping).returncode == 0
            assert json.loads(process.communicate(timeout=60)[0])["frames"] == 2
        assert fabric.run("h1", ping).returncode == 0


@pytest.mark.net
@pytest.mark.fabric(hosts=1, switch="bridge")
def test_other_tools_pin_in_a_bpffs_of_the_hosts_own(fabric: Fabric, folder: Path) -> None:
    made, host = str(compile_file(folder / "echo.bpf.c")), fabric.hosts["h1"]
    pin = "/sys/fs/bpf/mine"
    assert fabric.run("h1", ["bpftool", "prog", "load", made, pin]).returncode == 0
    assert fabric.run("h1", ["test", "-e", pin]).returncode == 0
    assert fabric.run("s1", ["test", "-e", pin]).returncode == 1
    assert not os.path.exists(pin)
    device = ["ip", "link", "set", "dev", "eth0"]
    assert fabric.run("h1", [*device, "xdp", "obj", made, "sec", "xdp"]).returncode == 0
    with pytest.raises(KernelError, match=r"EBUSY.*; eth0 is held by program [0-9]+ "):
        host.attach(folder / "echo.bpf.c")
    assert fabric.run("h1", [*device, "xdp", "off"]).returncode == 0


@pytest.fixture
def kept() -> Iterator[str]:
    name = new_run_id()
    assert run_testbed("up", "--hosts", "2", "--run-id", name).returncode == 0
    yield name
    assert run_testbed("down", name).returncode == 0


@pytest.mark.net
def test_on_a_fabric_that_is_up(folder: Path, kept: str) -> None:
    source = str(folder / "count.bpf.c")
    done = run_testbed("attach", "h2", source, "--run", kept, "--rodata", "unit=5", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert {"number": 1, "host": "h2", "function": "count", "hook": "xdp"}.items() <= made.items()
    ping = ["ping", "-c", "1", "-W", "5", "h2"]
    assert run_testbed("exec", "--run", kept, "h1", "--", *ping).returncode == 0
    dump = ["bpftool", "-j", "map", "dump", "id", str(made["maps"]["pairs"])]
    shown = run_testbed("exec", "--run", kept, "h2", "--", *dump)
    assert json.loads(shown.stdout)[0]["formatted"] == {"key": 5, "value": {"a": 7, "b": 8}}
    for arguments, text in (
        (["attach", "h9", source], "host: 'h9' is not in this fabric; hosts are h1, h2"),
        (["attach", "h2", source, "--order", "middle"], "--order: 'middle': must be first or last"),
        (["detach", "h2", "--number", "8"], "--number 8: h2 has no such program: must be 1"),
    ):
        done = run_testbed(*arguments, "--run", kept)
        assert (done.returncode, done.stderr) == (2, f"error: {text}\n")
    made = str(compile_file(folder / "echo.bpf.c"))  # an object
    done = run_testbed("attach", "h1", made, "--run", kept)
    assert done.stdout.startswith("h1: echo is program 2 on eth0 (xdp, first)\n"), done.stderr
    done = run_testbed("detach", "h2", "--run", kept)
    assert done.stdout == "h2: count (program 1) is detached\n"
