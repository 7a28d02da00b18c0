/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Inputs, partial sums, results and parked frames: what one rank does with the memory that it shares with its process.
 *
 * Nothing that is held is written before the whole frame has been verified. Two CPUs may work on a frame and its duplicate at once, and the
 * process may begin the next collective meanwhile: so whoever writes has moved a word forward that says what is there (`word_advance`), which a CPU
 * that was held up cannot; and whoever has read memory that may be overwritten looks afterwards whether it has been.
 */
#pragma once

#include "ring_lane.h"
#include "ring_payload.h"

/* The frame becomes this rank's own chunk on its first lap. `again`: it was sent before. */
static __always_inline enum ring_verdict ring_launch(struct ring_work *w, __u8 round, bool again)
{
	__u32 index = w->index, generation = generation_of(w->progress);
	void *input = bpf_map_lookup_elem(&ring_inputs, &index);
	struct ring_tensor *tensor = ring_tensor_of(w, generation);
	struct ring_chunk *chunk = w->chunk;
	__u32 length = tensor->length;
	__u64 sum;

	if (!chunk || !input || !ring_resize(w, length))
		return RING_GONE;
	if (ring_payload_fill(w->ctx, input, length))
		return ring_drop(w, DROP_BAD_LENGTH);
	sum = chunk->input_sum;
	if (ring_overtaken(w))
		return ring_drop(w, DROP_OVERTAKEN);
	if (!ring_reload(w))
		return RING_GONE;
	w->frame->kind = RING_REDUCE;
	w->frame->generation = generation;
	w->frame->chunk = index;
	w->frame->hop = 1;
	w->frame->flags = 0; /* enlist may set one */
	w->frame->round = round;
	w->frame->tag = tensor->tag;
	if (again) {
		w->frame->attempt = ++chunk->attempt;
		w->frame->prev = chunk->before[RING_STAGE_PARTIAL];
		chunk->resent_us = now_us();
		ring_count(w, RING_RESENT);
	} else {
		w->frame->attempt = round ? chunk->attempt + 1 : 0;
		ring_enlist(w, generation, index, RING_STAGE_PARTIAL);
	}
	return ring_send(w, ring_rank_after(ring_config.rank), length, sum);
}

/* Launch an own chunk that nobody has launched yet. */
static __always_inline enum ring_verdict ring_launch_first(struct ring_work *w)
{
	__u32 generation = generation_of(w->progress);
	__u64 reduced;

	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	if (!w->chunk)
		return RING_GONE;
	reduced = word_read(&w->chunk->reduced);
	/* Round 0 is as low as a word of this generation can be. */
	if (generation_of(reduced) == generation || !word_advance(&w->chunk->reduced, reduced, word_of(generation, 0)))
		return RING_GONE;
	return ring_launch(w, 0, false);
}

/* The frame is at liberty: it carries on as this rank's next chunk, if there is one. A slot beyond what is ready is left to the
 * process, which launches it when it has moved `progress` (it reads `next` after that; both sides are fenced).
 */
static __always_inline enum ring_verdict ring_launch_next(struct ring_work *w)
{
	__u64 next = __sync_fetch_and_add(&w->control->next, 1);
	__u64 progress = word_read(&w->control->progress);

	w->index = ring_config.rank + ring_config.ranks * (__u32)next;
	if (generation_of(next) != generation_of(progress) || w->index >= (__u32)progress)
		return RING_GONE;
	w->progress = progress;
	return ring_launch_first(w);
}

/* Begin the first lap of an own chunk anew: nobody keeps what was lost, or a rank has refused the result of round `round`. */
static __always_inline enum ring_verdict ring_restart(struct ring_work *w, __u8 round)
{
	__u64 reduced = word_read(&w->chunk->reduced);

	/* Whoever asks after an earlier round than this rank is in has not seen this one, which may be lost. With `upstream` the ranks on the way recover it. */
	if (generation_of(reduced) == generation_of(w->progress) && (__u8)reduced > round)
		return ring_config.upstream || ring_too_soon(w) ? RING_GONE : ring_launch(w, reduced, true);
	if (generation_of(reduced) != generation_of(w->progress) || (__u8)reduced != round || round == 0xff ||
	    !word_advance(&w->chunk->reduced, reduced, reduced + 1))
		return RING_GONE;
	ring_count(w, RING_RESTARTED);
	ring_count(w, RING_RESENT);
	w->chunk->resent_us = now_us();
	return ring_launch(w, round + 1, false);
}

/* The frame becomes the result that this rank holds, for a rank that lacks it or one of a later round.
 * `prev`: what the rank before the receiver had sent it before the result.
 */
static __always_inline enum ring_verdict ring_send_result(struct ring_work *w, __u32 to, __u8 round, __u32 prev)
{
	void *data = bpf_map_lookup_elem(&ring_results, &w->index);
	__u32 length = w->length, generation = w->frame->generation;
	__u64 result = word_read(&w->chunk->result), sum;

	if (!data || to >= ring_config.ranks || !ring_resize(w, length))
		return RING_GONE;
	barrier();
	if (ring_payload_fill(w->ctx, data, length))
		return ring_drop(w, DROP_BAD_LENGTH);
	sum = w->chunk->result_sum;
	barrier();
	if (word_read(&w->chunk->result) != result || generation_of(result) != generation || !ring_is_done(result))
		return ring_drop(w, DROP_OVERTAKEN);
	if (!ring_reload(w))
		return RING_GONE;
	w->chunk->resent_us = now_us();
	w->frame->kind = RING_RESULT;
	w->frame->hop = ring_result_steps_to(w->index, to);
	w->frame->flags = 0;
	w->frame->round = ring_round_of(result) > round ? ring_round_of(result) : round;
	w->frame->attempt = ++w->chunk->attempt;
	w->frame->prev = prev;
	ring_count(w, RING_ANSWERED);
	ring_count(w, RING_RESENT);
	return ring_send(w, to, length, sum);
}

static __always_inline __u32 ring_kept_slot(__u32 index)
{
	return index & (ring_config.kept - 1);
}

/* Have there been losses lately? Without any, nobody will ask for partial sums that were sent, and keeping them would cost a memcpy a hop. The first one
 * to be lost costs its chunk another round, whose frames are kept by all ranks that they pass.
 */
static __always_inline bool ring_is_lossy(struct ring_work *w, __u32 generation)
{
	__u32 lossy = *(volatile __u32 *)&w->control->lossy;

	return lossy && generation - lossy < RING_LOSSY_FOR;
}

/* Keep the partial sum that is about to be sent, unless the slot has one that may still be needed. */
static __always_inline void ring_keep(struct ring_work *w, __u64 sum)
{
	__u32 slot = ring_kept_slot(w->index), generation = generation_of(w->progress), other;
	struct ring_kept *kept_slot = bpf_map_lookup_elem(&ring_kept, &slot);
	void *data = bpf_map_lookup_elem(&ring_kept_data, &slot);
	__u64 mine = word_of(generation, w->index), owner;
	struct ring_chunk *chunk;

	if (!kept_slot || !data)
		return;
	owner = word_read(&kept_slot->owner);
	if (owner != mine && generation_of(owner) == generation) {
		other = owner;
		chunk = bpf_map_lookup_elem(&ring_chunks, &other);
		/* Whose result is here was taken from this rank by the rank behind. */
		if (chunk && generation_of(word_read(&chunk->result)) != generation) {
			ring_count(w, RING_UNKEPT);
			return;
		}
	}
	if (owner != mine && generation_is_before(generation, generation_of(owner)) && owner)
		return;
	kept_slot->valid = 0;
	if (__sync_val_compare_and_swap(&kept_slot->owner, owner, mine) != owner)
		return;
	if (ring_payload_take(w->ctx, data, w->length))
		return;
	kept_slot->sum = sum;
	kept_slot->round = (__u8)word_read(&w->chunk->reduced);
	__sync_lock_test_and_set(&kept_slot->valid, mine);
}

/* The frame becomes the partial sum that this rank has sent. False: it is not kept. */
static __always_inline bool ring_send_kept(struct ring_work *w, __u8 round, enum ring_verdict *outcome)
{
	__u32 slot = ring_kept_slot(w->index), generation = generation_of(w->progress);
	struct ring_kept *kept_slot = bpf_map_lookup_elem(&ring_kept, &slot);
	void *data = bpf_map_lookup_elem(&ring_kept_data, &slot);
	__u64 mine = word_of(generation, w->index), sum;

	*outcome = RING_GONE;
	if (!kept_slot || !data || word_read(&kept_slot->valid) != mine || kept_slot->round != round)
		return false;
	if (!ring_resize(w, w->length) || ring_payload_fill(w->ctx, data, w->length))
		return true;
	sum = kept_slot->sum;
	barrier();
	if (word_read(&kept_slot->valid) != mine || kept_slot->round != round || !ring_reload(w))
		return true;
	w->chunk->resent_us = now_us();
	w->frame->kind = RING_REDUCE;
	w->frame->hop = ring_steps_to(w->index, ring_config.rank) + 1;
	w->frame->flags = 0;
	w->frame->round = round;
	w->frame->attempt = ++w->chunk->attempt;
	w->frame->prev = w->chunk->before[RING_STAGE_PARTIAL];
	ring_count(w, RING_RESENT);
	*outcome = ring_send(w, ring_rank_after(ring_config.rank), w->length, sum);
	return true;
}

/* A result is in place: make it count, once in a generation, or again after it was refused. */
static __always_inline void ring_stored(struct ring_work *w, __u64 before, __u8 round, __u64 sum)
{
	__u32 generation = generation_of(w->progress);

	w->chunk->result_sum = sum;
	w->chunk->before[RING_STAGE_RESULT] = RING_NOTHING;
	__sync_lock_test_and_set(&w->chunk->result, word_of(generation, ring_result_of(round, RING_RESULT_DONE)));
	ring_count(w, RING_STORED);
	if (w->lane)
		w->lane->progress += 1;
	w->chunk->resent_us = 0; /* whoever asks for it from now on can have it */
	if (generation_of(before) == generation && ring_is_done(before))
		return;
	if (__sync_fetch_and_add(&w->control->stored, 1) + 1 == *(volatile __u32 *)&w->control->wake_at) {
		__u64 event = generation;

		bpf_ringbuf_output(&ring_events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
}

enum ring_taking {
	RING_TAKEN_FIRST, /* the first result of the chunk in this generation */
	RING_TAKEN_ANEW,  /* one of a later round */
	RING_NOT_TAKEN,
};

/* Take the frame's payload, which has been verified, for the result; what this rank holds already is kept if its process has verified it. */
static __always_inline enum ring_taking ring_take_result(struct ring_work *w, __u8 round, __u64 sum)
{
	__u32 generation = generation_of(w->progress);
	void *data = bpf_map_lookup_elem(&ring_results, &w->index);
	__u64 before = word_read(&w->chunk->result);
	bool first = generation_of(before) != generation;

	if (!data || (!first && ring_round_of(before) >= round && ring_state_of(before) != RING_RESULT_NONE))
		return RING_NOT_TAKEN;
	if (!first && ring_state_of(before) == RING_RESULT_CLAIMED) /* a CPU is writing one of an earlier round */
		return RING_NOT_TAKEN;
	if (!first && ring_is_verified(w, before))
		return word_advance(&w->chunk->result, before, word_of(generation, ring_result_of(round, ring_state_of(before)))) ? RING_TAKEN_ANEW : RING_NOT_TAKEN;
	if (!word_advance(&w->chunk->result, before, word_of(generation, ring_result_of(round, RING_RESULT_CLAIMED))))
		return RING_NOT_TAKEN;
	ring_payload_take(w->ctx, data, w->length);
	if (!ring_reload(w))
		return RING_NOT_TAKEN;
	ring_stored(w, before, round, sum);
	return first ? RING_TAKEN_FIRST : RING_TAKEN_ANEW;
}

/* Keep the frame's data until the process has its gradient ready and rings. `sum` is that of its payload, which has been verified. */
static __always_inline enum ring_verdict ring_park(struct ring_work *w, __u64 sum, bool *ready)
{
	struct ring_parked *parked;
	__u32 slot, length = w->frame->length;
	__u64 progress;
	void *data;
	int tries;

	if (length > ring_config.chunk_bytes || length < RING_BLOCK)
		return RING_GONE;
	for (tries = 0; tries < RING_PARKING_TRIES; tries++) {
		slot = (w->frame->chunk + tries * (RING_PARKING / RING_PARKING_TRIES)) % RING_PARKING;
		parked = bpf_map_lookup_elem(&ring_parking, &slot);
		if (!parked)
			return RING_GONE;
		if (__sync_val_compare_and_swap(&parked->state, RING_PARKING_FREE, RING_PARKING_FILLING) == RING_PARKING_FREE)
			break;
		if (parked->generation == w->frame->generation && parked->chunk == w->frame->chunk)
			return ring_drop(w, DROP_DUPLICATE);
	}
	if (tries == RING_PARKING_TRIES) {
		w->chunk->lost[RING_STAGE_PARTIAL] = w->frame->generation;
		return ring_drop(w, DROP_PARKING_FULL);
	}
	data = bpf_map_lookup_elem(&ring_parking_data, &slot);
	if (!data) /* cannot be: the maps are equally long */
		return RING_GONE;
	parked->generation = w->frame->generation;
	parked->chunk = w->frame->chunk;
	parked->attempt = w->frame->attempt;
	parked->hop = w->frame->hop;
	parked->round = w->frame->round;
	parked->sum = sum;
	parked->length = length;
	parked->tag = w->frame->tag;
	if (ring_payload_take(w->ctx, data, length)) {
		__sync_lock_test_and_set(&parked->state, RING_PARKING_FREE);
		return ring_drop(w, DROP_BAD_LENGTH);
	}
	__sync_lock_test_and_set(&parked->state, RING_PARKING_PARKED);
	/* The process may have become ready between the look at `progress` and the line above, and seen nothing parked. */
	progress = word_read(&w->control->progress);
	if (ring_reload(w) && generation_of(progress) == w->frame->generation && w->frame->chunk < (__u32)progress &&
	    __sync_val_compare_and_swap(&parked->state, RING_PARKING_PARKED, RING_PARKING_FREE) == RING_PARKING_PARKED) {
		w->progress = progress;
		*ready = true;
		return RING_GONE;
	}
	ring_count(w, RING_PARKED);
	return RING_GONE;
}

/* A partial sum is passed on that this rank has passed on before: it names what it named then. */
static __always_inline void ring_repeat(struct ring_work *w)
{
	w->frame->flags = 0;
	w->frame->prev = w->chunk->before[RING_STAGE_PARTIAL];
	w->chunk->attempt = w->frame->attempt;
}

/* Lap one, input ready: add it; the last rank of the lap has the sum. */
static __always_inline enum ring_verdict ring_reduce(struct ring_work *w)
{
	void *input = bpf_map_lookup_elem(&ring_inputs, &w->index);
	__u64 expected, sum, reduced = word_read(&w->chunk->reduced), now;
	__u32 generation = generation_of(w->progress);
	__u8 round = w->frame->round;
	bool last = w->frame->hop + 1 >= ring_config.ranks;

	if (!input)
		return RING_GONE;
	now = word_of(generation, round);
	/* With `origin` the owner begins lap ones anew that got lost further on: ranks on the way pass them on. */
	if (reduced != now ? !word_is_forward(reduced, now) : ring_config.upstream)
		return ring_drop(w, DROP_DUPLICATE);
	expected = ring_payload_expected(w) + w->chunk->input_sum;
	if (ring_payload_add(w->ctx, input, w->length, &sum))
		return ring_drop(w, DROP_BAD_LENGTH);
	if (ring_overtaken(w))
		return ring_drop(w, DROP_OVERTAKEN);
	if (sum != expected)
		return ring_drop(w, DROP_BAD_CHECKSUM);
	if (reduced != now && !word_advance(&w->chunk->reduced, reduced, now))
		return ring_drop(w, DROP_DUPLICATE);
	if (!ring_reload(w))
		return RING_GONE;
	if (w->lane && reduced != now)
		w->lane->progress += 1;
	ring_look_back(w);
	if (!last) {
		if (round)
			ring_note_loss(w);
		if (ring_config.upstream && ring_is_lossy(w, generation))
			ring_keep(w, sum);
		if (!ring_reload(w))
			return RING_GONE;
		w->frame->hop += 1;
		if (reduced != now)
			ring_enlist(w, generation, w->index, RING_STAGE_PARTIAL);
		else
			ring_repeat(w);
		return ring_send(w, ring_rank_after(ring_config.rank), w->length, sum);
	}
	if (ring_take_result(w, round, sum) == RING_NOT_TAKEN)
		return ring_drop(w, DROP_DUPLICATE);
	if (!ring_reload(w))
		return RING_GONE;
	w->frame->kind = RING_RESULT;
	w->frame->hop = 1;
	ring_enlist(w, generation, w->index, RING_STAGE_RESULT);
	return ring_send(w, ring_rank_after(ring_config.rank), w->length, sum);
}
