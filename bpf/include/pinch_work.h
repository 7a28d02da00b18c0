/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* For both programs of an exchange: headers, and bitmaps whose words carry a sequence number. */
#pragma once

#include "lib/frame.h"
#include "lib/word.h"
#include "pinch_maps.h"
#include "shared/weights_abi.h"

static __always_inline __u64 *pinch_counters_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&pinch_counters, &zero);
}

static __always_inline void pinch_count(__u32 counter, __u64 by)
{
	__u64 *table = pinch_counters_of();

	if (table)
		table[counter] += by;
}

static __always_inline struct pinch_control *pinch_control_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&pinch_control, &zero);
}

/* The first bitmap word in an acknowledgement of this frame. */
static __always_inline __u32 pinch_ack_first(__u32 number)
{
	__u32 word = number / 32;

	return word > PINCH_ACK_BEHIND ? word - PINCH_ACK_BEHIND : 0;
}

/* Wake the process once everything has arrived, is added, and is acknowledged. The last of these
 * events calls this. */
static __always_inline void pinch_check_complete(struct pinch_control *c, __u32 seq)
{
	__u64 event = seq, met = *(volatile __u64 *)&c->met;

	if (seq_of(met) == seq && *(volatile __u32 *)&c->received == (__u32)met &&
	    !*(volatile __u32 *)&c->owed &&
	    *(volatile __u32 *)&c->acked == *(volatile __u32 *)&c->copies)
		bpf_ringbuf_output(&pinch_events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
}

/* This CPU's bank. */
static __always_inline __u32 pinch_bank_here(void)
{
	return pinch_config.cpu == PINCH_ANYWHERE ? bpf_get_smp_processor_id() % pinch_config.banks
						  : 0;
}

/* The flow that this CPU sends. */
static __always_inline __u32 pinch_flow_here(void)
{
	return pinch_config.cpu == PINCH_ANYWHERE ? 0 : bpf_get_smp_processor_id();
}

/* The flow to which frames for a rank belong. */
static __always_inline __u32 pinch_flow_to(__u32 rank)
{
	return pinch_config.cpu == PINCH_ANYWHERE ? 0 : pinch_config.home[rank % RING_MAX_RANKS];
}

/* The number of the frame that a flow sends next; all ones once it has sent all of them. */
static __always_inline __u32 pinch_next_of(__u32 flow_number, struct pinch_flow *flow, __u32 next)
{
	__u32 index = flow_number * pinch_config.capacity + next;
	__u64 *number = bpf_map_lookup_elem(&pinch_schedule, &index);

	return next < flow->total && number ? *number : 0xffffffff;
}

/* Address a frame of this rank to another. `length` is that of the payload. */
static __always_inline void pinch_address(struct ring_frame *f, __u32 to, __u32 length)
{
	frame_address(f, &pinch_config.peers[pinch_config.rank % RING_MAX_RANKS],
		      &pinch_config.peers[to % RING_MAX_RANKS], length);
	f->receiver = to;
	f->length = length;
}

/* Reload the frame's pointer, which a helper call invalidates. */
static __always_inline struct ring_frame *pinch_frame_of(struct xdp_md *ctx)
{
	struct ring_frame *f = (void *)(long)ctx->data;

	return (void *)(f + 1) <= (void *)(long)ctx->data_end ? f : NULL;
}

/* The number of the next frame of this CPU's stream. */
static __always_inline __u32 pinch_next_serial(void)
{
	__u64 *table = pinch_counters_of();

	return table ? ++table[PINCH_SERIAL] : 0;
}

/* Write the header of a frame of this rank, except for its number or what else is there, receiver,
 * flags, checksum and length. */
static __always_inline void pinch_write_head(struct ring_frame *f, __u8 kind, __u32 seq,
					     __u8 attempt, __u16 tag)
{
	f->magic = RING_MAGIC;
	f->version = RING_VERSION;
	f->kind = kind;
	f->group = pinch_config.group;
	f->cookie = pinch_config.cookie;
	f->seq = seq;
	f->attempt = attempt;
	f->hop = 0;
	f->sender = pinch_config.rank;
	f->round = 0;
	f->tag = tag;
	f->stream = bpf_get_smp_processor_id();
}

/* Turn the frame into one for this host's doorbell. `kind` is PINCH_DOORBELL or a later one of enum
 * pinch_kind. */
static __always_inline void pinch_make_own(struct ring_frame *f, __u8 kind)
{
	f->kind = kind;
	f->receiver = pinch_config.rank;
	f->checksum = frame_seal(f);
}

static __always_inline bool pinch_is_foreign(const struct ring_frame *f)
{
	if (f->cookie == pinch_config.cookie && f->version == RING_VERSION &&
	    f->group == pinch_config.group)
		return false;
	pinch_count(DROP_BAD_COOKIE, 1);
	return true;
}

/* Does the header belong to this exchange, is the frame for this rank, and is it from another
 * rank's address? A switch that has lost its table delivers frames for other ranks, too. This
 * checks what the header claims; check and seal show whether the header is intact.
 */
static __always_inline bool pinch_is_for_me(const struct ring_frame *f)
{
	__u32 sender = f->sender;

	if (pinch_is_foreign(f))
		return false;
	if (f->receiver != pinch_config.rank ||
	    f->ip.destination != pinch_config.peers[pinch_config.rank % RING_MAX_RANKS].ip) {
		pinch_count(DROP_BAD_RECEIVER, 1);
		return false;
	}
	/* For the verifier of Linux 6.1: it forgets what a check says of copies on the stack, so
	 * the compiler must not rely on this one to leave out `% RING_MAX_RANKS` elsewhere. */
	barrier_var(sender);
	if (sender >= pinch_config.ranks || sender >= RING_MAX_RANKS ||
	    sender == pinch_config.rank || f->ip.source != pinch_config.peers[sender].ip) {
		pinch_count(DROP_BAD_RANK, 1);
		return false;
	}
	return true;
}

/* What a word of a payload adds to its check. `weight` has the weights of the word's two halves. */
static __always_inline __u64 pinch_weigh(__u64 word, const __u32 *weight)
{
	return (word & 0xffffffff) * weight[0] + (word >> 32) * weight[1];
}
