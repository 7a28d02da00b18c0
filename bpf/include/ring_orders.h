/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The process's side: it rings, and what it wants sent is taken from its orders. */
#pragma once

#include "ring_receive.h"

/* A parked frame's turn has come: the bell's frame takes its place. */
static __always_inline enum outcome replay(struct work *w, __u32 slot)
{
	struct ring_parked *parked = bpf_map_lookup_elem(&parking, &slot);
	void *data = bpf_map_lookup_elem(&parking_data, &slot);
	struct ring_frame *f;
	__u32 length;
	__u64 sum;

	if (!parked || !data || slot >= RING_PARKING)
		return drop(w, RING_BAD_CHUNK);
	if (__sync_val_compare_and_swap(&parked->state, PARKING_PARKED, PARKING_REPLAYING) != PARKING_PARKED)
		return GONE;
	length = parked->length;
	if (length > config.chunk_bytes || length < RING_BLOCK || !resize(w, length) ||
	    payload_fill(w->ctx, data, length) || !reload(w)) {
		__sync_lock_test_and_set(&parked->state, PARKING_FREE);
		return drop(w, RING_BAD_LENGTH);
	}
	f = w->frame;
	f->kind = RING_REDUCE;
	f->generation = parked->generation;
	f->chunk = parked->chunk;
	f->attempt = parked->attempt;
	f->hop = parked->hop;
	f->round = parked->round;
	f->sender = rank_before(config.rank);
	f->receiver = config.rank;
	f->flags = 0;
	f->length = length;
	f->tag = parked->tag;
	f->lane = 0;
	f->prev = RING_NOTHING; /* it was looked at when the frame came */
	sum = parked->sum;
	__sync_lock_test_and_set(&parked->state, PARKING_FREE);
	f->checksum = sum + frame_seal(f);
	w->index = f->chunk;
	return find_chunk(w) ? on_reduce(w) : GONE;
}

/* Ask for a frame. The request is as long as the answer, which may not fit where a shorter one has been. Every asking is another attempt: a fault
 * that meets frames by what they say must not meet all of them.
 */
static __always_inline enum outcome request(struct work *w, __u8 round, enum stage stage)
{
	struct ring_tensor *tensor = tensor_of(w, generation_of(w->progress));
	__u32 length = tensor->length;

	if (!resize(w, length))
		return GONE;
	w->frame->kind = RING_REQUEST;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = w->index;
	w->frame->attempt = ++w->chunk->attempt;
	w->frame->hop = 0;
	w->frame->flags = stage == RESULT ? RING_FLAG_RESULT : 0;
	w->frame->round = round;
	w->frame->tag = tensor->tag;
	w->frame->prev = (__u8)read_word(&w->chunk->reduced);
	w->chunk->asked_us = now_us();
	count(w, RING_RESENT);
	return send(w, rank_before(config.rank), length, 0);
}

/* Ask for whatever frame is next to come about a chunk, unless it is all there. */
static __always_inline enum outcome request_next(struct work *w)
{
	__u32 generation = generation_of(w->progress);
	__u64 reduced = read_word(&w->chunk->reduced), result = read_word(&w->chunk->result);
	bool begun = generation_of(reduced) == generation;

	if (generation_of(result) == generation && (state_of(result) == RESULT_DONE || state_of(result) == RESULT_CLAIMED))
		return GONE;
	if (generation_of(result) == generation && state_of(result) == RESULT_REFUSED)
		return request(w, round_of(result) + 1, RESULT);
	if (begun)
		return request(w, (__u8)reduced, RESULT);
	return is_mine(w->index) ? GONE : request(w, 0, PARTIAL);
}

/* A result was refused in round `round`. */
static __always_inline enum outcome order_restart(struct work *w, __u8 round)
{
	struct ring_tensor *tensor = tensor_of(w, generation_of(w->progress));

	if (is_mine(w->index))
		return restart(w, round);
	w->length = tensor->length;
	if (!resize(w, w->length))
		return GONE;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = w->index;
	w->frame->tag = tensor->tag;
	return ask_restart(w, round);
}

/* Is rank `to` there? On a CPU of its own the question is passed on as it is. */
static __always_inline enum outcome probe(struct work *w, const struct ring_order *order)
{
	w->frame->attempt = order->attempt;
	return tell(w, RING_PROBE, order->chunk, 0);
}

/* The next order, if there is one that no other CPU has taken. */
static __always_inline bool take(struct work *w, struct ring_order *order)
{
	for (int attempt = 0; attempt < 8; attempt++) {
		__u32 taken = *(volatile __u32 *)&w->control->taken;
		__u32 slot = taken % RING_ORDERS;
		struct ring_order *found = bpf_map_lookup_elem(&orders, &slot);

		if (!found || taken == *(volatile __u32 *)&w->control->ordered)
			return false;
		*order = *found;
		if (__sync_val_compare_and_swap(&w->control->taken, taken, taken + 1) == taken)
			return true;
	}
	return false;
}

/* What is wanted of the collective at hand. */
static __always_inline enum outcome send_order(struct work *w, const struct ring_order *order)
{
	w->index = order->chunk;
	if (order->generation != generation_of(w->progress) || order->chunk >= (__u32)w->progress)
		return drop(w, RING_BAD_GENERATION);
	if (order->kind == ORDER_LAUNCH)
		return launch_first(w);
	w->chunk = bpf_map_lookup_elem(&chunks, &w->index);
	if (!w->chunk)
		return drop(w, RING_BAD_CHUNK);
	return order->kind == ORDER_RESTART ? order_restart(w, order->extra) : request_next(w);
}

static __always_inline enum outcome on_order(struct work *w, const struct ring_order *order)
{
	switch (order->kind) {
	case ORDER_LAUNCH:
	case ORDER_REQUEST:
	case ORDER_RESTART:
		return send_order(w, order);
	case ORDER_REPLAY:
		return replay(w, order->chunk);
	case ORDER_PROBE:
		return probe(w, order);
	}
	return drop(w, RING_BAD_KIND);
}

/* The frame is free to ask for what is missing. */
static __always_inline enum outcome on_ask(struct work *w)
{
	__u32 zero = 0;
	struct ring_asks *list = bpf_map_lookup_elem(&asks, &zero);
	struct ring_ask ask;

	if (!list || !(take_ask(w, list, &list->fresh, &ask) || take_ask(w, list, &list->again, &ask)))
		return GONE;
	w->index = ask.item >> RING_CHUNK_SHIFT;
	w->chunk = bpf_map_lookup_elem(&chunks, &w->index);
	if (!w->chunk)
		return GONE;
	return request(w, ask.item >> RING_ROUND_SHIFT, ask.item & RING_STAGE_BIT);
}

/* Where a frame goes in the end. */
static __always_inline int leave(struct work *w, enum outcome outcome, bool by_link)
{
	if (w->asks && outcome == SEND)
		return bpf_redirect_map(&fan_ask, 0, BPF_F_BROADCAST);
	if (w->asks)
		outcome = on_ask(w);
	if (outcome != SEND)
		return XDP_DROP;
	return by_link ? XDP_TX : bpf_redirect(config.uplink, 0);
}
