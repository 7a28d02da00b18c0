// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Neighbour aggregation in XDP (after PINCH, MLArchSys 2024): embeddings that arrive are added to
 * the accumulators of their vertices' neighbours on this host, and never pass through user space.
 *
 * An atomic operation claims a frame in a bitmap before the frame is added, so a duplicate changes
 * nothing, on whichever CPU it arrives. An acknowledgement is the frame sent back. At its sender it
 * becomes a kick, which sends the frames that the window now has room for (bpf/broadcast.bpf.c), so
 * in steady state no process runs.
 */
#include "pinch_ack.h"
#include "pinch_meet.h"

/* Send the frame where enum pinch_next says. */
static __always_inline int leave(struct xdp_md *ctx, struct pinch_control *c, __u32 next,
				 bool by_link)
{
	struct ring_frame *f;

	if (next & PINCH_ACKNOWLEDGE) {
		if (!pinch_acknowledge(ctx, c, by_link))
			return XDP_DROP;
		if (next & PINCH_GO_ON)
			return bpf_redirect_map(&pinch_both, 0, BPF_F_BROADCAST);
		return by_link ? XDP_TX : bpf_redirect(pinch_config.uplink, 0);
	}
	if (!(next & PINCH_GO_ON))
		return XDP_DROP;
	f = pinch_frame_of(ctx);
	if (!f)
		return XDP_DROP;
	pinch_make_own(f, PINCH_WORK);
	return bpf_redirect(pinch_config.doorbell, 0);
}

/* A handshake has arrived: it is sent back as an answer or, if it was the last missing one, becomes
 * a kick for each flow. */
static __always_inline int on_handshake(struct xdp_md *ctx, struct pinch_control *c)
{
	__u32 next = pinch_on_handshake(ctx, c);
	struct ring_frame *f;

	if (next == PINCH_MET_ANSWER)
		return XDP_TX;
	f = pinch_frame_of(ctx);
	if (next == PINCH_MET_DONE || !f)
		return XDP_DROP;
	f->sender = pinch_config.rank;
	f->flags = PINCH_FLAG_ALL;
	pinch_make_own(f, PINCH_DOORBELL);
	return bpf_redirect_map(&pinch_fan, 0, BPF_F_BROADCAST);
}

static __always_inline int receive(struct xdp_md *ctx, bool by_link)
{
	struct pinch_control *c = pinch_control_of();
	struct ring_frame *f = frame_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	if (!f || !c || !pinch_is_for_me(f))
		return XDP_DROP;
	if (f->kind == PINCH_EMBED)
		return leave(ctx, c, pinch_on_embed(ctx, c, f), by_link);
	if (f->kind == PINCH_ASK)
		return leave(ctx, c, pinch_on_ask(c, f), by_link);
	if (f->kind == PINCH_ACK) {
		if (!pinch_on_ack(ctx, c, f))
			return XDP_DROP;
		f = pinch_frame_of(ctx);
		if (!f)
			return XDP_DROP;
		pinch_make_own(f, PINCH_DOORBELL);
		return bpf_redirect(pinch_config.doorbell, 0);
	}
	if (f->kind == PINCH_HANDSHAKE)
		return on_handshake(ctx, c);
	pinch_count(DROP_BAD_KIND, 1);
	return XDP_DROP;
}

static __always_inline int go_on(struct pinch_control *c)
{
	return pinch_add_slice(c) ? bpf_redirect(pinch_config.doorbell, 0) : XDP_DROP;
}

static __always_inline bool elsewhere(void)
{
	return pinch_config.cpu != PINCH_ANYWHERE && bpf_get_smp_processor_id() != pinch_config.cpu;
}

static __always_inline int hand_over(void)
{
	pinch_count(PINCH_REMOTE, 1);
	return bpf_redirect_map(&pinch_cpus, pinch_config.cpu, XDP_DROP);
}

/* Must the frame stay behind frames of the same sender that arrived on another CPU? */
static __always_inline bool stays_in_order(const struct ring_frame *f)
{
	return f->kind == PINCH_EMBED || f->kind == PINCH_ASK;
}

/* A frame of this group has arrived on the link. */
SEC("xdp.frags")
int pinch_link(struct xdp_md *ctx)
{
	struct pinch_control *c = pinch_control_of();
	struct ring_frame *f = frame_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	if (!f || !stays_in_order(f) || !elsewhere())
		return receive(ctx, true);
	if (!c || !pinch_is_for_me(f))
		return XDP_DROP;
	__sync_fetch_and_add(&c->handed, 1);
	return hand_over();
}

/* The flow for one of several identical kicks, which arrive one after another on one CPU. */
static __always_inline __u32 next_in_fan(void)
{
	__u64 *table = pinch_counters_of();

	return table && pinch_config.fan ? pinch_config.fan_cpu[table[PINCH_FANNED]++ %
								pinch_config.fan % PINCH_MAX_FLOWS]
					 : 0;
}

/* The doorbell's far end: kicks pass to the program that sends; other frames add slices of hubs. */
SEC("xdp.frags")
int pinch_doorbell(struct xdp_md *ctx)
{
	int grow = sizeof(struct ring_frame) + pinch_config.payload - bpf_xdp_get_buff_len(ctx);
	struct pinch_control *c = pinch_control_of();
	struct ring_frame *f = pinch_frame_of(ctx);

	if (!f || !c || pinch_is_foreign(f))
		return XDP_DROP;
	if (f->kind == PINCH_SEND_HANDSHAKES)
		return XDP_PASS;
	if (f->kind == PINCH_DOORBELL) {
		if (f->sender == pinch_config.rank && f->flags & PINCH_FLAG_ALL) {
			f->flow = next_in_fan();
			pinch_make_own(f, PINCH_DOORBELL);
		}
		/* Grow the buffer to a full frame here, so that the program that sends does not
		 * have to. */
		if (grow > 0)
			bpf_xdp_adjust_tail(ctx, grow);
		f = pinch_frame_of(ctx);
		/* A kick that was not an acknowledgement names the CPU that has to send. */
		if (f && f->sender == pinch_config.rank && pinch_config.cpu != PINCH_ANYWHERE &&
		    f->flow != bpf_get_smp_processor_id())
			return bpf_redirect_map(&pinch_cpus, f->flow, XDP_DROP);
		return XDP_PASS;
	}
	if (elsewhere())
		return hand_over();
	return go_on(c);
}

/* Continue on another CPU: the one that aggregates, or the one that a kick names. */
SEC("xdp.frags/cpumap")
int pinch_remote(struct xdp_md *ctx)
{
	struct pinch_control *c = pinch_control_of();
	struct ring_frame *f = pinch_frame_of(ctx);

	if (!f || !c)
		return XDP_DROP;
	if (f->kind == PINCH_DOORBELL)
		return XDP_PASS;
	if (!stays_in_order(f))
		return go_on(c);
	__sync_fetch_and_add(&c->taken, 1);
	return receive(ctx, false);
}

/* The doorbell's near end, where exchanges send nothing. */
SEC("xdp.frags")
int pinch_execute(struct xdp_md *ctx)
{
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
