// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Ring all-reduce in XDP: one rank of one group. Reference model: testbed/protocol/ring/rank.py, compared frame by frame by the tests.
 *
 * Chunk c belongs to rank c % ranks, its owner. Reduce-scatter phase: each rank adds its input to the payload. The last rank of the reduce-scatter phase has
 * the sum, stores it, and sends it on; the all-gather phase: each rank stores it. Where the all-gather phase ends, the frame is at liberty: it becomes
 * the next chunk of the rank that it has reached. So the number of frames under way stays what the ranks rang for at the
 * start, no acknowledgement is sent, and no process runs.
 *
 * Each rank sees to it that it gets what the rank before has sent (ring_stream.h), and sends again what the rank behind lacks: its input, a partial sum
 * that it keeps, or the result. So a phase goes on from where it broke. Partial sums live in frames and inputs are never written here, so that the reduce-scatter phase
 * can also start over (`round`): what a process has refused, and what nobody keeps.
 */
#include "ring_submission.h"

/* A frame of this group has come in by the link. */
SEC("xdp")
int ring_link(struct xdp_md *ctx)
{
	struct ring_work w = {};
	enum ring_verdict outcome;

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	outcome = ring_on_frame(&w);
	if (ring_config.reorder_threshold)
		ring_look_around(&w);
	return ring_leave(&w, outcome, true);
}

/* The process has kicked: make as many frames of the kick as there are work requests. They arrive together, at the doorbell's near end, and
 * stay together, so that each device is polled for many frames at once. A process that kicked for each one would be kept
 * in its first system call by the softirq that carries the first frame round and round.
 */
SEC("xdp")
int ring_doorbell(struct xdp_md *ctx)
{
	struct ring_work w = {};
	__u32 waiting;

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	waiting = *(volatile __u32 *)&w.control->sq_tail - *(volatile __u32 *)&w.control->sq_head;
	if (waiting > RING_FAN_SMALL) {
		w.frame->flags = RING_FLAG_SPREAD;
		return bpf_redirect_map(&ring_fan_large, 0, BPF_F_BROADCAST);
	}
	return waiting ? bpf_redirect_map(&ring_fan_small, 0, BPF_F_BROADCAST) : XDP_DROP;
}

/* One of those frames, or a frame's copy that is to ask for what is missing. A frame stays on the CPU where it begins, hop after hop,
 * and so would all that this process kicks for: the rank that comes last, which holds everybody's early frames, would set one CPU
 * to work alone.
 */
SEC("xdp")
int ring_execute(struct xdp_md *ctx)
{
	__u32 here = bpf_get_smp_processor_id();
	struct ring_wr wr;
	struct ring_work w = {};

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	if (w.frame->kind != RING_DOORBELL) /* the copy of a frame that has gone on */
		return ring_leave(&w, ring_send_due_nack(&w), false);
	if (w.frame->flags & RING_FLAG_SPREAD && ring_config.cpus > 1) {
		__u32 cpu = ring_count_up(&w, RING_SPREAD) % ring_config.cpus;

		if (cpu != here)
			return bpf_redirect_map(&ring_cpus, cpu, XDP_DROP);
	}
	if (!ring_take_wr(&w, &wr))
		return XDP_DROP;
	if (wr.kind == RING_WR_PROBE && wr.extra != RING_ANYWHERE && wr.extra != here) {
		w.frame->kind = RING_PROBE;
		w.frame->chunk = wr.chunk;
		w.frame->attempt = wr.attempt;
		return bpf_redirect_map(&ring_cpus, wr.extra, XDP_DROP);
	}
	return ring_leave(&w, ring_on_wr(&w, &wr), false);
}

/* The same on another CPU: a kick, or a probe that is to go out from there. */
SEC("xdp/cpumap")
int ring_remote(struct xdp_md *ctx)
{
	struct ring_wr wr = { .kind = RING_WR_PROBE };
	struct ring_work w = {};

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	if (w.frame->kind == RING_PROBE) {
		wr.chunk = w.frame->chunk;
		wr.attempt = w.frame->attempt;
	} else if (w.frame->kind != RING_DOORBELL || !ring_take_wr(&w, &wr)) {
		return XDP_DROP;
	}
	return ring_leave(&w, ring_on_wr(&w, &wr), false);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
