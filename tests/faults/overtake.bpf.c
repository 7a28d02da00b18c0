// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Record a frame that passes on link 0 in the maps that a delay line reads, as the fault engine's
 * programs do for frames that they let pass. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct link {
	__u64 passed;
	__u64 holding;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct link);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} wakeups SEC(".maps");

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	__u32 index = 0;
	struct link *link = bpf_map_lookup_elem(&links, &index);

	if (!link)
		return XDP_ABORTED;
	__sync_fetch_and_add(&link->passed, 1);
	if (link->holding)
		bpf_ringbuf_output(&wakeups, &index, sizeof(index), 0);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
