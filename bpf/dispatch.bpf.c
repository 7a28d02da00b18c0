// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The programs attached to a host's devices: they look up the group that a frame belongs to, and
 * tail-call that group's own program. So groups come and go while the devices keep their programs.
 */
#include "lib/frame.h"

#include <linux/pkt_cls.h>

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, RING_MAX_GROUPS);
	__type(key, __u32);
	__type(value, __u32);
} groups SEC(".maps"), doorbells SEC(".maps"), executors SEC(".maps"), senders SEC(".maps");

/* What follows on the link, on frames that are not ours: see testbed/datapath/chain.py. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} behind SEC(".maps");

/* Frames with our port for groups that this host is not in. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} strangers SEC(".maps");

static __always_inline int dispatch(struct xdp_md *ctx, void *table, int otherwise)
{
	struct ring_frame *frame =
		frame_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	__u64 *count;
	__u32 zero = 0;

	if (!frame)
		return otherwise;
	bpf_tail_call(ctx, table, frame->group);
	count = bpf_map_lookup_elem(&strangers, &zero);
	if (count)
		*count += 1;
	return XDP_DROP;
}

/* On the link: frames that are not ours go to the host's own network stack. */
SEC("xdp.frags")
int dispatch_link(struct xdp_md *ctx)
{
	int verdict = dispatch(ctx, &groups, XDP_PASS);

	if (verdict == XDP_PASS)
		bpf_tail_call(ctx, &behind, 0);
	return verdict;
}

/* On the doorbell's far end: only kicks belong there. */
SEC("xdp.frags")
int dispatch_doorbell(struct xdp_md *ctx)
{
	return dispatch(ctx, &doorbells, XDP_DROP);
}

/* On its near end, where the frames that the far end made from a kick return. */
SEC("xdp.frags")
int dispatch_execute(struct xdp_md *ctx)
{
	return dispatch(ctx, &executors, XDP_DROP);
}

/* On the far end again, after its XDP program: frames that a group's XDP program passed are for its
 * TC program. */
SEC("tc")
int dispatch_send(struct __sk_buff *skb)
{
	struct ring_frame frame;

	if (!bpf_skb_load_bytes(skb, 0, &frame, sizeof(frame)) && frame_parse(&frame, &frame + 1))
		bpf_tail_call(skb, &senders, frame.group);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
