/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What is missing, and how it is asked for.
 *
 * A frame stays on the CPU where it begins, hop after hop, and no frame overtakes another between two ranks on the same CPU: they pass the same
 * queues. So each frame names the one that its sender has sent before it on its CPU (`prev`), and whoever gets it without having got that one
 * knows that it is lost. What is late is not taken for lost, however busy the machine is: a later frame of the stream is late as well. The last frame
 * of a stream is named by the answer to a probe, which travels on the stream behind it (a tail-loss probe, RFC 8985).
 *
 * A frame that is sent again has no place in the order; it names what it named the first time. So two that were lost one after the other are both
 * found: the second by what came after it, and the first by the second when that is sent again.
 *
 * Who lacks a frame asks for it, from time to time until it comes. The frame at hand has to go on, so its copy does the asking (`ring_fan_nack`): it is sent
 * to the doorbell, where this CPU receives it next, and takes what is to be asked for from a queue that no other CPU touches.
 */
#pragma once

#include "ring_work.h"

#define RING_MOST_DOUBLINGS 4 /* of the time between two requests for a frame */
#define RING_SKIP 4 /* requests that are not needed any more, which are passed over at a time */

static __always_inline bool ring_has_early(__u32 seq, __u32 index)
{
	for (int tries = 0; tries < RING_EARLY_TRIES; tries++) {
		__u32 slot = (index + tries * (RING_EARLY_SLOTS / RING_EARLY_TRIES)) % RING_EARLY_SLOTS;
		struct ring_early *early = bpf_map_lookup_elem(&ring_early_frames, &slot);

		if (early && *(volatile __u32 *)&early->state != RING_EARLY_FREE && early->seq == seq && early->chunk == index)
			return true;
	}
	return false;
}

/* Is a frame about a chunk missing here? */
static __always_inline bool ring_lacks(struct ring_work *w, const struct ring_chunk *chunk, __u32 seq, __u8 round, enum ring_stage stage)
{
	__u64 reduced = word_read(&chunk->reduced), result = word_read(&chunk->result);
	bool at_all = seq_of(result) == seq && ring_state_of(result) != RING_RESULT_NONE;

	if (stage == RING_STAGE_PARTIAL)
		return !at_all && word_is_forward(reduced, word_of(seq, round));
	return !(at_all && (ring_round_of(result) >= round || (ring_state_of(result) == RING_RESULT_DONE && ring_is_verified(w, seq))));
}

static __always_inline bool ring_is_missing(struct ring_work *w, const struct ring_nack *nack)
{
	__u32 index = nack->item >> RING_CHUNK_SHIFT;
	struct ring_chunk *chunk = bpf_map_lookup_elem(&ring_chunks, &index);

	return chunk && nack->seq == seq_of(w->progress) &&
	       ring_lacks(w, chunk, nack->seq, nack->item >> RING_ROUND_SHIFT, nack->item & RING_STAGE_BIT);
}

static __always_inline void ring_nack_put(struct ring_nack_queue *queue, const struct ring_nack *nack)
{
	if (queue->given - queue->taken >= RING_NACK_ENTRIES) {
		queue->carried = queue->taken; /* frames that were to take some have got lost */
		return; /* the process will find it */
	}
	queue->nacks[queue->given % RING_NACK_ENTRIES] = *nack;
	queue->given += 1;
}

/* Has something become due? Then the frame at hand is to ask for it. */
static __always_inline bool ring_carry(struct ring_work *w, struct ring_nacks *nacks, struct ring_nack_queue *queue)
{
	for (int step = 0; step < RING_SKIP && queue->carried != queue->given; step++) {
		struct ring_nack *nack = &queue->nacks[queue->carried % RING_NACK_ENTRIES];

		if (ring_is_missing(w, nack)) {
			if ((__s32)(nacks->frames - nack->due_frame) < 0 || (__s32)(now_us() - nack->due_us) < 0)
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

/* A frame has come whose sender sent another before it: is that here? */
static __always_inline void ring_look_back(struct ring_work *w)
{
	__u32 seq = w->frame->seq, mine = seq_of(w->progress), prev = w->frame->prev, zero = 0;
	__u32 index = prev >> RING_CHUNK_SHIFT;
	enum ring_stage stage = prev & RING_STAGE_BIT;
	struct ring_nack nack = { .item = prev };
	struct ring_chunk *chunk;
	struct ring_nacks *list;

	if (w->frame->flags & RING_FLAG_EARLIER) {
		if (seq != seq_after(mine))
			return;
		seq = mine;
	}
	if (prev == RING_NOTHING || index >= ring_config.chunks || seq_is_before(seq, mine))
		return;
	nack.seq = seq;
	chunk = bpf_map_lookup_elem(&ring_chunks, &index);
	list = bpf_map_lookup_elem(&ring_nacks, &zero);
	if (!chunk || !list || !ring_lacks(w, chunk, seq, prev >> RING_ROUND_SHIFT, stage))
		return;
	if (stage == RING_STAGE_PARTIAL && ring_has_early(seq, index))
		return;
	chunk->lost[stage] = seq;
	chunk->nacked_us = now_us();
	ring_count(w, RING_LOST);
	if (!ring_config.reorder_threshold || seq != mine || index >= (__u32)w->progress)
		return;
	nack.due_frame = list->frames + ring_config.reorder_threshold;
	nack.due_us = now_us();
	ring_nack_put(&list->fresh, &nack);
}

/* A frame has come: is it time to ask for others? */
static __always_inline void ring_look_around(struct ring_work *w)
{
	__u32 zero = 0;
	struct ring_nacks *list = bpf_map_lookup_elem(&ring_nacks, &zero);

	if (!list)
		return;
	list->frames += 1;
	w->nack_due = ring_carry(w, list, &list->fresh) || ring_carry(w, list, &list->again);
}

/* What the frame is to ask for. False: nothing any more. */
static __always_inline bool ring_take_nack(struct ring_work *w, struct ring_nacks *list, struct ring_nack_queue *queue, struct ring_nack *nack)
{
	for (int step = 0; step < RING_SKIP && queue->taken != queue->carried; step++) {
		*nack = queue->nacks[queue->taken % RING_NACK_ENTRIES];
		queue->taken += 1;
		if (ring_is_missing(w, nack)) {
			nack->due_frame = list->frames;
			nack->due_us = now_us() + (w->control->nack_holdoff_us << (nack->tries & 7));
			nack->tries += nack->tries < RING_MOST_DOUBLINGS;
			ring_nack_put(&list->again, nack);
			return true;
		}
	}
	return false;
}
