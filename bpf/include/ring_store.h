/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Inputs, partial sums, results and early frames: how a rank uses the memory that it shares with
 * its process.
 *
 * Nothing is written before the whole frame has been verified. Two CPUs may work on a frame and its
 * duplicate at once, and the process may enter the next collective meanwhile. So a writer first
 * moves the word that describes the memory forward (`word_advance`), which fails on a CPU that was
 * held up. A reader of memory that may be overwritten checks that word afterwards.
 */
#pragma once

#include "ring_stream.h"
#include "ring_payload.h"

/* A chunk is done at this rank. Wake the process if it waits for no more. */
static __always_inline void ring_count_stored(struct ring_work *w)
{
	if (__sync_fetch_and_add(&w->control->stored, 1) + 1 ==
	    *(volatile __u32 *)&w->control->wake_at) {
		__u64 event = seq_of(w->progress);

		bpf_ringbuf_output(&ring_events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
}

/* A result is in place: publish it. It counts once per collective, and again after it was refused.
 */
static __always_inline void ring_stored(struct ring_work *w, __u64 before, __u8 round, __u64 sum)
{
	__u32 seq = seq_of(w->progress);

	w->chunk->result_sum = sum;
	w->chunk->before[RING_STAGE_RESULT] = RING_NOTHING;
	__sync_lock_test_and_set(&w->chunk->result,
				 word_of(seq, ring_result_of(round, RING_RESULT_DONE)));
	ring_count(w, RING_STORED);
	if (w->stream)
		w->stream->progress += 1;
	w->chunk->resent_us = 0; /* nacks are answered from now on */
	if (seq_of(before) != seq || !ring_is_done(before))
		ring_count_stored(w);
}

enum ring_taking {
	RING_TAKEN_FIRST, /* the first result of the chunk in this sequence number */
	RING_TAKEN_ANEW,  /* a result of a later round */
	RING_NOT_TAKEN,
};

/* Store the frame's payload, which has been verified, as the result. A result that the process has
 * verified stays as it is. */
static __always_inline enum ring_taking ring_take_result(struct ring_work *w, __u8 round, __u64 sum)
{
	__u32 seq = seq_of(w->progress);
	void *data = bpf_map_lookup_elem(&ring_results, &w->index);
	__u64 before = word_read(&w->chunk->result);
	bool first = seq_of(before) != seq;

	if (!data ||
	    (!first && ring_round_of(before) >= round && ring_state_of(before) != RING_RESULT_NONE))
		return RING_NOT_TAKEN;
	/* another CPU is writing the result of an earlier round */
	if (!first && ring_state_of(before) == RING_RESULT_CLAIMED)
		return RING_NOT_TAKEN;
	if (!first && ring_is_verified(w, before))
		return word_advance(&w->chunk->result, before,
				    word_of(seq, ring_result_of(round, ring_state_of(before))))
			       ? RING_TAKEN_ANEW
			       : RING_NOT_TAKEN;
	if (!word_advance(&w->chunk->result, before,
			  word_of(seq, ring_result_of(round, RING_RESULT_CLAIMED))))
		return RING_NOT_TAKEN;
	ring_payload_take(w->ctx, data, w->length);
	if (!ring_reload(w))
		return RING_NOT_TAKEN;
	ring_stored(w, before, round, sum);
	return first ? RING_TAKEN_FIRST : RING_TAKEN_ANEW;
}

/* Turn the frame into the first hop of one of this rank's chunks, and store a chunk that is only
 * gathered as this rank's own result. `again`: the chunk has been launched before. */
__noinline int ring_launch(struct xdp_md *ctx, __u64 progress, __u32 index, __u8 round, int again)
{
	struct ring_work here = {}, *w = &here;
	void *input = bpf_map_lookup_elem(&ring_inputs, &index);
	__u32 seq = seq_of(progress), length;
	struct ring_tensor *tensor;
	struct ring_chunk *chunk;
	enum ring_stage stage;
	bool gathered;
	__u64 sum;

	if (!input || !ring_resume(w, ctx, progress, index))
		return RING_GONE;
	chunk = w->chunk;
	tensor = ring_tensor_of(w, seq);
	length = tensor->length;
	gathered = ring_is_gathered(w, seq, index);
	stage = gathered ? RING_STAGE_RESULT : RING_STAGE_PARTIAL;
	if (!ring_resize(w, length))
		return RING_GONE;
	if (ring_payload_fill(w->ctx, input, length))
		return ring_drop(w, DROP_BAD_LENGTH);
	sum = chunk->input_sum;
	if (ring_overtaken(w))
		return ring_drop(w, DROP_OVERTAKEN);
	w->length = length;
	if (gathered && !again && ring_take_result(w, round, sum) == RING_NOT_TAKEN)
		return ring_drop(w, DROP_DUPLICATE);
	if (!ring_reload(w))
		return RING_GONE;
	w->frame->kind = gathered ? RING_RESULT : RING_REDUCE;
	w->frame->seq = seq;
	w->frame->chunk = index;
	w->frame->hop = gathered ? 2 : 1; /* as if the previous rank had computed the result */
	w->frame->flags = 0;		  /* ring_enlist may set one */
	w->frame->round = round;
	w->frame->tag = tensor->tag;
	if (again) {
		w->frame->attempt = ++chunk->attempt[seq & 1];
		w->frame->prev = chunk->before[stage];
		w->frame->flags = RING_FLAG_AGAIN;
		chunk->resent_us = now_us();
		ring_count(w, RING_RESENT);
	} else {
		w->frame->attempt = round ? chunk->attempt[seq & 1] + 1 : 0;
		ring_enlist(w, seq, index, stage);
	}
	return ring_send(w, ring_rank_after(ring_config.rank), length, sum);
}

/* Launch an own chunk, unless it has been launched. */
static __always_inline enum ring_verdict ring_launch_first(struct ring_work *w)
{
	__u32 seq = seq_of(w->progress);
	__u64 reduced;

	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	if (!w->chunk)
		return RING_GONE;
	reduced = word_read(&w->chunk->reduced);
	/* Round 0 is as low as a word of this sequence number can be. */
	if (seq_of(reduced) == seq || !word_advance(&w->chunk->reduced, reduced, word_of(seq, 0)))
		return RING_GONE;
	if (ring_is_scattered(w, seq, w->index))
		ring_count_stored(w);
	return ring_launch(w->ctx, w->progress, w->index, 0, false);
}

/* The frame is free: turn it into this rank's next chunk, if there is one. If the input of that
 * chunk is not ready, the process launches the chunk after it has moved `progress`: it reads `next`
 * after that, and both sides have a memory barrier.
 */
static __always_inline enum ring_verdict ring_launch_next(struct ring_work *w)
{
	__u64 next = __sync_fetch_and_add(&w->control->next, 1);
	__u64 progress = word_read(&w->control->progress);

	w->index = ring_config.rank + ring_config.ranks * (__u32)next;
	if (ring_tensor_of(w, seq_of(next))->root)
		w->index = next; /* slots are all chunks, of which this rank may own none */
	if (seq_of(next) != seq_of(progress) || w->index >= (__u32)progress)
		return RING_GONE;
	w->progress = progress;
	if (!ring_is_mine(w, seq_of(progress), w->index))
		return RING_GONE;
	return ring_launch_first(w);
}

/* Start the reduce-scatter phase of an own chunk over: no buffer has the partial sum that was lost,
 * or a rank refused the result of `round`. */
static __always_inline enum ring_verdict ring_restart(struct ring_work *w, __u8 round)
{
	__u64 reduced = word_read(&w->chunk->reduced);

	/* A nack that names an earlier round comes from a rank that has not seen this one, which
	 * may be lost. With `upstream` the ranks in between recover it hop by hop, unless the chunk
	 * is scattered: then they wait for no result, so they do not miss a later round.
	 */
	if (seq_of(reduced) == seq_of(w->progress) && (__u8)reduced > round) {
		if (ring_is_scattered(w, seq_of(w->progress), w->index)
			    ? ring_resent_lately(w)
			    : ring_config.upstream || ring_too_soon(w))
			return RING_GONE;
		return ring_launch(w->ctx, w->progress, w->index, reduced, true);
	}
	if (seq_of(reduced) != seq_of(w->progress) || (__u8)reduced != round || round == 0xff ||
	    !word_advance(&w->chunk->reduced, reduced, reduced + 1))
		return RING_GONE;
	ring_count(w, RING_RESTARTED);
	ring_count(w, RING_RESENT);
	w->chunk->resent_us = now_us();
	return ring_launch(w->ctx, w->progress, w->index, round + 1, false);
}

/* Turn the frame into the result that this rank holds, for a rank that lacks it or that refused an
 * earlier round. `prev`: the predecessor of the lost frame.
 */
__noinline int ring_send_result(struct xdp_md *ctx, __u64 progress, __u32 to, __u8 round,
				__u32 prev)
{
	struct ring_frame *f = (void *)(long)ctx->data;
	struct ring_work here = {}, *w = &here;
	__u32 length, seq;
	__u64 result, sum;
	void *data;

	if ((void *)(f + 1) > (void *)(long)ctx->data_end ||
	    !ring_resume(w, ctx, progress, f->chunk))
		return RING_GONE;
	length = w->frame->length;
	seq = w->frame->seq;
	result = word_read(&w->chunk->result);
	data = bpf_map_lookup_elem(&ring_results, &w->index);
	if (!data || to >= ring_config.ranks || !ring_resize(w, length))
		return RING_GONE;
	barrier();
	if (ring_payload_fill(w->ctx, data, length))
		return ring_drop(w, DROP_BAD_LENGTH);
	sum = w->chunk->result_sum;
	barrier();
	if (word_read(&w->chunk->result) != result || seq_of(result) != seq ||
	    !ring_is_done(result))
		return ring_drop(w, DROP_OVERTAKEN);
	if (!ring_reload(w))
		return RING_GONE;
	w->chunk->resent_us = now_us();
	w->frame->kind = RING_RESULT;
	w->frame->hop = ring_result_steps_to(w, seq, w->index, to);
	w->frame->flags = RING_FLAG_AGAIN;
	w->frame->round = ring_round_of(result) > round ? ring_round_of(result) : round;
	w->frame->attempt = ++w->chunk->attempt[seq & 1];
	w->frame->prev = prev;
	ring_count(w, RING_ANSWERED);
	ring_count(w, RING_RESENT);
	return ring_send(w, to, length, sum);
}

static __always_inline __u32 ring_retransmit_slot(__u32 index)
{
	return index & (ring_config.retransmit_slots - 1);
}

/* Have there been losses lately? If not, no rank will nack a partial sum, and saving each would
 * waste a memcpy per hop. The first partial sum to be lost costs its chunk another round, whose
 * partial sums all ranks save.
 */
static __always_inline bool ring_is_lossy(struct ring_work *w, __u32 seq)
{
	__u32 lossy = *(volatile __u32 *)&w->control->lossy;

	return lossy && seq - lossy < RING_LOSSY_FOR;
}

/* Save the partial sum in the retransmit buffer, unless its slot holds one that may still be
 * needed. */
__noinline int ring_save_partial(struct xdp_md *ctx, __u64 progress, __u32 index, __u32 length,
				 __u64 sum)
{
	struct ring_work here = {}, *w = &here;
	__u32 slot = ring_retransmit_slot(index), seq = seq_of(progress), other;
	struct ring_retransmit *saved = bpf_map_lookup_elem(&ring_retransmit, &slot);
	void *data = bpf_map_lookup_elem(&ring_retransmit_data, &slot);
	__u64 mine = word_of(seq, index), owner;
	struct ring_chunk *chunk;

	if (!saved || !data || !ring_resume(w, ctx, progress, index))
		return 0;
	owner = word_read(&saved->owner);
	if (owner != mine && seq_of(owner) == seq) {
		other = owner;
		chunk = bpf_map_lookup_elem(&ring_chunks, &other);
		/* If that chunk's result is here, the next rank has received its partial sum. No
		 * result of a scattered chunk comes, but the older of two has probably arrived. */
		if (chunk && seq_of(word_read(&chunk->result)) != seq &&
		    !ring_is_scattered(w, seq, other)) {
			ring_count(w, RING_UNSAVED);
			return 0;
		}
	}
	if (owner != mine && seq_is_before(seq, seq_of(owner)) && owner)
		return 0;
	saved->valid = 0;
	if (__sync_val_compare_and_swap(&saved->owner, owner, mine) != owner)
		return 0;
	if (ring_payload_take(ctx, data, length))
		return 0;
	saved->sum = sum;
	saved->round = (__u8)word_read(&w->chunk->reduced);
	__sync_lock_test_and_set(&saved->valid, mine);
	return 0;
}

/* Turn the frame into the partial sum from the retransmit buffer. False: the buffer does not have
 * it. */
static __always_inline bool ring_send_saved(struct ring_work *w, __u8 round,
					    enum ring_verdict *outcome)
{
	__u32 slot = ring_retransmit_slot(w->index), seq = seq_of(w->progress);
	struct ring_retransmit *saved = bpf_map_lookup_elem(&ring_retransmit, &slot);
	void *data = bpf_map_lookup_elem(&ring_retransmit_data, &slot);
	__u64 mine = word_of(seq, w->index), sum;

	*outcome = RING_GONE;
	if (!saved || !data || word_read(&saved->valid) != mine || saved->round != round)
		return false;
	if (!ring_resize(w, w->length) || ring_payload_fill(w->ctx, data, w->length))
		return true;
	sum = saved->sum;
	barrier();
	if (word_read(&saved->valid) != mine || saved->round != round || !ring_reload(w))
		return true;
	w->chunk->resent_us = now_us();
	w->frame->kind = RING_REDUCE;
	w->frame->hop = ring_steps_to(w->index, ring_config.rank) + 1;
	w->frame->flags = RING_FLAG_AGAIN;
	w->frame->round = round;
	w->frame->attempt = ++w->chunk->attempt[w->frame->seq & 1];
	w->frame->prev = w->chunk->before[RING_STAGE_PARTIAL];
	ring_count(w, RING_RESENT);
	*outcome = ring_send(w, ring_rank_after(ring_config.rank), w->length, sum);
	return true;
}

/* Save the frame until the process has its input ready and kicks. `sum` is that of the payload,
 * which has been verified. */
static __always_inline enum ring_verdict ring_save_early(struct ring_work *w, __u64 sum,
							 bool *ready)
{
	struct ring_early *early;
	__u32 slot, length = w->frame->length;
	__u64 progress;
	void *data;
	int tries;

	if (length > ring_config.chunk_bytes || length < RING_BLOCK)
		return RING_GONE;
	for (tries = 0; tries < RING_EARLY_TRIES; tries++) {
		slot = (w->frame->chunk + tries * (RING_EARLY_SLOTS / RING_EARLY_TRIES)) %
		       RING_EARLY_SLOTS;
		early = bpf_map_lookup_elem(&ring_early_frames, &slot);
		if (!early)
			return RING_GONE;
		if (__sync_val_compare_and_swap(&early->state, RING_EARLY_FREE,
						RING_EARLY_FILLING) == RING_EARLY_FREE)
			break;
		if (early->seq == w->frame->seq && early->chunk == w->frame->chunk)
			return ring_drop(w, DROP_DUPLICATE);
	}
	if (tries == RING_EARLY_TRIES) {
		w->chunk->lost[RING_STAGE_PARTIAL] = w->frame->seq;
		return ring_drop(w, DROP_EARLY_FULL);
	}
	data = bpf_map_lookup_elem(&ring_early_data, &slot);
	if (!data) /* cannot happen: the maps have equal lengths */
		return RING_GONE;
	early->seq = w->frame->seq;
	early->chunk = w->frame->chunk;
	early->attempt = w->frame->attempt;
	early->hop = w->frame->hop;
	early->round = w->frame->round;
	early->sum = sum;
	early->length = length;
	early->tag = w->frame->tag;
	if (ring_payload_take(w->ctx, data, length)) {
		__sync_lock_test_and_set(&early->state, RING_EARLY_FREE);
		return ring_drop(w, DROP_BAD_LENGTH);
	}
	__sync_lock_test_and_set(&early->state, RING_EARLY_WAITING);
	if (ring_reload(w))
		ring_note_arrival(w, RING_STAGE_PARTIAL);
	/* The process may have moved `progress` before the state was set above, and have seen no
	 * early frame. */
	progress = word_read(&w->control->progress);
	if (ring_reload(w) && seq_of(progress) == w->frame->seq &&
	    w->frame->chunk < (__u32)progress &&
	    __sync_val_compare_and_swap(&early->state, RING_EARLY_WAITING, RING_EARLY_FREE) ==
		    RING_EARLY_WAITING) {
		w->progress = progress;
		*ready = true;
		return RING_GONE;
	}
	ring_count(w, RING_EARLY);
	return RING_GONE;
}

/* The chunk's partial sum was sent before: repeat its `prev`. */
static __always_inline void ring_repeat(struct ring_work *w)
{
	w->frame->flags = RING_FLAG_AGAIN;
	w->frame->prev = w->chunk->before[RING_STAGE_PARTIAL];
	w->chunk->attempt[w->frame->seq & 1] = w->frame->attempt;
}

/* Reduce-scatter phase, with the input ready: add it. The last rank of the phase has the sum. */
static __always_inline enum ring_verdict ring_reduce(struct ring_work *w)
{
	__u64 expected, sum, reduced = word_read(&w->chunk->reduced), now;
	__u32 seq = seq_of(w->progress);
	__u8 round = w->frame->round;
	bool last = w->frame->hop + 1 >= ring_config.ranks,
	     scattered = ring_is_scattered(w, seq, w->index);
	enum ring_taking taken;

	now = word_of(seq, round);
	/* With `origin`, and with a later round of a scattered chunk, the owner restarts a phase
	 * that failed at a later hop, and the ranks before that hop pass its frames on. */
	if (reduced != now ? !word_is_forward(reduced, now)
			   : ring_config.upstream && !(scattered && round))
		return ring_drop(w, DROP_DUPLICATE);
	expected = ring_payload_expected(w) + w->chunk->input_sum;
	if (ring_payload_add(w->ctx, w->index, w->length, &sum))
		return ring_drop(w, DROP_BAD_LENGTH);
	if (ring_overtaken(w))
		return ring_drop(w, DROP_OVERTAKEN);
	w->verified = sum == expected;
	if (!w->verified)
		return ring_drop(w, DROP_BAD_CHECKSUM);
	if (reduced != now && !word_advance(&w->chunk->reduced, reduced, now))
		return ring_drop(w, DROP_DUPLICATE);
	if (scattered && !last && seq_of(reduced) != seq)
		ring_count_stored(w);
	if (!ring_reload(w))
		return RING_GONE;
	if (reduced != now)
		ring_note_arrival(w, RING_STAGE_PARTIAL);
	if (w->stream && reduced != now)
		w->stream->progress += 1;
	ring_look_back(w);
	if (!last) {
		if (round)
			ring_note_loss(w);
		if (ring_config.upstream && ring_is_lossy(w, seq))
			ring_save_partial(w->ctx, w->progress, w->index, w->length, sum);
		if (!ring_reload(w))
			return RING_GONE;
		w->frame->hop += 1;
		if (reduced != now)
			ring_enlist(w, seq, w->index, RING_STAGE_PARTIAL);
		else
			ring_repeat(w);
		return ring_send(w, ring_rank_after(ring_config.rank), w->length, sum);
	}
	taken = ring_take_result(w, round, sum);
	if (taken == RING_NOT_TAKEN)
		return ring_drop(w, DROP_DUPLICATE);
	if (!ring_reload(w))
		return RING_GONE;
	if (scattered)
		return taken == RING_TAKEN_FIRST ? ring_launch_next(w) : RING_GONE;
	w->frame->kind = RING_RESULT;
	w->frame->hop = 1;
	ring_enlist(w, seq, w->index, RING_STAGE_RESULT);
	return ring_send(w, ring_rank_after(ring_config.rank), w->length, sum);
}
