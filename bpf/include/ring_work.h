/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One frame in the hands of a ring program: what is known about it, and how it leaves. */
#pragma once

#include "ring.h"
#include "ring_maps.h"

/* Verdicts of this file: the frame is ready to leave by the uplink, or it is done with. */
enum outcome { GONE, SEND };

struct work {
	struct xdp_md *ctx;
	struct ring_frame *frame;
	struct ring_control *control;
	struct ring_chunk *chunk;
	__u64 *counters;
	__u64 progress; /* as it was when work on this frame began */
	__u32 index;	/* of the chunk */
	__u32 length;	/* of the payload of frames in this generation */
	bool asks;	/* there are chunks to ask for */
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

static __always_inline __u32 generation_of(__u64 progress)
{
	return progress >> 32;
}

/* 0 means "none", so it is left out when the number wraps, and 1 with it: neighbours differ in their lowest bit. */
static __always_inline __u32 generation_after(__u32 generation)
{
	return generation == 0xffffffff ? 2 : generation + 1;
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

static __always_inline __u32 now_us(void)
{
	return bpf_ktime_get_ns() / 1000;
}

/* Does the frame come from a rank, and not from this one? */
static __always_inline bool is_from(struct work *w, __u32 rank)
{
	return rank < RING_MAX_RANKS && rank < config.ranks && rank != config.rank && w->frame->ip.saddr == config.peers[rank].ip;
}

/* Has the chunk been sent or asked for a moment ago? All ranks that lack it ask at once. */
static __always_inline bool too_soon(struct work *w, struct ring_chunk *chunk, __u32 now)
{
	return chunk->sent_us && now - chunk->sent_us < w->control->quench_us;
}

/* Has this rank's process refused a result of the chunk in this generation? */
static __always_inline bool refused(struct work *w, struct ring_chunk *chunk)
{
	return chunk->done == ~generation_of(w->progress);
}

/* Does this rank hold the result that the frame is about, and one that will do? Ranks that have not looked yet would hand those that
 * have the very result that these refuse, and get it back from them when they look themselves, round and round.
 */
static __always_inline bool holds(struct work *w)
{
	__u32 generation = w->frame->generation;

	return w->chunk->done == generation &&
	       (!(w->frame->flags & RING_FLAG_DOUBT) || *(volatile __u32 *)&w->control->settled == generation);
}

/* Has the process begun another collective since this frame's work began? Then what was read may be torn. */
static __always_inline bool overtaken(struct work *w)
{
	barrier();
	return generation_of(*(volatile __u64 *)&w->control->progress) != generation_of(w->progress);
}

/* The part of the frame's checksum that stands for its header. */
static __always_inline __u64 seal(struct work *w)
{
	struct ring_frame *f = w->frame;

	return ring_seal(f->kind, f->generation, f->chunk, w->length, f->tag);
}

/* Make the frame as long as its headers and `length` bytes of payload. Its pointers must be looked up again afterwards. */
static __always_inline bool resize(struct work *w, __u32 length)
{
	int have = w->ctx->data_end - w->ctx->data;
	int want = sizeof(struct ring_frame) + length;

	if (have != want && bpf_xdp_adjust_tail(w->ctx, want - have))
		return false;
	w->frame = (void *)(long)w->ctx->data;
	return (void *)(w->frame + 1) <= (void *)(long)w->ctx->data_end;
}

/* Address the frame; its kind and payload are in place. */
static __always_inline enum outcome send(struct work *w, __u32 to, __u32 length)
{
	const volatile struct ring_peer *peer, *self = &config.peers[config.rank];
	struct ring_frame *f = w->frame;
	__u16 total = bpf_htons(sizeof(*f) - sizeof(f->eth) + length);
	__u32 sum;

	if (to >= RING_MAX_RANKS)
		return GONE;
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
	sum = peer->ip_sum + total;
	sum = (sum & 0xffff) + (sum >> 16);
	f->ip.check = ~((sum & 0xffff) + (sum >> 16));
	f->ip.saddr = self->ip;
	f->ip.daddr = peer->ip;
	f->udp.source = bpf_htons(RING_PORT);
	f->udp.dest = bpf_htons(RING_PORT);
	f->udp.len = bpf_htons(sizeof(*f) - sizeof(f->eth) - sizeof(f->ip) + length);
	f->udp.check = 0;
	f->length = length;
	count(w, RING_SENT);
	w->counters[RING_SENT_BYTES] += sizeof(*f) + length;
	return SEND;
}
