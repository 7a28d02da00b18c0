/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Gaps in an owner's results, noticed where a later one is stored: what is missing is asked for at once, by the kernel.
 *
 * Results of one owner come in the order of their slots, give or take what the CPUs are apart. When one is stored, the one `gap`
 * slots before should be there. If not, it is asked for; and because the asking or the answer may be lost as well, the
 * owner's earliest hole is asked for again whenever one of its results comes in and the last asking is a while ago.
 *
 * The frame at hand has to go on, so its copy does the asking (`fan_ask`): it is sent to the doorbell, where this CPU receives
 * it next, and takes what is to be asked for from a queue that no other CPU touches.
 */
#pragma once

#include "ring_work.h"

#define RING_FRONT_STEPS 4 /* an owner's front may have to catch up; results come one by one */

/* Note that a chunk is to be asked for, unless it is there, or has been asked for or sent a moment ago. */
static __always_inline void ask(struct work *w, struct ring_asks *list, __u32 index)
{
	struct ring_chunk *chunk = bpf_map_lookup_elem(&chunks, &index);
	__u32 generation = generation_of(w->progress), now = now_us(), slot;

	if (!chunk || chunk->done == generation || too_soon(w, chunk, now))
		return;
	if (list->given - list->taken >= RING_ASKS) {
		list->carried = list->taken; /* frames that were to take some have got lost */
		return;
	}
	chunk->sent_us = now;
	slot = list->given % RING_ASKS;
	list->orders[slot].kind = index % config.ranks == config.rank ? ORDER_LAUNCH : ORDER_REQUEST;
	list->orders[slot].generation = generation;
	list->orders[slot].chunk = index;
	list->orders[slot].attempt = chunk->attempt + 1;
	list->given += 1;
	count(w, RING_GAPS);
}

/* A result has been stored: see to the ones of the same owner that should have come before. */
static __always_inline void look_back(struct work *w)
{
	__u32 zero = 0, owner = w->index % config.ranks, slot = w->index / config.ranks;
	struct ring_asks *list = bpf_map_lookup_elem(&asks, &zero);
	struct ring_front *front = bpf_map_lookup_elem(&fronts, &owner);
	__u32 reached;

	if (!config.gap || !list || !front)
		return;
	reached = front->generation == generation_of(w->progress) ? front->slot : 0;
	for (int step = 0; step < RING_FRONT_STEPS; step++) {
		__u32 index = owner + config.ranks * reached;
		struct ring_chunk *chunk = bpf_map_lookup_elem(&chunks, &index);

		if (!chunk || chunk->done != generation_of(w->progress))
			break;
		reached += 1;
	}
	front->generation = generation_of(w->progress);
	front->slot = reached;
	if (reached + config.gap <= slot) {
		ask(w, list, w->index - config.ranks * config.gap);
		ask(w, list, owner + config.ranks * reached);
	}
	w->asks = (__s32)(list->given - list->carried) > 0;
	list->carried += w->asks;
}
