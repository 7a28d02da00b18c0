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
 * A rank nacks a missing frame, and repeats the nack until the frame arrives. The frame at hand has
 * to go on, so a copy of it becomes the nack (`ring_fan_nack`): XDP sends the copy to the doorbell,
 * where the same CPU receives it next and takes an entry from its own nack queue.
 */
#pragma once

#include "ring_work.h"

#define RING_MOST_DOUBLINGS 4 /* how often the holdoff between two nacks for a frame may double */
#define RING_SKIP 4	      /* obsolete entries that one frame may pass over */

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

/* Has a frame of the chunk been nacked, or found lost, within the holdoff? */
static __always_inline bool ring_nacked_lately(struct ring_work *w, const struct ring_chunk *chunk)
{
	__u32 nacked = *(volatile const __u32 *)&chunk->nacked_us;

	return nacked && now_us() - nacked < w->control->nack_holdoff_us;
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
	if (chunk->lost[stage] == seq && ring_nacked_lately(w, chunk))
		return 0; /* a second frame names it as its predecessor */
	nack.due_us = now_us();
	chunk->lost[stage] = seq;
	chunk->nacked_us = nack.due_us;
	ring_count(w, RING_LOST);
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

/* Has the chunk of a nack been nacked lately, and not only found lost, which queued this nack? Then
 * the process was first. */
static __always_inline bool ring_is_nacked(struct ring_work *w, const struct ring_nack *nack)
{
	__u32 index = nack->item >> RING_CHUNK_SHIFT;
	struct ring_chunk *chunk = bpf_map_lookup_elem(&ring_chunks, &index);

	return chunk && ring_nacked_lately(w, chunk) &&
	       (nack->tries || chunk->nacked_us != nack->due_us);
}

/* Take a reserved entry. False: none is still missing. */
static __always_inline bool ring_take_nack(struct ring_work *w, struct ring_nacks *list,
					   struct ring_nack_queue *queue, struct ring_nack *nack)
{
	for (int step = 0; step < RING_SKIP && queue->taken != queue->carried; step++) {
		*nack = queue->nacks[queue->taken % RING_NACK_ENTRIES];
		queue->taken += 1;
		if (ring_is_missing(w, nack)) {
			bool is_nacked = ring_is_nacked(w, nack);

			nack->due_frame = list->frames;
			nack->due_us =
				now_us() + (w->control->nack_holdoff_us << (nack->tries & 7));
			nack->tries += nack->tries < RING_MOST_DOUBLINGS;
			ring_nack_put(&list->again, nack);
			if (!is_nacked)
				return true;
		}
	}
	return false;
}
