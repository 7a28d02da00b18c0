/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What is missing, and how it is asked for.
 *
 * A frame stays on the CPU where it begins, lap after lap, and no frame overtakes another between two ranks on the same CPU: they pass the same
 * queues. So each frame names the one that its sender has sent before it on its CPU (`prev`), and whoever gets it without having got that one
 * knows that it is lost. What is late is not taken for lost, however busy the machine is: a later frame of the lane is late as well. The last frame
 * of a lane is named by the answer to a probe, which travels on the lane behind it (a tail-loss probe, RFC 8985).
 *
 * A frame that is sent again has no place in the order; it names what it named the first time. So two that were lost one after the other are both
 * found: the second by what came after it, and the first by the second when that is sent again.
 *
 * Who lacks a frame asks for it, from time to time until it comes. The frame at hand has to go on, so its copy does the asking (`ring_fan_ask`): it is sent
 * to the doorbell, where this CPU receives it next, and takes what is to be asked for from a queue that no other CPU touches.
 */
#pragma once

#include "ring_work.h"

#define RING_MOST_DOUBLINGS 4 /* of the time between two requests for a frame */
#define RING_SKIP 4 /* requests that are not needed any more, which are passed over at a time */

static __always_inline bool ring_has_parked(__u32 generation, __u32 index)
{
	for (int tries = 0; tries < RING_PARKING_TRIES; tries++) {
		__u32 slot = (index + tries * (RING_PARKING / RING_PARKING_TRIES)) % RING_PARKING;
		struct ring_parked *parked = bpf_map_lookup_elem(&ring_parking, &slot);

		if (parked && *(volatile __u32 *)&parked->state != RING_PARKING_FREE && parked->generation == generation && parked->chunk == index)
			return true;
	}
	return false;
}

/* Is a frame about a chunk missing here? */
static __always_inline bool ring_lacks(struct ring_work *w, const struct ring_chunk *chunk, __u32 generation, __u8 round, enum ring_stage stage)
{
	__u64 reduced = word_read(&chunk->reduced), result = word_read(&chunk->result);
	bool at_all = generation_of(result) == generation && ring_state_of(result) != RING_RESULT_NONE;

	if (stage == RING_STAGE_PARTIAL)
		return !at_all && word_is_forward(reduced, word_of(generation, round));
	return !(at_all && (ring_round_of(result) >= round || ring_is_verified(w, result)));
}

static __always_inline bool ring_is_missing(struct ring_work *w, const struct ring_ask *ask)
{
	__u32 index = ask->item >> RING_CHUNK_SHIFT;
	struct ring_chunk *chunk = bpf_map_lookup_elem(&ring_chunks, &index);

	return chunk && ask->generation == generation_of(w->progress) &&
	       ring_lacks(w, chunk, ask->generation, ask->item >> RING_ROUND_SHIFT, ask->item & RING_STAGE_BIT);
}

static __always_inline void ring_queue_put(struct ring_queue *queue, const struct ring_ask *ask)
{
	if (queue->given - queue->taken >= RING_ASKS) {
		queue->carried = queue->taken; /* frames that were to take some have got lost */
		return; /* the process will find it */
	}
	queue->asks[queue->given % RING_ASKS] = *ask;
	queue->given += 1;
}

/* Has something become due? Then the frame at hand is to ask for it. */
static __always_inline bool ring_carry(struct ring_work *w, struct ring_asks *asks, struct ring_queue *queue)
{
	for (int step = 0; step < RING_SKIP && queue->carried != queue->given; step++) {
		struct ring_ask *ask = &queue->asks[queue->carried % RING_ASKS];

		if (ring_is_missing(w, ask)) {
			if ((__s32)(asks->frames - ask->due_frame) < 0 || (__s32)(now_us() - ask->due_us) < 0)
				return false;
			queue->carried += 1;
			return true;
		}
		if (queue->taken == queue->carried)
			queue->taken += 1;
		queue->carried += 1;
	}
	return false;
}

/* A frame was lost on its way to this rank or from it. */
static __always_inline void ring_note_loss(struct ring_work *w)
{
	w->control->lossy = generation_of(w->progress);
}

/* A frame has come whose sender sent another before it: is that here? */
static __always_inline void ring_look_back(struct ring_work *w)
{
	__u32 generation = w->frame->generation, mine = generation_of(w->progress), prev = w->frame->prev, zero = 0;
	__u32 index = prev >> RING_CHUNK_SHIFT;
	enum ring_stage stage = prev & RING_STAGE_BIT;
	struct ring_ask ask = { .item = prev };
	struct ring_chunk *chunk;
	struct ring_asks *list;

	if (w->frame->flags & RING_FLAG_EARLIER) {
		if (generation != generation_after(mine))
			return;
		generation = mine;
	}
	if (prev == RING_NOTHING || index >= ring_config.chunks || generation_is_before(generation, mine))
		return;
	ask.generation = generation;
	chunk = bpf_map_lookup_elem(&ring_chunks, &index);
	list = bpf_map_lookup_elem(&ring_asks, &zero);
	if (!chunk || !list || !ring_lacks(w, chunk, generation, prev >> RING_ROUND_SHIFT, stage))
		return;
	if (stage == RING_STAGE_PARTIAL && ring_has_parked(generation, index))
		return;
	ring_note_loss(w);
	chunk->lost[stage] = generation;
	chunk->asked_us = now_us();
	ring_count(w, RING_LOST);
	if (!ring_config.gap || generation != mine || index >= (__u32)w->progress)
		return;
	ask.due_frame = list->frames + ring_config.gap;
	ask.due_us = now_us();
	ring_queue_put(&list->fresh, &ask);
}

/* A frame has come: is it time to ask for others? */
static __always_inline void ring_look_around(struct ring_work *w)
{
	__u32 zero = 0;
	struct ring_asks *list = bpf_map_lookup_elem(&ring_asks, &zero);

	if (!list)
		return;
	list->frames += 1;
	w->asks = ring_carry(w, list, &list->fresh) || ring_carry(w, list, &list->again);
}

/* What the frame is to ask for. False: nothing any more. */
static __always_inline bool ring_take_ask(struct ring_work *w, struct ring_asks *list, struct ring_queue *queue, struct ring_ask *ask)
{
	for (int step = 0; step < RING_SKIP && queue->taken != queue->carried; step++) {
		*ask = queue->asks[queue->taken % RING_ASKS];
		queue->taken += 1;
		if (ring_is_missing(w, ask)) {
			ask->due_frame = list->frames;
			ask->due_us = now_us() + (w->control->holdoff_us << (ask->tries & 7));
			ask->tries += ask->tries < RING_MOST_DOUBLINGS;
			ring_queue_put(&list->again, ask);
			return true;
		}
	}
	return false;
}
