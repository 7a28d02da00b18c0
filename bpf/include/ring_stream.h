/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Loss detection on streams, and the nack queues.
 *
 * A frame stays on one CPU from its launch to its last hop, and frames of one CPU pass the same
 * queues between two ranks, so they stay in order: they form a stream. Each frame names its
 * predecessor in `prev`. A rank that receives a frame but has not received its predecessor knows
 * that the predecessor is lost. This holds under load, too: if a frame is late, so are all frames
 * behind it on its stream. The answer to a probe travels on the stream and names its last frame, so
 * the loss of that one is found too (a tail-loss probe, RFC 8985).
 *
 * A retransmission has no place in the stream. It repeats the `prev` of the original, so when two
 * frames in a row are lost, the second is found by its successor and the first by the
 * retransmission of the second.
 *
 * Something may hold back single frames all the same: a fault rule, a network with several paths.
 * So a rank measures how late frames come that were overtaken, and waits so long before it takes
 * one for lost (lib/patience.h; RFC 8985: the reordering window, which is 0 until frames have been
 * overtaken). A retransmission has a flag, so a frame that was only late is known even after it has
 * been nacked (the Eifel algorithm, RFC 3522).
 *
 * A rank nacks a missing frame, and repeats the nack until the frame arrives. The frame at hand has
 * to go on, so a copy of it becomes the nack (`ring_fan_nack`): XDP sends the copy to the doorbell,
 * where the same CPU receives it next and takes an entry from its own nack queue.
 */
#pragma once

#include "ring_work.h"

#define RING_SKIP 4 /* obsolete entries that one frame may pass over */

static __always_inline bool ring_has_early(__u32 seq, __u32 index)
{
	for (int tries = 0; tries < RING_EARLY_TRIES; tries++) {
		__u32 slot =
			(index + tries * (RING_EARLY_SLOTS / RING_EARLY_TRIES)) % RING_EARLY_SLOTS;
		struct ring_early *early = bpf_map_lookup_elem(&ring_early_frames, &slot);

		if (early && *(volatile __u32 *)&early->state != RING_EARLY_FREE &&
		    early->seq == seq && early->chunk == index)
			return true;
	}
	return false;
}

/* Does this rank lack this frame of a chunk? */
static __always_inline bool ring_lacks(struct ring_work *w, const struct ring_chunk *chunk,
				       __u32 seq, __u8 round, enum ring_stage stage)
{
	__u64 reduced = word_read(&chunk->reduced), result = word_read(&chunk->result);
	bool at_all = seq_of(result) == seq && ring_state_of(result) != RING_RESULT_NONE;

	if (stage == RING_STAGE_PARTIAL)
		return !at_all && word_is_forward(reduced, word_of(seq, round));
	return !(at_all && (ring_round_of(result) >= round || ring_is_verified(w, result)));
}

static __always_inline bool ring_is_missing(struct ring_work *w, const struct ring_nack *nack)
{
	__u32 index = nack->item >> RING_CHUNK_SHIFT;
	struct ring_chunk *chunk = bpf_map_lookup_elem(&ring_chunks, &index);

	return chunk && nack->seq == seq_of(w->progress) &&
	       ring_lacks(w, chunk, nack->seq, nack->item >> RING_ROUND_SHIFT,
			  nack->item & RING_STAGE_BIT);
}

static __always_inline void ring_nack_put(struct ring_nack_queue *queue,
					  const struct ring_nack *nack)
{
	if (queue->given - queue->taken >= RING_NACK_ENTRIES) {
		/* the frames for these were dropped on the way: wait again */
		queue->carried = queue->taken;
		return; /* the process finds it when its timer expires */
	}
	queue->nacks[queue->given % RING_NACK_ENTRIES] = *nack;
	queue->given += 1;
}

/* Is a nack due? Then reserve it for the frame at hand. */
static __always_inline bool ring_carry(struct ring_work *w, struct ring_nacks *nacks,
				       struct ring_nack_queue *queue)
{
	for (int step = 0; step < RING_SKIP && queue->carried != queue->given; step++) {
		struct ring_nack *nack = &queue->nacks[queue->carried % RING_NACK_ENTRIES];

		if (ring_is_missing(w, nack)) {
			if ((__s32)(nacks->frames - nack->due_frame) < 0 ||
			    (__s32)(now_us() - nack->due_us) < 0)
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
	w->control->lossy = seq_of(w->progress);
}

/* A frame with data has arrived that is new: was it missing? Then its nack has been answered, or it
 * was late: the reordering window becomes as long as it should have been. Losses shorten it again,
 * because their nacks waited for nothing.
 */
static __always_inline void ring_note_arrival(struct ring_work *w, enum ring_stage stage)
{
	__u32 since = w->chunk->nacked_us, tries = w->chunk->tries, late, now, rto;
	bool found = w->chunk->lost[stage] == w->frame->seq;
	struct ring_control *c = w->control;

	if (!since || (!found && w->frame->seq != seq_of(w->progress)))
		return;
	now = now_us();
	w->chunk->nacked_us = 0;
	w->chunk->tries = 0;
	if (w->frame->flags & RING_FLAG_AGAIN) {
		c->answered_us = now;
		c->late_us -= c->late_us >> RING_LATE_DECAY;
		return;
	}
	if (!found || w->frame->round)
		return;
	late = now - since;
	if (late < RING_LEAST_LATE_US)
		return;
	if (tries &&
	    (__s32)(c->widened_us - since) < 0) /* it was nacked when the window was over */
		late += ring_reorder_window(c);
	if (late > c->late_us)
		c->widened_us = now;
	late = late > c->late_us ? late : c->late_us;
	rto = c->rto_us;
	c->late_us = late < rto ? late : rto;
}

/* A frame has arrived: has its predecessor? If not, note the loss and queue a nack. */
__noinline int ring_find_loss(__u64 progress, __u32 seq, __u32 prev, __u32 flags)
{
	struct ring_work here = {}, *w = &here;
	__u32 mine = seq_of(progress), zero = 0;
	__u32 index = prev >> RING_CHUNK_SHIFT;
	enum ring_stage stage = prev & RING_STAGE_BIT;
	struct ring_nack nack = { .item = prev };
	struct ring_chunk *chunk;
	struct ring_nacks *list;

	if (flags & RING_FLAG_EARLIER) {
		if (seq != seq_after(mine))
			return 0;
		seq = mine;
	}
	if (prev == RING_NOTHING || index >= ring_config.chunks || seq_is_before(seq, mine))
		return 0;
	if (!ring_recall(w))
		return 0;
	w->progress = progress;
	nack.seq = seq;
	chunk = bpf_map_lookup_elem(&ring_chunks, &index);
	list = bpf_map_lookup_elem(&ring_nacks, &zero);
	if (!chunk || !list || !ring_lacks(w, chunk, seq, prev >> RING_ROUND_SHIFT, stage))
		return 0;
	if (stage == RING_STAGE_PARTIAL && ring_has_early(seq, index))
		return 0;
	ring_note_loss(w);
	nack.due_us = now_us();
	if (chunk->lost[stage] != seq || !chunk->nacked_us) {
		chunk->lost[stage] = seq;
		chunk->nacked_us = nack.due_us;
		chunk->tries = 0;
		nack.due_us += ring_reorder_window(w->control);
		ring_count(w, RING_LOST);
	} else if (ring_waits(w->control, chunk, nack.due_us)) {
		return 0; /* a second frame names it as its predecessor */
	}
	if (!ring_config.reorder_threshold || seq != mine || index >= (__u32)w->progress)
		return 0;
	nack.due_frame = list->frames + ring_config.reorder_threshold;
	ring_nack_put(&list->fresh, &nack);
	return 0;
}

static __always_inline void ring_look_back(struct ring_work *w)
{
	ring_find_loss(w->progress, w->frame->seq, w->frame->prev, w->frame->flags);
}

/* Count an arrival, and see whether a nack is due. `goes_on`: the frame at hand does, so that a
 * copy of it would have to become the nack. A frame with fragments cannot be copied (the kernel's
 * xdpf_clone copies its linear part alone): then another frame has to do, or the process's timer.
 */
__noinline int ring_look_around(struct xdp_md *ctx, __u64 progress, int goes_on)
{
	struct ring_work here = {}, *w = &here;
	__u32 zero = 0;
	struct ring_nacks *list = bpf_map_lookup_elem(&ring_nacks, &zero);

	if (!list || !ring_recall(w))
		return false;
	w->progress = progress;
	list->frames += 1;
	if (goes_on && ring_has_fragments(ctx))
		return false;
	return ring_carry(w, list, &list->fresh) || ring_carry(w, list, &list->again);
}

/* When to nack the chunk of a nack again. False: the process has nacked it lately. */
static __always_inline bool ring_is_due(struct ring_work *w, struct ring_nack *nack)
{
	__u32 index = nack->item >> RING_CHUNK_SHIFT, now = now_us();
	struct ring_chunk *chunk = bpf_map_lookup_elem(&ring_chunks, &index);

	if (!chunk)
		return false;
	if (chunk->tries && ring_waits(w->control, chunk, now)) {
		nack->due_us = chunk->nacked_us + ring_patience(w->control, chunk->tries, now);
		return false;
	}
	nack->due_us = now + ring_patience(w->control, chunk->tries + 1, now);
	return true;
}

/* Take a reserved entry. False: none is still missing. */
static __always_inline bool ring_take_nack(struct ring_work *w, struct ring_nacks *list,
					   struct ring_nack_queue *queue, struct ring_nack *nack)
{
	for (int step = 0; step < RING_SKIP && queue->taken != queue->carried; step++) {
		*nack = queue->nacks[queue->taken % RING_NACK_ENTRIES];
		queue->taken += 1;
		if (ring_is_missing(w, nack)) {
			bool is_due = ring_is_due(w, nack);

			nack->due_frame = list->frames;
			ring_nack_put(&list->again, nack);
			if (is_due)
				return true;
		}
	}
	return false;
}
