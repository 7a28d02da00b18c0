// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Decides the fates of packets in memory, many per run; testbed/faults/fate.py is compared with it.
 * */
#include "fate.h"

struct fate_case {
	struct fault_packet packet;
	__u32 length;
	__u32 reserved;
	struct fault_verdict verdict;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fate_case);
} cases SEC(".maps");

struct batch {
	struct fault_rules *rules;
};

static long judge_case(__u32 number, void *context)
{
	struct batch *batch = context;
	struct fate_case *one = bpf_map_lookup_elem(&cases, &number);

	if (!one)
		return 1;
	fate_judge(batch->rules, &one->packet, one->length, &one->verdict);
	return 0;
}

/* Decide all cases. */
SEC("xdp")
int fate_batch(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct batch batch = { .rules = bpf_map_lookup_elem(&rules, &zero) };

	if (!batch.rules)
		return XDP_ABORTED;
	return bpf_loop(1 << 20, judge_case, &batch, 0) > 0 ? XDP_PASS : XDP_ABORTED;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
