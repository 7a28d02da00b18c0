"""A scenario's own programs: what they hold at the end is in the manifest, and never in its way."""

import json
from pathlib import Path

import pytest

from testbed.datapath.programs import Attached
from testbed.run import run_scenario
from testbed.scenario import parse_scenario

RING = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } ring SEC(".maps");
__u64 seen;
SEC("xdp") int count(struct xdp_md *ctx)
{
	__sync_fetch_and_add(&seen, 1);
	bpf_ringbuf_output(&ring, &seen, 8, 0);
	return XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
"""


LARGE = """
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 70000);
	__type(key, __u32);
	__type(value, __u64);
} many SEC(".maps");
__u8 wide[1 << 20];
SEC("xdp") int other(struct xdp_md *ctx)
{
	__u32 key = 1;
	return bpf_map_lookup_elem(&many, &key) && wide[ctx->rx_queue_index & 7] ? XDP_DROP : XDP_PASS;
}
"""


@pytest.mark.net
def test_what_cannot_be_read_or_detached_takes_no_results(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = Attached.close

    def fail(self: Attached) -> None:
        closed(self)
        raise RuntimeError("what fails at the end")

    monkeypatch.setattr(Attached, "close", fail)
    (tmp_path / "ring.bpf.c").write_text(RING + LARGE)
    tables = {
        "scenario": {"name": "p", "workload": "tests.support.summing:WORKLOAD"},
        "fabric": {"hosts": 2},
        "summing": {"rounds": 1, "backends": ["xdp-ring"]},
        "programs": [{"host": "h2", "file": str(tmp_path / "ring.bpf.c"), "section": "count"}],
    }
    run = run_scenario(parse_scenario(tables), tmp_path / "run", quiet=True)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    (program,) = manifest["programs"]
    assert program["values"]["seen"] > 0
    reason = "ring, a map of type ringbuf, cannot be read: it has no keys"
    assert program["unread"] == {
        "ring": reason,
        "many": "many, a map of type array, has more than 65536 entries: too many to be kept",
        "wide": "wide has 11,534,338 bytes as text: too many to be kept",
    }
    assert f"programs[0] of h2: {reason}" in caplog.text
    assert "programs[0] of h2: RuntimeError: what fails at the end" in caplog.text
