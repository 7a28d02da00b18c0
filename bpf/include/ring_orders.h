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

	if (!parked || !data || slot >= RING_PARKING)
		return drop(w, RING_BAD_CHUNK);
	if (__sync_val_compare_and_swap(&parked->state, PARKING_PARKED, PARKING_REPLAYING) != PARKING_PARKED)
		return GONE;
	length = parked->length;
	if (length > config.chunk_bytes || length < RING_BLOCK || !resize(w, length) ||
	    payload_fill(w->ctx, data, length)) {
		__sync_lock_test_and_set(&parked->state, PARKING_FREE);
		return drop(w, RING_BAD_LENGTH);
	}
	f = w->frame = (void *)(long)w->ctx->data;
	if ((void *)(f + 1) > (void *)(long)w->ctx->data_end)
		return GONE;
	f->kind = RING_REDUCE;
	f->generation = parked->generation;
	f->chunk = parked->chunk;
	f->attempt = parked->attempt;
	f->hop = parked->hop;
	f->flags = 0;
	f->checksum = parked->checksum;
	f->length = length;
	f->tag = parked->tag;
	__sync_lock_test_and_set(&parked->state, PARKING_FREE);
	w->index = f->chunk;
	return find_chunk(w) ? on_reduce(w) : GONE;
}

/* Ask for a chunk, unless it has come meanwhile. The frame is as long as a chunk, because the answer may not fit where a shorter
 * one has been. Every asking is another attempt: a fault that meets frames by what they say must not meet all of them.
 */
static __always_inline enum outcome request(struct work *w, const struct ring_order *order)
{
	struct ring_tensor *tensor = tensor_of(w, order->generation);
	struct ring_chunk *chunk = bpf_map_lookup_elem(&chunks, &order->chunk);
	__u32 length = tensor->length;

	if (!chunk)
		return drop(w, RING_BAD_CHUNK);
	if (chunk->done == order->generation || !resize(w, length))
		return GONE;
	chunk->sent_us = now_us();
	w->frame->kind = RING_REQUEST;
	w->frame->generation = order->generation;
	w->frame->chunk = order->chunk;
	w->frame->attempt = ++chunk->attempt;
	w->frame->hop = 0;
	w->frame->last = config.rank;
	w->frame->flags = refused(w, chunk) ? RING_FLAG_DOUBT : 0;
	w->frame->tag = tensor->tag;
	count(w, RING_RESENT);
	return send(w, config.upstream ? rank_before(config.rank) : order->chunk % config.ranks, length);
}

static __always_inline enum outcome probe(struct work *w, const struct ring_order *order)
{
	w->frame->kind = RING_PROBE;
	w->frame->attempt = order->attempt;
	w->frame->last = config.rank;
	return send(w, order->chunk, 0);
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

/* What is wanted of the collective at hand: an own chunk, on its first lap, or somebody else's. */
static __always_inline enum outcome send_order(struct work *w, const struct ring_order *order)
{
	if (order->generation != generation_of(w->progress) || order->chunk >= (__u32)w->progress)
		return drop(w, RING_BAD_GENERATION);
	if (order->kind == ORDER_REQUEST)
		return request(w, order);
	if (order->attempt)
		count(w, RING_RESENT);
	return launch(w, order->chunk, order->attempt, 0);
}

static __always_inline enum outcome on_order(struct work *w)
{
	struct ring_order order;

	if (!take(w, &order))
		return GONE;
	switch (order.kind) {
	case ORDER_LAUNCH:
	case ORDER_REQUEST:
		return send_order(w, &order);
	case ORDER_REPLAY:
		return replay(w, order.chunk);
	case ORDER_PROBE:
		return probe(w, &order);
	}
	return drop(w, RING_BAD_KIND);
}

/* The frame is free to ask for what is missing. */
static __always_inline enum outcome on_ask(struct work *w)
{
	__u32 zero = 0;
	struct ring_asks *list = bpf_map_lookup_elem(&asks, &zero);
	struct ring_order order;

	if (!list || list->given == list->taken)
		return drop(w, RING_BAD_KIND);
	order = list->orders[list->taken % RING_ASKS];
	list->taken += 1;
	return send_order(w, &order);
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
