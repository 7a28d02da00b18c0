/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What both programs of an exchange do with a frame's headers, and with bitmaps whose words carry a generation. */
#pragma once

#include "pinch_maps.h"
#include "lib/word.h"
#include "shared/weights_abi.h"

#define PINCH_TRIES 8 /* for a word that other CPUs change as well */

enum claim { CLAIMED, TAKEN, STALE, CONTENDED };

static __always_inline __u64 *counters_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counters, &zero);
}

static __always_inline void count(enum pinch_counter counter, __u64 by)
{
	__u64 *table = counters_of();

	if (table)
		table[counter] += by;
}

static __always_inline struct pinch_control *control_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

static __always_inline __u32 bits_of(__u64 word, __u32 generation)
{
	return generation_of(word) == generation ? (__u32)word : 0;
}

static __always_inline __u32 popcount(__u32 bits)
{
	bits -= bits >> 1 & 0x55555555;
	bits = (bits & 0x33333333) + (bits >> 2 & 0x33333333);
	return ((bits + (bits >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24;
}

/* Add bits to a word of a bitmap; in `*fresh` those that it did not have. Only ever forward in generations: a frame of an earlier one,
 * which may have been under way in some program while the process went on, finds nothing to change.
 */
static __always_inline enum claim bitmap_add(void *bitmap, __u32 index, __u32 generation, __u32 bits, __u32 *fresh)
{
	__u64 *word = bpf_map_lookup_elem(bitmap, &index);
	__u64 before, after;
	int i;

	*fresh = 0;
	if (!word)
		return STALE;
	for (i = 0; i < PINCH_TRIES; i++) {
		before = *(volatile __u64 *)word;
		if ((__s32)(generation - generation_of(before)) < 0)
			return STALE;
		*fresh = bits & ~bits_of(before, generation);
		if (!*fresh)
			return TAKEN;
		after = (__u64)generation << 32 | bits_of(before, generation) | bits;
		if (__sync_val_compare_and_swap(word, before, after) == before)
			return CLAIMED;
	}
	*fresh = 0;
	return CONTENDED;
}

/* First of the bitmap words that an acknowledgement of this frame has. */
static __always_inline __u32 ack_first(__u32 chunk)
{
	__u32 word = chunk / 32;

	return word > PINCH_ACK_BEHIND ? word - PINCH_ACK_BEHIND : 0;
}

/* Wake the process when all has come, is added, and has been acknowledged: whichever was last comes here. */
static __always_inline void check_complete(struct pinch_control *c, __u32 generation)
{
	__u64 event = generation, met = *(volatile __u64 *)&c->met;

	if (generation_of(met) == generation && *(volatile __u32 *)&c->received == (__u32)met && !*(volatile __u32 *)&c->owed &&
	    *(volatile __u32 *)&c->acked == *(volatile __u32 *)&c->copies)
		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
}

/* The flow that this CPU sends. */
static __always_inline __u32 flow_here(void)
{
	return config.cpu == PINCH_ANYWHERE ? 0 : bpf_get_smp_processor_id();
}

/* The flow that a rank's frames are in. */
static __always_inline __u32 flow_to(__u32 rank)
{
	return config.cpu == PINCH_ANYWHERE ? 0 : config.home[rank % RING_MAX_RANKS];
}

/* The frame that a flow sends next; all ones when it has sent all. What comes before it has been sent. */
static __always_inline __u32 next_of(__u32 flow_number, struct pinch_flow *flow, __u32 next)
{
	__u32 index = flow_number * config.capacity + next;
	__u64 *number = bpf_map_lookup_elem(&schedule, &index);

	return next < flow->total && number ? *number : 0xffffffff;
}

/* Address a frame of this rank's to another. `length` is the payload's. */
static __always_inline void address(struct ring_frame *f, __u32 to, __u32 length)
{
	frame_address(f, &config.peers[config.rank % RING_MAX_RANKS], &config.peers[to % RING_MAX_RANKS], length);
	f->receiver = to;
	f->length = length;
}

/* The frame in the hands of the program, again: helpers make the verifier forget it. */
static __always_inline struct ring_frame *frame_of(struct xdp_md *ctx)
{
	struct ring_frame *f = (void *)(long)ctx->data;

	return (void *)(f + 1) <= (void *)(long)ctx->data_end ? f : NULL;
}

/* A number for the next frame on this CPU's lane. */
static __always_inline __u32 next_serial(void)
{
	__u64 *table = counters_of();

	return table ? ++table[PINCH_SERIAL] : 0;
}

/* The ring's header of a frame of this rank's, but for its receiver, flags, checksum and length. */
static __always_inline void write_head(struct ring_frame *f, __u8 kind, __u32 generation, __u32 chunk, __u8 attempt, __u16 tag)
{
	f->magic = RING_MAGIC;
	f->version = RING_VERSION;
	f->kind = kind;
	f->group = config.group;
	f->cookie = config.cookie;
	f->generation = generation;
	f->chunk = chunk;
	f->attempt = attempt;
	f->hop = 0;
	f->sender = config.rank;
	f->round = 0;
	f->tag = tag;
	f->lane = bpf_get_smp_processor_id();
	f->prev = 0;
}

/* Make the frame at hand one of this host's own, for the doorbell: an enum ring_kind from RING_BELL on. */
static __always_inline void make_own(struct ring_frame *f, __u8 kind)
{
	f->kind = kind;
	f->receiver = config.rank;
	f->checksum = frame_seal(f);
}

static __always_inline bool is_foreign(const struct ring_frame *f)
{
	if (f->cookie == config.cookie && f->version == RING_VERSION && f->group == config.group)
		return false;
	count(PINCH_BAD_COOKIE, 1);
	return true;
}

/* Is a frame of this exchange, for this rank, and from another, whose address it has? A switch that has lost its table brings frames for
 * anybody. What holds here is what the header says: that it is true, `weigh` and the seal tell, before anything is made of it.
 */
static __always_inline bool is_for_me(const struct ring_frame *f)
{
	__u32 sender = f->sender;

	if (is_foreign(f))
		return false;
	if (f->receiver != config.rank || f->ip.destination != config.peers[config.rank % RING_MAX_RANKS].ip) {
		count(PINCH_NOT_MINE, 1);
		return false;
	}
	if (sender >= config.ranks || sender >= RING_MAX_RANKS || sender == config.rank || f->ip.source != config.peers[sender].ip) {
		count(PINCH_BAD_RANK, 1);
		return false;
	}
	return true;
}

/* What a word of a payload, in place `i`, adds to its check. */
static __always_inline __u64 weigh(__u64 word, const __u32 *weight)
{
	return (word & 0xffffffff) * weight[0] + (word >> 32) * weight[1];
}
