/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The process's side: it rings, and what it wants sent is taken from its orders. */
#pragma once

#include "ring_receive.h"

/* A parked frame's turn has come: the bell's frame takes its place. */
static __always_inline enum ring_verdict ring_replay(struct ring_work *w, __u32 slot)
{
	struct ring_parked *parked = bpf_map_lookup_elem(&ring_parking, &slot);
	void *data = bpf_map_lookup_elem(&ring_parking_data, &slot);
	struct ring_frame *f;
	__u32 length;
	__u64 sum;

	if (!parked || !data || slot >= RING_PARKING)
		return ring_drop(w, DROP_BAD_CHUNK);
	if (__sync_val_compare_and_swap(&parked->state, RING_PARKING_PARKED, RING_PARKING_REPLAYING) != RING_PARKING_PARKED)
		return RING_GONE;
	length = parked->length;
	if (length > ring_config.chunk_bytes || length < RING_BLOCK || !ring_resize(w, length) ||
	    ring_payload_fill(w->ctx, data, length) || !ring_reload(w)) {
		__sync_lock_test_and_set(&parked->state, RING_PARKING_FREE);
		return ring_drop(w, DROP_BAD_LENGTH);
	}
	f = w->frame;
	f->kind = RING_REDUCE;
	f->generation = parked->generation;
	f->chunk = parked->chunk;
	f->attempt = parked->attempt;
	f->hop = parked->hop;
	f->round = parked->round;
	f->sender = ring_rank_before(ring_config.rank);
	f->receiver = ring_config.rank;
	f->flags = 0;
	f->length = length;
	f->tag = parked->tag;
	f->lane = 0;
	f->prev = RING_NOTHING; /* it was looked at when the frame came */
	sum = parked->sum;
	__sync_lock_test_and_set(&parked->state, RING_PARKING_FREE);
	f->checksum = sum + frame_seal(f);
	w->index = f->chunk;
	return ring_find_chunk(w) ? ring_on_reduce(w) : RING_GONE;
}

/* Ask for a frame. The request is as long as the answer, which may not fit where a shorter one has been. Every asking is another attempt: a fault
 * that meets frames by what they say must not meet all of them.
 */
static __always_inline enum ring_verdict ring_request(struct ring_work *w, __u8 round, enum ring_stage stage)
{
	struct ring_tensor *tensor = ring_tensor_of(w, generation_of(w->progress));
	__u32 length = tensor->length;

	if (!ring_resize(w, length))
		return RING_GONE;
	w->frame->kind = RING_REQUEST;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = w->index;
	w->frame->attempt = ++w->chunk->attempt;
	w->frame->hop = 0;
	w->frame->flags = stage == RING_STAGE_RESULT ? RING_FLAG_RESULT : 0;
	w->frame->round = round;
	w->frame->tag = tensor->tag;
	w->frame->prev = (__u8)word_read(&w->chunk->reduced);
	w->chunk->asked_us = now_us();
	ring_count(w, RING_RESENT);
	return ring_send(w, ring_rank_before(ring_config.rank), length, 0);
}

/* Ask for whatever frame is next to come about a chunk, unless it is all there. */
static __always_inline enum ring_verdict ring_request_next(struct ring_work *w)
{
	__u32 generation = generation_of(w->progress);
	__u64 reduced = word_read(&w->chunk->reduced), result = word_read(&w->chunk->result);
	bool begun = generation_of(reduced) == generation;

	if (generation_of(result) == generation && (ring_is_done(result) || ring_state_of(result) == RING_RESULT_CLAIMED))
		return RING_GONE;
	if (generation_of(result) == generation && ring_state_of(result) == RING_RESULT_REFUSED)
		return ring_request(w, ring_round_of(result) + 1, RING_STAGE_RESULT);
	if (begun) /* a result of any round will do */
		return ring_request(w, 0, RING_STAGE_RESULT);
	return ring_is_mine(w->index) ? RING_GONE : ring_request(w, 0, RING_STAGE_PARTIAL);
}

/* A result was refused in round `round`. */
static __always_inline enum ring_verdict ring_order_restart(struct ring_work *w, __u8 round)
{
	struct ring_tensor *tensor = ring_tensor_of(w, generation_of(w->progress));

	if (ring_is_mine(w->index))
		return ring_restart(w, round);
	w->length = tensor->length;
	if (!ring_resize(w, w->length))
		return RING_GONE;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = w->index;
	w->frame->tag = tensor->tag;
	return ring_ask_restart(w, round);
}

/* Is rank `to` there? On a CPU of its own the question is passed on as it is. */
static __always_inline enum ring_verdict ring_probe(struct ring_work *w, const struct ring_order *order)
{
	w->frame->attempt = order->attempt;
	return ring_tell(w, RING_PROBE, order->chunk, 0, 0);
}

/* The next order, if there is one that no other CPU has taken. */
static __always_inline bool ring_take(struct ring_work *w, struct ring_order *order)
{
	for (int attempt = 0; attempt < 8; attempt++) {
		__u32 taken = *(volatile __u32 *)&w->control->taken;
		__u32 slot = taken % RING_ORDERS;
		struct ring_order *found = bpf_map_lookup_elem(&ring_orders, &slot);

		if (!found || taken == *(volatile __u32 *)&w->control->ordered)
			return false;
		*order = *found;
		if (__sync_val_compare_and_swap(&w->control->taken, taken, taken + 1) == taken)
			return true;
	}
	return false;
}

/* What is wanted of the collective at hand. */
static __always_inline enum ring_verdict ring_send_order(struct ring_work *w, const struct ring_order *order)
{
	w->index = order->chunk;
	if (order->generation != generation_of(w->progress) || order->chunk >= (__u32)w->progress)
		return ring_drop(w, DROP_BAD_GENERATION);
	if (order->kind == RING_ORDER_LAUNCH)
		return ring_launch_first(w);
	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	if (!w->chunk)
		return ring_drop(w, DROP_BAD_CHUNK);
	return order->kind == RING_ORDER_RESTART ? ring_order_restart(w, order->extra) : ring_request_next(w);
}

static __always_inline enum ring_verdict ring_on_order(struct ring_work *w, const struct ring_order *order)
{
	switch (order->kind) {
	case RING_ORDER_LAUNCH:
	case RING_ORDER_REQUEST:
	case RING_ORDER_RESTART:
		return ring_send_order(w, order);
	case RING_ORDER_REPLAY:
		return ring_replay(w, order->chunk);
	case RING_ORDER_PROBE:
		return ring_probe(w, order);
	}
	return ring_drop(w, DROP_BAD_KIND);
}

/* The frame is free to ask for what is missing. */
static __always_inline enum ring_verdict ring_on_ask(struct ring_work *w)
{
	__u32 zero = 0;
	struct ring_asks *list = bpf_map_lookup_elem(&ring_asks, &zero);
	struct ring_ask ask;

	if (!list || !(ring_take_ask(w, list, &list->fresh, &ask) || ring_take_ask(w, list, &list->again, &ask)))
		return RING_GONE;
	w->index = ask.item >> RING_CHUNK_SHIFT;
	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	if (!w->chunk)
		return RING_GONE;
	return ring_request(w, ask.item >> RING_ROUND_SHIFT, ask.item & RING_STAGE_BIT);
}

/* Where a frame goes in the end. */
static __always_inline int ring_leave(struct ring_work *w, enum ring_verdict outcome, bool by_link)
{
	if (w->asks && outcome == RING_SEND)
		return bpf_redirect_map(&ring_fan_ask, 0, BPF_F_BROADCAST);
	if (w->asks)
		outcome = ring_on_ask(w);
	if (outcome != RING_SEND)
		return XDP_DROP;
	return by_link ? XDP_TX : bpf_redirect(ring_config.uplink, 0);
}
