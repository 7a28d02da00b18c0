/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Inputs, results and parked frames: what one rank does with the memory that it shares with its process.
 *
 * Two CPUs may work on a frame and its duplicate at once, and the process may begin the next collective meanwhile. So storing
 * begins with an atomic claim, and whoever has read memory that may be overwritten looks afterwards whether it has been.
 */
#pragma once

#include "ring_gap.h"
#include "ring_payload.h"

/* The frame becomes this rank's own chunk `index` on its first lap. `doubt`: RING_FLAG_DOUBT if who asks is in doubt, else 0. */
static __always_inline enum outcome launch(struct work *w, __u32 index, __u8 attempt, __u8 doubt)
{
	struct ring_chunk *chunk = bpf_map_lookup_elem(&chunks, &index);
	void *input = bpf_map_lookup_elem(&inputs, &index);
	struct ring_tensor *tensor = tensor_of(w, generation_of(w->progress));
	__u32 length = tensor->length;
	__u64 sum;

	if (!chunk || !input || !resize(w, length))
		return GONE;
	if (payload_fill(w->ctx, input, length))
		return drop(w, RING_BAD_LENGTH);
	sum = chunk->input_sum;
	if (overtaken(w))
		return drop(w, RING_OVERTAKEN);
	chunk->sent_us = now_us();
	chunk->attempt = attempt;
	w->frame = (void *)(long)w->ctx->data;
	if ((void *)(w->frame + 1) > (void *)(long)w->ctx->data_end)
		return GONE;
	w->frame->kind = RING_REDUCE;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = index;
	w->frame->attempt = attempt;
	w->frame->hop = 1;
	w->frame->last = 0;
	w->frame->flags = refused(w, chunk) ? RING_FLAG_DOUBT : doubt;
	w->frame->tag = tensor->tag;
	w->frame->checksum = sum + ring_seal(RING_REDUCE, generation_of(w->progress), index, length, tensor->tag);
	return send(w, rank_after(config.rank), length);
}

/* The frame is at liberty: it carries on as this rank's next chunk, if there is one. A slot beyond what is ready is left to the
 * process, which launches it when it has moved `progress` (it reads `next` after that; both sides are fenced).
 */
static __always_inline enum outcome launch_next(struct work *w)
{
	__u64 next = __sync_fetch_and_add(&w->control->next, 1);
	__u64 progress = *(volatile __u64 *)&w->control->progress;
	__u32 index = config.rank + config.ranks * (__u32)next;

	if (generation_of(next) != generation_of(progress) || index >= (__u32)progress)
		return GONE;
	w->progress = progress;
	return launch(w, index, 0, 0);
}

/* Turn the frame into lap two of a result that this rank holds, as its `hop`th hop. */
static __always_inline enum outcome send_result(struct work *w, __u8 hop, __u8 last)
{
	void *result = bpf_map_lookup_elem(&results, &w->index);
	__u32 length = w->length;
	__u64 sum;

	if (!result || !resize(w, length))
		return GONE;
	if (payload_fill(w->ctx, result, length))
		return drop(w, RING_BAD_LENGTH);
	sum = w->chunk->result_sum;
	w->frame = (void *)(long)w->ctx->data;
	if ((void *)(w->frame + 1) > (void *)(long)w->ctx->data_end)
		return GONE;
	barrier();
	if (*(volatile __u32 *)&w->chunk->claimed != w->frame->generation)
		return drop(w, RING_OVERTAKEN);
	w->frame->kind = RING_RESULT;
	w->frame->hop = hop;
	w->frame->last = last;
	w->frame->flags = 0;
	w->frame->checksum = sum + seal(w);
	count(w, RING_ANSWERED);
	return send(w, rank_after(config.rank), length);
}

/* A lap two that visits every other rank. */
static __always_inline enum outcome answer(struct work *w)
{
	return send_result(w, 1, rank_before(config.rank));
}

/* Go on with a lap two that was lost behind this rank: the frame becomes the one that went on from here. */
static __always_inline enum outcome resume(struct work *w)
{
	__u32 owner = w->index % config.ranks;
	__u32 hops = (config.rank + 1 >= owner ? 0 : config.ranks) + config.rank + 1 - owner; /* since the lap began */

	if (hops >= config.ranks)
		hops -= config.ranks;
	if (hops == config.ranks - 1) /* it ended here */
		return answer(w);
	return send_result(w, hops + 1, rank_before(rank_before(owner)));
}

/* A result is in place: make it count, once. */
static __always_inline void stored(struct work *w, __u64 sum)
{
	__u32 generation = generation_of(w->progress);

	w->chunk->result_sum = sum;
	__sync_lock_test_and_set(&w->chunk->done, generation);
	count(w, RING_STORED);
	if (w->index % config.ranks != config.rank) {
		w->chunk->attempt = 0;
	} else if (!w->frame->attempt && !w->chunk->attempt) {
		__u32 rtt = now_us() - w->chunk->sent_us;

		__sync_fetch_and_add(&w->control->rtt_samples, 1);
		__sync_fetch_and_add(&w->control->rtt_sum_us, rtt);
		/* Two CPUs may race here; the greatest round trip is a hint, not a sum. */
		if (rtt > w->control->rtt_max_us)
			w->control->rtt_max_us = rtt;
	}
	w->chunk->sent_us = 0; /* whoever asks for it from now on can have it */
	if (__sync_fetch_and_add(&w->control->stored, 1) + 1 == *(volatile __u32 *)&w->control->wake_at) {
		struct ring_event event = { .kind = RING_EVENT_STORED, .generation = generation };

		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
	look_back(w);
}

/* One CPU alone may write a result. */
static __always_inline bool claim(struct work *w)
{
	__u32 generation = generation_of(w->progress);
	__u32 seen = *(volatile __u32 *)&w->chunk->claimed;

	return seen != generation && __sync_val_compare_and_swap(&w->chunk->claimed, seen, generation) == seen;
}

static __always_inline void unclaim(struct work *w)
{
	__sync_lock_test_and_set(&w->chunk->claimed, 0);
}

/* Keep the frame's data until the process has its gradient ready and rings. */
static __always_inline enum outcome park(struct work *w, bool *ready)
{
	struct ring_parked *parked;
	__u32 slot, length = w->frame->length;
	__u64 progress;
	void *data;
	int tries;

	if (length > config.chunk_bytes || length < RING_BLOCK)
		return GONE;
	for (tries = 0; tries < RING_PARKING_TRIES; tries++) {
		slot = (w->frame->chunk + tries * (RING_PARKING / RING_PARKING_TRIES)) % RING_PARKING;
		parked = bpf_map_lookup_elem(&parking, &slot);
		if (!parked)
			return GONE;
		if (__sync_val_compare_and_swap(&parked->state, PARKING_FREE, PARKING_FILLING) == PARKING_FREE)
			break;
		if (parked->generation == w->frame->generation && parked->chunk == w->frame->chunk)
			return drop(w, RING_DUPLICATE);
	}
	if (tries == RING_PARKING_TRIES)
		return drop(w, RING_PARKING_FULL);
	data = bpf_map_lookup_elem(&parking_data, &slot);
	if (!data) /* cannot be: the maps are equally long */
		return GONE;
	parked->generation = w->frame->generation;
	parked->chunk = w->frame->chunk;
	parked->attempt = w->frame->attempt;
	parked->hop = w->frame->hop;
	parked->checksum = w->frame->checksum;
	parked->length = length;
	parked->tag = w->frame->tag;
	if (bpf_xdp_load_bytes(w->ctx, sizeof(struct ring_frame), data, length)) {
		__sync_lock_test_and_set(&parked->state, PARKING_FREE);
		return drop(w, RING_BAD_LENGTH);
	}
	__sync_lock_test_and_set(&parked->state, PARKING_PARKED);
	/* The process may have become ready between the look at `progress` and the line above, and seen nothing parked. */
	progress = *(volatile __u64 *)&w->control->progress;
	if (generation_of(progress) == w->frame->generation && w->frame->chunk < (__u32)progress &&
	    __sync_val_compare_and_swap(&parked->state, PARKING_PARKED, PARKING_FREE) == PARKING_PARKED) {
		w->progress = progress;
		*ready = true;
		return GONE;
	}
	return drop(w, RING_PARKED);
}

/* Lap one, input ready: add it; the last rank of the lap has the sum. Where that holds a result which is in doubt, it keeps it until its
 * process has looked, and only passes the new one on.
 */
static __always_inline enum outcome reduce(struct work *w)
{
	void *input = bpf_map_lookup_elem(&inputs, &w->index);
	void *result = bpf_map_lookup_elem(&results, &w->index);
	bool last = w->frame->hop + 1 >= config.ranks, keep;
	__u64 sum, expected;
	int error;

	if (!input || !result)
		return GONE;
	keep = last && claim(w);
	if (last && !keep && !(w->frame->flags & RING_FLAG_DOUBT))
		return drop(w, RING_DUPLICATE);
	expected = w->frame->checksum + w->chunk->input_sum - (last ? seal(w) : 0);
	if (keep) {
		error = payload_add_store(w->ctx, input, result, w->length, &sum);
		if (error || sum != expected) {
			unclaim(w);
			return drop(w, error ? RING_BAD_LENGTH : RING_BAD_CHECKSUM);
		}
		stored(w, sum);
	} else {
		if (payload_add(w->ctx, input, w->length))
			return drop(w, RING_BAD_LENGTH);
		if (overtaken(w))
			return drop(w, RING_OVERTAKEN);
	}
	w->frame->hop += 1;
	if (last) {
		w->frame->kind = RING_RESULT;
		w->frame->hop = 1;
		w->frame->last = rank_before(config.rank);
		w->frame->flags = keep ? RING_FLAG_USEFUL : 0;
		expected += seal(w);
	}
	w->frame->checksum = expected;
	return send(w, rank_after(config.rank), w->length);
}
