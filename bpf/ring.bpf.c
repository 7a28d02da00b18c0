// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Ring all-reduce in XDP: one rank of one group. Twin: testbed/protocol/ring.py, compared frame by frame by the tests.
 *
 * Chunk c belongs to rank c % ranks, its owner. Lap one: each rank adds its input to the payload. The last rank of lap one has
 * the sum, stores it, and sends it on; lap two: each rank stores it. Where lap two ends, the frame is at liberty: it becomes
 * the next chunk of the rank that it has reached. So the number of frames under way stays what the ranks rang for at the
 * start, no acknowledgement is sent, and no process runs.
 *
 * Partial sums live in the frame and inputs are never written here, so doing a lap again gives the same sum. A rank that holds a
 * result answers from it. Two CPUs may work on a frame and its duplicate at once: storing begins with an atomic claim, and
 * whoever reads memory that the next collective may overwrite looks afterwards whether it has begun.
 */
#include "ring_orders.h"

/* A frame of this group has come in by the link. */
SEC("xdp")
int ring_link(struct xdp_md *ctx)
{
	struct work w = {};

	return begin(&w, ctx) ? leave(&w, on_frame(&w), true) : XDP_DROP;
}

/* The process has rung: make as many frames of the bell as there are orders. They arrive together, at the doorbell's near end, and
 * stay together, so that each device is polled for many frames at once. A process that rang for each order would be kept
 * in its first system call by the softirq that carries the first frame round and round.
 */
SEC("xdp")
int ring_bell(struct xdp_md *ctx)
{
	struct work w = {};
	__u32 waiting;

	if (!begin(&w, ctx))
		return XDP_DROP;
	waiting = *(volatile __u32 *)&w.control->ordered - *(volatile __u32 *)&w.control->taken;
	if (waiting > RING_FAN_SMALL) {
		w.frame->flags = RING_FLAG_SPREAD;
		return bpf_redirect_map(&fan_large, 0, BPF_F_BROADCAST);
	}
	return waiting ? bpf_redirect_map(&fan_small, 0, BPF_F_BROADCAST) : XDP_DROP;
}

/* One of those frames, or a frame's copy that is to ask for what is missing. A frame stays on the CPU where it begins, lap after lap,
 * and so would all that this process rings for: the rank that comes last, which holds everybody's parked frames, would set one CPU
 * to work alone.
 */
SEC("xdp")
int ring_order(struct xdp_md *ctx)
{
	struct work w = {};

	if (!begin(&w, ctx))
		return XDP_DROP;
	if (w.frame->kind != RING_BELL) /* the copy of a frame that has gone on */
		return leave(&w, on_ask(&w), false);
	if (w.frame->flags & RING_FLAG_SPREAD && config.cpus > 1) {
		__u32 cpu = count_up(&w, RING_SPREAD) % config.cpus;

		if (cpu != bpf_get_smp_processor_id())
			return bpf_redirect_map(&cpus, cpu, XDP_DROP);
	}
	return leave(&w, on_order(&w), false);
}

/* The same on another CPU. */
SEC("xdp/cpumap")
int ring_remote(struct xdp_md *ctx)
{
	struct work w = {};

	return begin(&w, ctx) && w.frame->kind == RING_BELL ? leave(&w, on_order(&w), false) : XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
