// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The ring in XDP: one rank of one group. Reference model: testbed/protocol/ring/rank.py,
 * compared frame by frame by the tests.
 *
 * Chunk c belongs to rank c % ranks, its owner. In the reduce-scatter phase each rank adds its
 * input to the payload; the last one has the sum, stores it and sends it on. In the all-gather
 * phase each rank stores it. Where that phase ends, the frame is free: it becomes the next chunk of
 * the rank that it has reached. So the number of frames in flight stays what it was at the start,
 * no acknowledgement is sent, and no process runs.
 *
 * Each rank makes sure that it receives what the previous rank has sent (ring_stream.h), and
 * retransmits what the next rank lacks: its input, a partial sum from the retransmit buffer, or the
 * result. So a chunk resumes at the hop where it was lost. Partial sums live in frames, and
 * programs never write inputs, so a reduce-scatter phase can also start over (`round`), if a
 * process has refused the result or no buffer has the partial sum.
 *
 * Chunks of a reduce-scatter, an all-gather and a broadcast take one of the phases alone (struct
 * ring_tensor).
 */
#include "ring_submission.h"

/* A frame of this group has arrived on the link. */
SEC("xdp.frags")
int ring_link(struct xdp_md *ctx)
{
	struct ring_work w = {};
	enum ring_verdict outcome;

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	outcome = ring_on_frame(&w);
	ring_note_life(&w);
	if (ring_config.reorder_threshold)
		w.nack_due = ring_look_around(ctx, w.progress, outcome == RING_SEND);
	return ring_leave(&w, outcome, true);
}

/* A kick at the doorbell's far end: multiply it, so that each waiting work request finds a frame.
 * The copies arrive together at the near end and stay together, so each device is polled for many
 * frames at once. If the process sent one kick per request, the softirq of the first kick would
 * keep that frame circulating, and the process would be stuck in its system call.
 *
 * A kick for one work request takes it at once. So does a kick with fragments, which cannot be
 * multiplied: the process sends one for each of its few work requests.
 */
SEC("xdp.frags")
int ring_doorbell(struct xdp_md *ctx)
{
	struct ring_work w = {};
	__u32 waiting;

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	waiting = *(volatile __u32 *)&w.control->sq_tail - *(volatile __u32 *)&w.control->sq_head;
	if (waiting == 1 || (waiting && ring_has_fragments(ctx)))
		bpf_tail_call(ctx, &ring_executor, 0);
	if (waiting > RING_FAN_SMALL) {
		w.frame->flags = RING_FLAG_SPREAD;
		return bpf_redirect_map(&ring_fan_large, 0, BPF_F_BROADCAST);
	}
	return waiting ? bpf_redirect_map(&ring_fan_small, 0, BPF_F_BROADCAST) : XDP_DROP;
}

/* The near end: a copy of a kick takes a work request; a copy of another frame becomes a nack. A
 * frame stays on the CPU where it starts, hop after hop, so each process would load a single CPU.
 * That would be worst for the last rank to enter, which replays the early frames of all ranks. So
 * kicks for many work requests are spread over the CPUs.
 */
SEC("xdp.frags")
int ring_execute(struct xdp_md *ctx)
{
	__u32 here = bpf_get_smp_processor_id();
	struct ring_wr wr;
	struct ring_work w = {};

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	if (w.frame->kind != RING_DOORBELL) /* the copy of a frame that went on: a nack is due */
		return ring_leave(&w, ring_send_due_nack(ctx, w.progress), false);
	if (w.frame->flags & RING_FLAG_SPREAD && ring_config.cpus > 1) {
		__u32 cpu = ring_count_up(&w, RING_SPREAD) % ring_config.cpus;

		if (cpu != here)
			return bpf_redirect_map(&ring_cpus, cpu, XDP_DROP);
	}
	if (!ring_take_wr(&w, &wr))
		return XDP_DROP;
	if (wr.kind == RING_WR_PROBE && wr.extra != RING_ANYWHERE && wr.extra != here) {
		w.frame->kind = RING_PROBE;
		w.frame->target = wr.chunk;
		w.frame->attempt = wr.attempt;
		return bpf_redirect_map(&ring_cpus, wr.extra, XDP_DROP);
	}
	return ring_leave(&w, ring_on_wr(&w, &wr), false);
}

/* Continue on another CPU, with a kick, or with a probe that has to leave from there. */
SEC("xdp.frags/cpumap")
int ring_remote(struct xdp_md *ctx)
{
	struct ring_wr wr = { .kind = RING_WR_PROBE };
	struct ring_work w = {};

	if (!ring_begin(&w, ctx))
		return XDP_DROP;
	if (w.frame->kind == RING_PROBE) {
		wr.chunk = w.frame->target;
		wr.attempt = w.frame->attempt;
	} else if (w.frame->kind != RING_DOORBELL || !ring_take_wr(&w, &wr)) {
		return XDP_DROP;
	}
	return ring_leave(&w, ring_on_wr(&w, &wr), false);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
