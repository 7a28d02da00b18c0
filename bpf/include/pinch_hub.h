/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Hubs: vertices with many neighbours. Their rows are queued and added to one slice of neighbours
 * at a time, so that no frame occupies a CPU for long.
 *
 * A CPU claims a slice by incrementing the hub's `next`, then adds it. A frame that stays on this
 * host circulates through the doorbell and adds one slice each time. If it is lost, only time is
 * lost, because the process kicks again.
 */
#pragma once

#include "pinch_add.h"

#define PINCH_HUB_TRIES 4 /* finished hubs that one run may skip */

static __always_inline __u32 pinch_slices_of(__u32 neighbours)
{
	return (neighbours + pinch_config.slice - 1) / pinch_config.slice;
}

/* Queue a row in slot `index`. */
static __always_inline void pinch_set_aside(struct pinch_control *c, const __u64 *words,
					    struct pinch_vertex *vertex, __u32 index, __u32 part)
{
	struct pinch_hub *hub = bpf_map_lookup_elem(&pinch_hubs, &index);
	__u64 *to = bpf_map_lookup_elem(&pinch_pending, &index), *entry;
	__u32 place;

	if (!hub || !to)
		return;
	for (__u32 i = 0; i < PINCH_MAX_WORDS && i < pinch_config.words; i++)
		to[i] = words[i];
	hub->first = vertex->first;
	hub->count = vertex->count;
	hub->part = part;
	__sync_fetch_and_add(&c->owed, pinch_slices_of(vertex->count));
	*(volatile __u32 *)&hub->next = 0; /* from now on, slices can be claimed */
	place = __sync_fetch_and_add(&c->queued, 1);
	entry = bpf_map_lookup_elem(&pinch_hub_queue, &place);
	if (entry)
		*(volatile __u64 *)entry = (c->progress & 0xffffffff00000000ull) | index;
}

/* Add one slice of the first hub in the queue. Is there more to do? */
static __always_inline bool pinch_add_slice(struct pinch_control *c)
{
	__u32 seq = seq_of(c->progress), zero = 0, tries, slice, place, index, left;
	struct pinch_scratch *room = bpf_map_lookup_elem(&pinch_scratch, &zero);
	struct pinch_row_work row = { .bank = pinch_bank_of() };
	struct pinch_hub *hub = NULL;
	__u64 *words = NULL, *entry;

	for (tries = 0; tries < PINCH_HUB_TRIES; tries++) {
		place = *(volatile __u32 *)&c->served;
		if (place == *(volatile __u32 *)&c->queued)
			return false;
		entry = bpf_map_lookup_elem(&pinch_hub_queue, &place);
		if (!entry || seq_of(*(volatile __u64 *)entry) != seq)
			return false; /* the CPU that is about to write it continues with it */
		index = *entry;
		hub = bpf_map_lookup_elem(&pinch_hubs, &index);
		words = bpf_map_lookup_elem(&pinch_pending, &index);
		if (!hub || !words || !room)
			return false;
		if (seq_of(*(volatile __u64 *)&c->progress) != seq)
			return false;
		slice = __sync_fetch_and_add(&hub->next, 1);
		if (slice < pinch_slices_of(hub->count))
			break;
		if (seq_of(*(volatile __u64 *)&c->progress) == seq)
			__sync_val_compare_and_swap(&c->served, place, place + 1);
		hub = NULL;
	}
	if (!hub || !words || !room)
		return true;
	row.first = hub->first + slice * pinch_config.slice;
	row.offset = hub->part * pinch_config.sum_words;
	left = hub->count - slice * pinch_config.slice;
	left = left < pinch_config.slice ? left : pinch_config.slice;
	for (__u32 i = 0; i < PINCH_MAX_WORDS && i < pinch_config.words; i++)
		pinch_unpack(words[i], room->wide, i);
	row.wide = room->wide;
	row.count = left;
	pinch_add_all(&row);
	pinch_count(PINCH_SLICES, 1);
	pinch_count(PINCH_EDGES, left);
	if (__sync_fetch_and_add(&c->owed, -1) == 1)
		pinch_check_complete(c, seq);
	return true;
}
