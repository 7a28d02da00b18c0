// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Copies the testbed's own frames that arrive on a host's link, for a process that wants to see
 * them: XDP takes these frames before a packet socket sees them. The program replaces the host's
 * own (dispatch.bpf.c) and tail-calls it.
 */
#include "lib/frame.h"
#include "shared/tap_abi.h"

/* The reader creates it, and all hosts share it. When it is full, frames are not copied. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TAP_ROOM);
} frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} behind SEC(".maps");

SEC("xdp.frags")
int tap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 length = bpf_xdp_get_buff_len(ctx), bounded;
	struct tapped *copy;

	if (frame_parse(data, data_end)) {
		copy = bpf_ringbuf_reserve(&frames, sizeof(*copy), 0);
		if (copy) {
			copy->pad = 0;
			copy->length = 0;
			bounded = length;
			if (bounded > TAP_BYTES)
				bounded = 0;
			/* For the verifier: no frame is shorter than its header, and before Linux
			 * 6.8 it does not see that what is not 0 is at least 1. */
			barrier_var(bounded);
			if (bounded >= sizeof(struct net_eth) &&
			    !bpf_xdp_load_bytes(ctx, 0, copy->data, bounded))
				copy->length = bounded;
			bpf_ringbuf_submit(copy, BPF_RB_NO_WAKEUP);
		}
	}
	bpf_tail_call(ctx, &behind, 0);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
