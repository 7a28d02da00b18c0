/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One frame in the hands of a ring program: what is known about it, and how it leaves. */
#pragma once

#include "ring.h"
#include "ring_maps.h"

/* Verdicts of this file: the frame is ready to leave by the uplink, or it is done with. */
enum outcome { GONE, SEND };

/* What a frame with data is about; as `prev` of a frame has it. */
enum stage { PARTIAL, RESULT };

struct work {
	struct xdp_md *ctx;
	struct ring_frame *frame;
	struct ring_control *control;
	struct ring_chunk *chunk;
	struct ring_lane *lane;
	__u64 *counters;
	__u64 progress; /* as it was when work on this frame began */
	__u32 index;	/* of the chunk */
	__u32 length;	/* of the payload of frames in this generation */
	bool asks;	/* there is something to ask for */
};

static __always_inline __u64 count_up(struct work *w, enum ring_counter counter)
{
	return ++w->counters[counter];
}

static __always_inline void count(struct work *w, enum ring_counter counter)
{
	count_up(w, counter);
}

static __always_inline enum outcome drop(struct work *w, enum ring_counter reason)
{
	count(w, reason);
	return GONE;
}

static __always_inline __u32 generation_of(__u64 word)
{
	return word >> 32;
}

/* 0 means "none", so it is left out when the number wraps, and 1 with it: neighbours differ in their lowest bit. */
static __always_inline __u32 generation_after(__u32 generation)
{
	return generation == 0xffffffff ? 2 : generation + 1;
}

/* Is `generation` the earlier one (RFC 1982)? */
static __always_inline bool is_before(__u32 generation, __u32 other)
{
	return (__s32)(generation - other) < 0;
}

/* Would a word of a chunk go forward? Within a generation its lower half only grows. A word that is 0 was never written. */
static __always_inline bool is_forward(__u64 from, __u64 to)
{
	__u32 before = generation_of(from), after = generation_of(to);

	return !from || is_before(before, after) || (before == after && (__u32)from < (__u32)to);
}

/* Move a word forward, unless somebody else has moved it. */
static __always_inline bool advance(__u64 *word, __u64 from, __u64 to)
{
	return is_forward(from, to) && __sync_val_compare_and_swap(word, from, to) == from;
}

static __always_inline __u64 word_of(__u32 generation, __u32 lower)
{
	return (__u64)generation << 32 | lower;
}

static __always_inline __u32 result_of(__u8 round, enum ring_result_state state)
{
	return (__u32)round << 8 | state;
}

static __always_inline __u64 read_word(const __u64 *word)
{
	return *(const volatile __u64 *)word;
}

/* The round of a result word. */
static __always_inline __u8 round_of(__u64 word)
{
	return word >> 8;
}

static __always_inline enum ring_result_state state_of(__u64 word)
{
	return word & 0xff;
}

static __always_inline struct ring_tensor *tensor_of(struct work *w, __u32 generation)
{
	return &w->control->tensors[generation & 1];
}

static __always_inline __u32 rank_after(__u32 rank)
{
	return rank + 1 >= config.ranks ? 0 : rank + 1;
}

static __always_inline __u32 rank_before(__u32 rank)
{
	return rank ? rank - 1 : config.ranks - 1;
}

static __always_inline __u32 owner_of(__u32 index)
{
	return index % config.ranks;
}

static __always_inline bool is_mine(__u32 index)
{
	return owner_of(index) == config.rank;
}

/* Steps from the owner of a chunk to a rank: of its first lap so many are done when it comes there. */
static __always_inline __u32 steps_to(__u32 index, __u32 rank)
{
	__u32 owner = owner_of(index);

	return rank >= owner ? rank - owner : rank + config.ranks - owner;
}

/* Steps that a result takes to a rank: from the rank before the owner, where it comes to be. To that one itself it is once round: only who has
 * refused its own sum gets one from another.
 */
static __always_inline __u32 result_steps_to(__u32 index, __u32 rank)
{
	return steps_to(index, rank) + 1;
}

static __always_inline __u32 now_us(void)
{
	return bpf_ktime_get_ns() / 1000;
}

/* Has a frame about the chunk been sent again a moment ago? All that lack it ask at once, if they ask its owner. */
static __always_inline bool too_soon(struct work *w)
{
	return !config.upstream && w->chunk->resent_us && now_us() - w->chunk->resent_us < w->control->holdoff_us;
}

/* Has this rank's process verified all results of a generation? Then what this rank holds of them is good. It has if it has gone on. */
static __always_inline bool is_settled(struct work *w, __u32 generation)
{
	return *(volatile __u32 *)&w->control->settled == generation || is_before(generation, generation_of(w->progress));
}

/* Has the process begun another collective since this frame's work began? Then what was read may be torn. */
static __always_inline bool overtaken(struct work *w)
{
	barrier();
	return generation_of(read_word(&w->control->progress)) != generation_of(w->progress);
}

/* The frame, again: helpers make the verifier forget it. */
static __always_inline bool reload(struct work *w)
{
	w->frame = (void *)(long)w->ctx->data;
	return (void *)(w->frame + 1) <= (void *)(long)w->ctx->data_end;
}

/* Make the frame as long as its headers and `length` bytes of payload. Its pointers must be looked up again afterwards. */
static __always_inline bool resize(struct work *w, __u32 length)
{
	int have = w->ctx->data_end - w->ctx->data;
	int want = sizeof(struct ring_frame) + length;

	return (have == want || !bpf_xdp_adjust_tail(w->ctx, want - have)) && reload(w);
}

static __always_inline __u32 item_of(__u32 index, __u8 round, enum stage stage)
{
	return index << RING_CHUNK_SHIFT | (__u32)round << RING_ROUND_SHIFT | stage;
}

/* Have the frame name the latest one that was sent on this CPU, if that is of its generation or of the one before. */
static __always_inline void name_latest(struct work *w, __u32 generation)
{
	struct ring_frame *f = w->frame;

	f->prev = RING_NOTHING;
	if (!w->lane || !w->lane->generation)
		return;
	if (w->lane->generation == generation) {
		f->prev = w->lane->prev;
	} else if (generation_after(w->lane->generation) == generation) {
		f->prev = w->lane->prev;
		f->flags |= RING_FLAG_EARLIER;
	}
}

/* Give the frame, which is sent for the first time, its place in the order of this CPU's frames. */
static __always_inline void enlist(struct work *w, __u32 generation, __u32 index, enum stage stage)
{
	struct ring_chunk *chunk = w->chunk;
	struct ring_frame *f = w->frame;

	f->flags = 0;
	name_latest(w, generation);
	if (w->lane) {
		w->lane->generation = generation;
		w->lane->prev = item_of(index, f->round, stage);
	}
	if (chunk) {
		chunk->before[stage] = f->flags ? RING_NOTHING : f->prev;
		chunk->attempt = f->attempt;
	}
}

/* Address the frame. Its fields and payload are in place but for the seal; `sum` is that of the payload. */
static __always_inline enum outcome send(struct work *w, __u32 to, __u32 length, __u64 sum)
{
	const volatile struct ring_peer *peer, *self = &config.peers[config.rank];
	struct ring_frame *f = w->frame;
	__u16 total = bpf_htons(sizeof(*f) - sizeof(f->eth) + length);
	__u32 fold;

	to &= RING_MAX_RANKS - 1;
	barrier_var(to); /* clang would leave the mask out where it knows the bound by a test that the verifier does not connect with it */
	peer = &config.peers[to];
	*(__u16 *)&f->eth.h_dest[0] = *(const volatile __u16 *)&peer->mac[0];
	*(__u16 *)&f->eth.h_dest[2] = *(const volatile __u16 *)&peer->mac[2];
	*(__u16 *)&f->eth.h_dest[4] = *(const volatile __u16 *)&peer->mac[4];
	*(__u16 *)&f->eth.h_source[0] = *(const volatile __u16 *)&self->mac[0];
	*(__u16 *)&f->eth.h_source[2] = *(const volatile __u16 *)&self->mac[2];
	*(__u16 *)&f->eth.h_source[4] = *(const volatile __u16 *)&self->mac[4];
	f->eth.h_proto = bpf_htons(ETH_P_IP);
	*(__u16 *)&f->ip = bpf_htons(0x4500);
	f->ip.tot_len = total;
	f->ip.id = 0;
	f->ip.frag_off = bpf_htons(0x4000);
	f->ip.ttl = 64;
	f->ip.protocol = IPPROTO_UDP;
	fold = peer->ip_sum + total;
	fold = (fold & 0xffff) + (fold >> 16);
	f->ip.check = ~((fold & 0xffff) + (fold >> 16));
	f->ip.saddr = self->ip;
	f->ip.daddr = peer->ip;
	f->udp.source = bpf_htons(RING_PORT);
	f->udp.dest = bpf_htons(RING_PORT);
	f->udp.len = bpf_htons(sizeof(*f) - sizeof(f->eth) - sizeof(f->ip) + length);
	f->udp.check = 0;
	f->sender = config.rank;
	f->receiver = to;
	f->length = length;
	f->lane = bpf_get_smp_processor_id();
	f->checksum = sum + frame_seal(f);
	count(w, RING_SENT);
	w->counters[RING_SENT_BYTES] += sizeof(*f) + length;
	return SEND;
}

/* The sum that the payload must have, if the header is what its sender has sealed. */
static __always_inline __u64 payload_expected(struct work *w)
{
	return w->frame->checksum - frame_seal(w->frame);
}

/* Is a frame without payload that counts what its sender has sent? */
static __always_inline bool is_sealed(struct work *w)
{
	if (!payload_expected(w))
		return true;
	count(w, RING_BAD_CHECKSUM);
	return false;
}
