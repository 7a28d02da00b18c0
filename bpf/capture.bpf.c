// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Copies the frames that arrive at one end of a link: XDP takes most of them before a packet socket
 * sees them. The program takes the place of another one on its link and tail-calls that one
 * (testbed/capture/order.py).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "shared/capture_abi.h"

const volatile struct capture_config config = {};

/* The reader creates it, and all ends share it. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CAPTURE_ROOM);
} frames SEC(".maps");

/* By the name of this map, any process knows a program of a capture, and reads what follows it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} capture_behind SEC(".maps");

struct copy {
	struct captured head;
	__u8 data[CAPTURE_BYTES];
};

/* Records have the length of their frames, and so cannot be written in place. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct copy);
} scratch SEC(".maps");

/* Frames for which there was no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline int copy_and_hand_on(struct xdp_md *ctx)
{
	__u64 length = bpf_xdp_get_buff_len(ctx), copied = length;
	__u32 zero = 0;
	struct copy *copy = bpf_map_lookup_elem(&scratch, &zero);
	__u64 *missed = bpf_map_lookup_elem(&lost, &zero);

	if (copied > config.snap)
		copied = config.snap;
	/* No frame is shorter than its header, and the verifier before Linux 6.8 does not see that
	 * what is not 0 is at least 1. */
	if (copy && copied >= ETH_HLEN && copied <= CAPTURE_BYTES &&
	    !bpf_xdp_load_bytes(ctx, 0, copy->data, copied)) {
		copy->head.time = bpf_ktime_get_ns();
		copy->head.end = config.end;
		copy->head.length = length;
		copy->head.copied = copied;
		copy->head.pad = 0;
		if (bpf_ringbuf_output(&frames, copy, sizeof(copy->head) + copied,
				       BPF_RB_NO_WAKEUP) &&
		    missed)
			__sync_fetch_and_add(missed, 1);
	}
	bpf_tail_call(ctx, &capture_behind, 0);
	return XDP_PASS;
}

/* One of these is loaded: the kernel lets only programs hand on to each other that agree whether
 * frames come in pieces.
 */
SEC("xdp.frags")
int capture(struct xdp_md *ctx)
{
	return copy_and_hand_on(ctx);
}

SEC("xdp")
int capture_whole(struct xdp_md *ctx)
{
	return copy_and_hand_on(ctx);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
