"""The kernel layer itself: errors carry the messages of clang, libbpf and the verifier; maps,
constants, test runs.
"""

import ctypes
import threading

import numpy as np
import pytest

from testbed.core.errors import KernelError
from testbed.kernel import XDP_DROP, XDP_PASS, XDP_TX, BpfObject, compile, compile_bpf

CONSTANT = 0x0123456789ABCDEF
PROGRAM = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile struct { __u64 constant; __u32 verdict; __u32 pad; } config = {};

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 1);
     __type(key, __u32); __type(value, __u32); } memory SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1);
     __type(key, __u32); __type(value, __u64); } per_cpu SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4);
     __type(key, __u32); __type(value, __u32); } table SEC(".maps");

SEC("xdp") int verdict(struct xdp_md *ctx)
{
    __u32 zero = 0;
    __u64 *count = bpf_map_lookup_elem(&per_cpu, &zero);
    __u32 *word = bpf_map_lookup_elem(&memory, &zero);
    __u8 *data = (void *)(long)ctx->data;

    if (count)
        *count += 1;
    if (word)
        *word += 1;
    if (data + 9 <= (__u8 *)(long)ctx->data_end) {
        *(__u64 *)data = config.constant;
        data[8] += 1;
    }
    return config.verdict;
}

char LICENSE[] SEC("license") = "GPL";
"""  # noqa: E501
REFUSED = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int reads_beyond(struct xdp_md *ctx) { return *(__u8 *)(long)ctx->data; }
char LICENSE[] SEC("license") = "GPL";
"""


class Constants(ctypes.Structure):
    _fields_ = [
        ("constant", ctypes.c_uint64),
        ("verdict", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder of programs in place of ``bpf/``, and one for the compiled objects."""
    monkeypatch.setattr(compile, "BPF", tmp_path)
    monkeypatch.setattr(compile, "BUILD", tmp_path / "build")
    (tmp_path / "sample.bpf.c").write_text(PROGRAM)
    return tmp_path


def open_sample(verdict: int = XDP_PASS, **options) -> BpfObject:
    return BpfObject("sample", rodata=Constants(CONSTANT, verdict), **options)


def test_compiles_once_and_again_when_source_or_header_changes(sources) -> None:
    first = compile_bpf("sample")
    stamp = first.stat().st_mtime_ns
    assert compile_bpf("sample") == first
    assert first.stat().st_mtime_ns == stamp
    (sources / "include").mkdir()
    (sources / "include" / "new.h").write_text("\n")
    assert compile_bpf("sample") != first


def test_compiler_errors_are_reported_verbatim(sources) -> None:
    (sources / "broken.bpf.c").write_text("int broken(void) { return nothing; }\n")
    with pytest.raises(
        KernelError, match=r"(?s)clang refused bpf/broken.bpf.c:.*undeclared identifier 'nothing'"
    ):
        compile_bpf("broken")
    assert not list((sources / "build").rglob("*.o"))
    with pytest.raises(KernelError, match="no BPF program 'absent': bpf/ has broken, sample"):
        compile_bpf("absent")


@pytest.mark.kernel
def test_the_error_contains_the_verifiers_log(sources) -> None:
    (sources / "refused.bpf.c").write_text(REFUSED)
    with pytest.raises(
        KernelError, match=r"(?s)load refused: EACCES .*verifier log.*invalid access to packet"
    ):
        BpfObject("refused")


@pytest.mark.kernel
@pytest.mark.parametrize("verdict", [XDP_DROP, XDP_PASS, XDP_TX])
def test_programs_have_constants_and_return_verdicts_and_packets(sources, verdict) -> None:
    with open_sample(verdict) as sample:
        run = sample.programs["verdict"].test_run(bytes(64))
        assert run.retval == verdict
        assert run.data == CONSTANT.to_bytes(8, "little") + b"\x01" + bytes(55)
        # Each run gets the packet that the previous one left.
        again = sample.programs["verdict"].test_run(bytes(64), repeat=7)
        assert again.data[8] == 7
        assert again.duration_ns > 0
        with pytest.raises(KernelError, match=r"test run of verdict: EINVAL"):
            sample.programs["verdict"].test_run(bytes(13))


@pytest.mark.kernel
def test_constants_that_do_not_fit_are_refused(sources) -> None:
    with pytest.raises(KernelError, match=r"sample has 16 bytes of constants, not 17"):
        BpfObject("sample", rodata=bytes(17))


@pytest.mark.kernel
def test_views_share_the_kernels_memory(sources) -> None:
    with open_sample(max_entries={"memory": 5}) as sample:
        memory = sample.maps["memory"]
        view = memory.view(np.uint32)
        assert view.shape == (5, 2)  # elements are 8 bytes apart, whatever their size
        view[0, 0] = 41
        sample.programs["verdict"].test_run(bytes(64))
        assert view[0, 0] == 42
        assert memory.lookup(0) == (42).to_bytes(4, "little")
        memory.update(4, 9)
        assert view[4, 0] == 9
        with pytest.raises(KernelError, match="map table is not mmapable"):
            sample.maps["table"].view()


@pytest.mark.kernel
def test_views_outlive_the_object(sources) -> None:
    with open_sample() as sample:
        view = sample.maps["memory"].view(np.uint32)
    view[0, 0] = 7
    assert view[0, 0] == 7


@pytest.mark.kernel
def test_a_table_is_accessed_by_key(sources) -> None:
    with open_sample() as sample:
        table = sample.maps["table"]
        with pytest.raises(KeyError):
            table.lookup(1)
        for key in (3, 1, 2):
            table.update(key, 10 * key)
        assert sorted(table.keys()) == [key.to_bytes(4, "little") for key in (1, 2, 3)]
        table.delete(1)
        table.delete(1)
        assert table.lookup((2).to_bytes(4, "little")) == (20).to_bytes(4, "little")
        with pytest.raises(KernelError, match=r"map table takes values of 4 bytes, not 3"):
            table.update(1, b"abc")
        table.update(7, 0)
        table.update(8, 0)
        with pytest.raises(KernelError, match=r"update 9 in map table: E2BIG"):
            table.update(9, 0)


@pytest.mark.kernel
def test_a_map_can_have_values_per_cpu(sources) -> None:
    """One value per possible CPU; their sum is the count over all CPUs."""
    with open_sample() as sample:
        runs = 5
        threads = [
            threading.Thread(target=sample.programs["verdict"].test_run, args=(bytes(64),))
            for _ in range(runs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = np.frombuffer(sample.maps["per_cpu"].lookup(0), np.uint64)
        assert values.size == sample.maps["per_cpu"].per_cpu
        assert values.sum() == runs


@pytest.mark.kernel
def test_maps_are_sized_and_shared(sources) -> None:
    with (
        open_sample(max_entries={"memory": 3}) as one,
        open_sample(max_entries={"memory": 3}, reuse={"memory": one.maps["memory"]}) as two,
    ):
        two.programs["verdict"].test_run(bytes(64))
        assert one.maps["memory"].lookup(0) == (1).to_bytes(4, "little")


@pytest.mark.kernel
def test_unknown_names_are_refused(sources) -> None:
    with pytest.raises(KernelError, match=r"sample has no map 'memroy': it has .*memory"):
        open_sample(max_entries={"memroy": 3})
    with pytest.raises(KernelError, match=r"sample has no program 'verdcit': it has .*verdict"):
        open_sample(programs=["verdcit"])


@pytest.mark.kernel
def test_only_the_chosen_programs_are_loaded() -> None:
    with BpfObject("probe", programs=["probe_pass"]) as probe:
        assert [*probe.programs] == ["probe_pass"]
        assert probe.programs["probe_pass"].test_run(bytes(64)).retval == XDP_PASS


@pytest.mark.kernel
def test_attaching_to_a_missing_device_fails(sources) -> None:
    with (
        open_sample() as sample,
        pytest.raises(KernelError, match="attach verdict to the device with index 2147483647"),
    ):
        sample.programs["verdict"].attach_xdp(0x7FFFFFFF)
