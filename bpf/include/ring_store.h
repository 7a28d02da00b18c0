/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Inputs, partial sums, results and parked frames: what one rank does with the memory that it shares with its process.
 *
 * Nothing that is held is written before the whole frame has been verified. Two CPUs may work on a frame and its duplicate at once, and the
 * process may begin the next collective meanwhile: so whoever writes has moved a word forward that says what is there (`advance`), which a CPU
 * that was held up cannot; and whoever has read memory that may be overwritten looks afterwards whether it has been.
 */
#pragma once

#include "ring_lane.h"
#include "ring_payload.h"

/* The frame becomes this rank's own chunk on its first lap. `again`: it was sent before. */
static __always_inline enum outcome launch(struct work *w, __u8 round, bool again)
{
	__u32 index = w->index, generation = generation_of(w->progress);
	void *input = bpf_map_lookup_elem(&inputs, &index);
	struct ring_tensor *tensor = tensor_of(w, generation);
	struct ring_chunk *chunk = w->chunk;
	__u32 length = tensor->length;
	__u64 sum;

	if (!chunk || !input || !resize(w, length))
		return GONE;
	if (payload_fill(w->ctx, input, length))
		return drop(w, RING_BAD_LENGTH);
	sum = chunk->input_sum;
	if (overtaken(w))
		return drop(w, RING_OVERTAKEN);
	if (!reload(w))
		return GONE;
	w->frame->kind = RING_REDUCE;
	w->frame->generation = generation;
	w->frame->chunk = index;
	w->frame->hop = 1;
	w->frame->flags = 0; /* enlist may set one */
	w->frame->round = round;
	w->frame->tag = tensor->tag;
	if (again) {
		w->frame->attempt = ++chunk->attempt;
		w->frame->prev = chunk->before[PARTIAL];
		chunk->resent_us = now_us();
		count(w, RING_RESENT);
	} else {
		w->frame->attempt = round ? chunk->attempt + 1 : 0;
		enlist(w, generation, index, PARTIAL);
	}
	return send(w, rank_after(config.rank), length, sum);
}

/* Launch an own chunk that nobody has launched yet. */
static __always_inline enum outcome launch_first(struct work *w)
{
	__u32 generation = generation_of(w->progress);
	__u64 reduced;

	w->chunk = bpf_map_lookup_elem(&chunks, &w->index);
	if (!w->chunk)
		return GONE;
	reduced = read_word(&w->chunk->reduced);
	/* Round 0 is as low as a word of this generation can be. */
	if (generation_of(reduced) == generation || !advance(&w->chunk->reduced, reduced, word_of(generation, 0)))
		return GONE;
	return launch(w, 0, false);
}

/* The frame is at liberty: it carries on as this rank's next chunk, if there is one. A slot beyond what is ready is left to the
 * process, which launches it when it has moved `progress` (it reads `next` after that; both sides are fenced).
 */
static __always_inline enum outcome launch_next(struct work *w)
{
	__u64 next = __sync_fetch_and_add(&w->control->next, 1);
	__u64 progress = read_word(&w->control->progress);

	w->index = config.rank + config.ranks * (__u32)next;
	if (generation_of(next) != generation_of(progress) || w->index >= (__u32)progress)
		return GONE;
	w->progress = progress;
	return launch_first(w);
}

/* Begin the first lap of an own chunk anew: nobody keeps what was lost, or a rank has refused the result of round `round`. */
static __always_inline enum outcome restart(struct work *w, __u8 round)
{
	__u64 reduced = read_word(&w->chunk->reduced);

	if (generation_of(reduced) != generation_of(w->progress) || (__u8)reduced != round || round == 0xff ||
	    !advance(&w->chunk->reduced, reduced, reduced + 1))
		return GONE;
	count(w, RING_RESTARTED);
	count(w, RING_RESENT);
	return launch(w, round + 1, false);
}

/* The frame becomes the result that this rank holds, for a rank that lacks it or one of a later round.
 * `prev`: what the rank before the receiver had sent it before the result.
 */
static __always_inline enum outcome send_result(struct work *w, __u32 to, __u8 round, __u32 prev)
{
	void *data = bpf_map_lookup_elem(&results, &w->index);
	__u32 length = w->length, generation = w->frame->generation;
	__u64 result = read_word(&w->chunk->result), sum;

	if (!data || to >= config.ranks || !resize(w, length))
		return GONE;
	barrier();
	if (payload_fill(w->ctx, data, length))
		return drop(w, RING_BAD_LENGTH);
	sum = w->chunk->result_sum;
	barrier();
	if (read_word(&w->chunk->result) != result || generation_of(result) != generation || state_of(result) != RESULT_DONE)
		return drop(w, RING_OVERTAKEN);
	if (!reload(w))
		return GONE;
	w->chunk->resent_us = now_us();
	w->frame->kind = RING_RESULT;
	w->frame->hop = result_steps_to(w->index, to);
	w->frame->flags = 0;
	w->frame->round = round_of(result) > round ? round_of(result) : round;
	w->frame->attempt = ++w->chunk->attempt;
	w->frame->prev = prev;
	count(w, RING_ANSWERED);
	count(w, RING_RESENT);
	return send(w, to, length, sum);
}

static __always_inline __u32 kept_slot(__u32 index)
{
	return index & (config.kept - 1);
}

/* Keep the partial sum that is about to be sent, unless the slot has one that may still be needed. */
static __always_inline void keep(struct work *w, __u64 sum)
{
	__u32 slot = kept_slot(w->index), generation = generation_of(w->progress), other;
	struct ring_kept *kept_slot = bpf_map_lookup_elem(&kept, &slot);
	void *data = bpf_map_lookup_elem(&kept_data, &slot);
	__u64 mine = word_of(generation, w->index), owner;
	struct ring_chunk *chunk;

	if (!kept_slot || !data)
		return;
	owner = read_word(&kept_slot->owner);
	if (owner != mine && generation_of(owner) == generation) {
		other = owner;
		chunk = bpf_map_lookup_elem(&chunks, &other);
		/* Whose result is here was taken from this rank by the rank behind. */
		if (chunk && generation_of(read_word(&chunk->result)) != generation) {
			count(w, RING_UNKEPT);
			return;
		}
	}
	if (owner != mine && is_before(generation, generation_of(owner)) && owner)
		return;
	kept_slot->valid = 0;
	if (__sync_val_compare_and_swap(&kept_slot->owner, owner, mine) != owner)
		return;
	if (payload_take(w->ctx, data, w->length))
		return;
	kept_slot->sum = sum;
	kept_slot->round = (__u8)read_word(&w->chunk->reduced);
	__sync_lock_test_and_set(&kept_slot->valid, mine);
}

/* The frame becomes the partial sum that this rank has sent. False: it is not kept. */
static __always_inline bool send_kept(struct work *w, __u8 round, enum outcome *outcome)
{
	__u32 slot = kept_slot(w->index), generation = generation_of(w->progress);
	struct ring_kept *kept_slot = bpf_map_lookup_elem(&kept, &slot);
	void *data = bpf_map_lookup_elem(&kept_data, &slot);
	__u64 mine = word_of(generation, w->index), sum;

	*outcome = GONE;
	if (!kept_slot || !data || read_word(&kept_slot->valid) != mine || kept_slot->round != round)
		return false;
	if (!resize(w, w->length) || payload_fill(w->ctx, data, w->length))
		return true;
	sum = kept_slot->sum;
	barrier();
	if (read_word(&kept_slot->valid) != mine || kept_slot->round != round || !reload(w))
		return true;
	w->chunk->resent_us = now_us();
	w->frame->kind = RING_REDUCE;
	w->frame->hop = steps_to(w->index, config.rank) + 1;
	w->frame->flags = 0;
	w->frame->round = round;
	w->frame->attempt = ++w->chunk->attempt;
	w->frame->prev = w->chunk->before[PARTIAL];
	count(w, RING_RESENT);
	*outcome = send(w, rank_after(config.rank), w->length, sum);
	return true;
}

/* A result is in place: make it count, once in a generation, or again after it was refused. */
static __always_inline void stored(struct work *w, __u64 before, __u8 round, __u64 sum)
{
	__u32 generation = generation_of(w->progress);

	w->chunk->result_sum = sum;
	w->chunk->before[RESULT] = RING_NOTHING;
	__sync_lock_test_and_set(&w->chunk->result, word_of(generation, result_of(round, RESULT_DONE)));
	count(w, RING_STORED);
	if (w->lane)
		w->lane->progress += 1;
	w->chunk->resent_us = 0; /* whoever asks for it from now on can have it */
	if (generation_of(before) == generation && state_of(before) == RESULT_DONE)
		return;
	if (__sync_fetch_and_add(&w->control->stored, 1) + 1 == *(volatile __u32 *)&w->control->wake_at) {
		__u64 event = generation;

		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
}

enum taking {
	TAKEN_FIRST, /* the first result of the chunk in this generation */
	TAKEN_ANEW,  /* one of a later round */
	NOT_TAKEN,
};

/* Take the frame's payload, which has been verified, for the result; what this rank holds already is kept if its process has verified it. */
static __always_inline enum taking take_result(struct work *w, __u8 round, __u64 sum)
{
	__u32 generation = generation_of(w->progress);
	void *data = bpf_map_lookup_elem(&results, &w->index);
	__u64 before = read_word(&w->chunk->result);
	bool first = generation_of(before) != generation;

	if (!data || (!first && round_of(before) >= round && state_of(before) != RESULT_NONE))
		return NOT_TAKEN;
	if (!first && state_of(before) == RESULT_CLAIMED) /* a CPU is writing one of an earlier round */
		return NOT_TAKEN;
	if (!first && state_of(before) == RESULT_DONE && is_settled(w, generation))
		return advance(&w->chunk->result, before, word_of(generation, result_of(round, RESULT_DONE))) ? TAKEN_ANEW : NOT_TAKEN;
	if (!advance(&w->chunk->result, before, word_of(generation, result_of(round, RESULT_CLAIMED))))
		return NOT_TAKEN;
	payload_take(w->ctx, data, w->length);
	if (!reload(w))
		return NOT_TAKEN;
	stored(w, before, round, sum);
	return first ? TAKEN_FIRST : TAKEN_ANEW;
}

/* Keep the frame's data until the process has its gradient ready and rings. `sum` is that of its payload, which has been verified. */
static __always_inline enum outcome park(struct work *w, __u64 sum, bool *ready)
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
	if (tries == RING_PARKING_TRIES) {
		w->chunk->lost[PARTIAL] = w->frame->generation;
		return drop(w, RING_PARKING_FULL);
	}
	data = bpf_map_lookup_elem(&parking_data, &slot);
	if (!data) /* cannot be: the maps are equally long */
		return GONE;
	parked->generation = w->frame->generation;
	parked->chunk = w->frame->chunk;
	parked->attempt = w->frame->attempt;
	parked->hop = w->frame->hop;
	parked->round = w->frame->round;
	parked->sum = sum;
	parked->length = length;
	parked->tag = w->frame->tag;
	if (payload_take(w->ctx, data, length)) {
		__sync_lock_test_and_set(&parked->state, PARKING_FREE);
		return drop(w, RING_BAD_LENGTH);
	}
	__sync_lock_test_and_set(&parked->state, PARKING_PARKED);
	/* The process may have become ready between the look at `progress` and the line above, and seen nothing parked. */
	progress = read_word(&w->control->progress);
	if (reload(w) && generation_of(progress) == w->frame->generation && w->frame->chunk < (__u32)progress &&
	    __sync_val_compare_and_swap(&parked->state, PARKING_PARKED, PARKING_FREE) == PARKING_PARKED) {
		w->progress = progress;
		*ready = true;
		return GONE;
	}
	return drop(w, RING_PARKED);
}

/* A partial sum is passed on that this rank has passed on before: it names what it named then. */
static __always_inline void repeat(struct work *w)
{
	w->frame->flags = 0;
	w->frame->prev = w->chunk->before[PARTIAL];
	w->chunk->attempt = w->frame->attempt;
}

/* Lap one, input ready: add it; the last rank of the lap has the sum. */
static __always_inline enum outcome reduce(struct work *w)
{
	void *input = bpf_map_lookup_elem(&inputs, &w->index);
	__u64 expected, sum, reduced = read_word(&w->chunk->reduced), now;
	__u32 generation = generation_of(w->progress);
	__u8 round = w->frame->round;
	bool last = w->frame->hop + 1 >= config.ranks;

	if (!input)
		return GONE;
	now = word_of(generation, round);
	/* With `origin` the owner begins lap ones anew that got lost further on: ranks on the way pass them on. */
	if (reduced != now ? !is_forward(reduced, now) : config.upstream)
		return drop(w, RING_DUPLICATE);
	expected = payload_expected(w) + w->chunk->input_sum;
	if (payload_add(w->ctx, input, w->length, &sum))
		return drop(w, RING_BAD_LENGTH);
	if (overtaken(w))
		return drop(w, RING_OVERTAKEN);
	if (sum != expected)
		return drop(w, RING_BAD_CHECKSUM);
	if (reduced != now && !advance(&w->chunk->reduced, reduced, now))
		return drop(w, RING_DUPLICATE);
	if (!reload(w))
		return GONE;
	if (w->lane && reduced != now)
		w->lane->progress += 1;
	look_back(w);
	if (!last) {
		if (config.upstream)
			keep(w, sum);
		if (!reload(w))
			return GONE;
		w->frame->hop += 1;
		if (reduced != now)
			enlist(w, generation, w->index, PARTIAL);
		else
			repeat(w);
		return send(w, rank_after(config.rank), w->length, sum);
	}
	if (take_result(w, round, sum) == NOT_TAKEN)
		return drop(w, RING_DUPLICATE);
	if (!reload(w))
		return GONE;
	w->frame->kind = RING_RESULT;
	w->frame->hop = 1;
	enlist(w, generation, w->index, RESULT);
	return send(w, rank_after(config.rank), w->length, sum);
}
