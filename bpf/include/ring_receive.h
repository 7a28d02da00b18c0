/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The receiving side: what a rank does with each kind of frame that arrives on its link. */
#pragma once

#include "ring_store.h"

/* Does the whole frame match its checksum? */
static __always_inline bool ring_verify(struct ring_work *w, __u64 *sum)
{
	__u64 expected = ring_payload_expected(w);

	if (ring_payload_sum(w->ctx, w->length, sum)) {
		ring_count(w, DROP_BAD_LENGTH);
		return false;
	}
	w->verified = *sum == expected;
	if (!w->verified)
		ring_count(w, DROP_BAD_CHECKSUM);
	return w->verified;
}

/* Does the frame, which has this rank's sequence number, fit this rank's tensor? If not, its sender
 * reduces another tensor, or the frame was damaged. Only the former counts as a bad tensor, because
 * the process fails the collective then.
 */
static __always_inline bool ring_fits(struct ring_work *w)
{
	struct ring_tensor *tensor = ring_tensor_of(w, w->frame->seq);
	__u64 sum;

	if (w->index < tensor->total && w->frame->length == tensor->length &&
	    w->frame->tag == tensor->tag)
		return true;
	if (w->frame->kind == RING_NACK ? ring_is_sealed(w) : ring_verify(w, &sum))
		ring_count(w, DROP_BAD_TENSOR);
	return false;
}

/* Look up the frame's chunk. Drop the frame if its payload cannot be one. */
static __always_inline bool ring_find_chunk(struct ring_work *w)
{
	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	if (!w->chunk || w->index >= ring_config.chunks) {
		ring_count(w, DROP_BAD_CHUNK);
		return false;
	}
	if (!w->frame->seq) { /* chunks that were never stored carry 0 */
		ring_count(w, DROP_BAD_SEQ);
		return false;
	}
	w->length = w->frame->length;
	if (w->length > ring_config.chunk_bytes || w->length < RING_BLOCK ||
	    w->length % RING_BLOCK) {
		ring_count(w, DROP_BAD_LENGTH);
		return false;
	}
	/* An earlier collective is answered with the frame's own length; the next one's tensor is
	 * not known yet. */
	return w->frame->seq != seq_of(w->progress) || ring_fits(w);
}

/* Does this rank hold the result of the frame's chunk and sequence number? */
static __always_inline bool ring_holds(struct ring_work *w)
{
	__u64 result = word_read(&w->chunk->result);

	return seq_of(result) == w->frame->seq && ring_is_done(result);
}

/* Is that result good enough for the frame's round? A verified one is good enough for any round. */
static __always_inline bool ring_holds_enough(struct ring_work *w)
{
	__u64 result = word_read(&w->chunk->result);

	return ring_holds(w) &&
	       (ring_round_of(result) >= w->frame->round || ring_is_verified(w, result));
}

static __always_inline enum ring_verdict ring_on_reduce(struct ring_work *w)
{
	__u32 seq = w->frame->seq, mine = seq_of(w->progress);
	__u32 hop = ring_steps_to(w->index, ring_config.rank);
	bool ready = false;
	__u64 sum;

	if (!hop || w->frame->hop != hop || w->frame->sender != ring_rank_before(ring_config.rank))
		return ring_drop(w, DROP_BAD_RANK);
	if (!ring_config.upstream && ring_holds_enough(w) && !ring_is_scattered(w, seq, w->index)) {
		/* The owner lacks the result, which was sent on from here. */
		if (!ring_verify(w, &sum))
			return RING_GONE;
		return ring_too_soon(w)
			       ? RING_GONE
			       : ring_send_result(w->ctx, w->progress,
						  ring_owner_of(w, seq, w->index), w->frame->round,
						  w->chunk->before[RING_STAGE_RESULT]);
	}
	if (seq != mine && seq != seq_after(mine))
		return ring_drop(w, DROP_BAD_SEQ);
	if (seq == mine && w->index < (__u32)w->progress)
		return ring_reduce(w);
	if (!ring_verify(w, &sum))
		return RING_GONE;
	ring_look_back(w);
	ring_save_early(w, sum, &ready);
	if (!ready)
		return RING_GONE;
	return ring_fits(w) ? ring_reduce(w) : RING_GONE;
}

/* A frame of a broadcast has come back to the root: it becomes the next chunk. The first to come
 * back counts, and a duplicate launches nothing. */
static __always_inline enum ring_verdict ring_on_return(struct ring_work *w)
{
	__u64 reduced = word_read(&w->chunk->reduced), sum;

	if (w->frame->sender != ring_rank_before(ring_config.rank))
		return ring_drop(w, DROP_BAD_RANK);
	if (w->frame->seq != seq_of(w->progress) || seq_of(reduced) != w->frame->seq)
		return ring_drop(w, DROP_BAD_SEQ);
	if (reduced & RING_RETURNED)
		return ring_drop(w, DROP_DUPLICATE);
	if (!ring_verify(w, &sum))
		return RING_GONE;
	ring_look_back(w);
	if (!word_advance(&w->chunk->reduced, reduced, reduced | RING_RETURNED))
		return ring_drop(w, DROP_DUPLICATE);
	if (w->stream)
		w->stream->progress += 1;
	return ring_reload(w) ? ring_launch_next(w) : RING_GONE;
}

static __always_inline enum ring_verdict ring_on_result(struct ring_work *w)
{
	__u32 seq = w->frame->seq, hop = ring_result_steps_to(w, seq, w->index, ring_config.rank);
	bool gathered = ring_is_gathered(w, seq, w->index);
	__u8 round = w->frame->round;
	__u64 result = word_read(&w->chunk->result), sum;
	bool broadcast = ring_is_broadcast(w, seq, w->index);
	__u32 end = ring_config.ranks + gathered + broadcast;
	enum ring_taking taken;

	if (broadcast && hop == 1 && w->frame->hop == ring_config.ranks + 1)
		return ring_on_return(w);
	if (w->frame->hop != hop)
		return ring_drop(w, DROP_BAD_RANK);
	if (seq_of(result) == seq && ring_state_of(result) != RING_RESULT_NONE &&
	    ring_round_of(result) >= round)
		return ring_drop(w, DROP_DUPLICATE);
	/* No sum is complete without this rank's input, and none that is scattered travels: a
	 * forgery, or a stale frame. What is only gathered needs no input. */
	if (seq != seq_of(w->progress) || (w->index >= (__u32)w->progress && !gathered) ||
	    ring_is_scattered(w, seq, w->index))
		return ring_drop(w, DROP_BAD_SEQ);
	if (!ring_verify(w, &sum))
		return RING_GONE;
	ring_look_back(w);
	taken = ring_take_result(w, round, sum);
	if (taken == RING_NOT_TAKEN)
		return ring_drop(w, DROP_DUPLICATE);
	if (!ring_reload(w))
		return RING_GONE;
	ring_note_arrival(w, RING_STAGE_RESULT);
	if (hop + 1 < end) {
		w->frame->hop = hop + 1;
		ring_enlist(w, seq, w->index, RING_STAGE_RESULT);
		return ring_send(w, ring_rank_after(ring_config.rank), w->length, sum);
	}
	return taken == RING_TAKEN_FIRST && hop + 1 == end ? ring_launch_next(w) : RING_GONE;
}

/* Ask the owner to start the reduce-scatter phase of the frame's chunk over, in a round after
 * `round`. */
static __always_inline enum ring_verdict ring_send_restart(struct ring_work *w, __u8 round)
{
	w->frame->kind = RING_NACK;
	w->frame->flags = RING_FLAG_RESTART;
	w->frame->hop = 0;
	w->frame->round = round;
	w->frame->attempt = ++w->chunk->nacks;
	w->frame->prev = RING_NOTHING;
	ring_count(w, RING_RESENT);
	return ring_send(w, ring_owner_of(w, w->frame->seq, w->index), w->length, 0);
}

/* Pass a nack on to the chunk's owner. It carries the lost frame's `prev`, so that the owner's
 * answer can carry it too. */
static __always_inline enum ring_verdict ring_pass_on(struct ring_work *w, __u32 prev)
{
	w->frame->prev = prev;
	w->frame->hop = 1;
	ring_count(w, RING_RESENT);
	return ring_send(w, ring_owner_of(w, w->frame->seq, w->index), w->length, 0);
}

/* Retransmit the partial sum that the next rank lacks. */
static __always_inline enum ring_verdict ring_resend_partial(struct ring_work *w, bool mine)
{
	__u64 reduced = word_read(&w->chunk->reduced);
	__u8 round = reduced;
	enum ring_verdict outcome;

	if (w->frame->seq != seq_of(w->progress) || seq_of(reduced) != w->frame->seq)
		return ring_drop(w, DROP_NOT_HELD);
	ring_note_loss(w);
	if (!ring_config.upstream && !mine)
		/* the chunk passes by here again and gets its `prev` then */
		return ring_pass_on(w, RING_NOTHING);
	if (ring_too_soon(w))
		return RING_GONE;
	if (mine)
		return ring_launch(w->ctx, w->progress, w->index, round, true);
	if (ring_send_saved(w, round, &outcome))
		return outcome;
	w->chunk->resent_us = now_us();
	return ring_send_restart(w, round);
}

/* A rank refused a result, or no buffer has the partial sum. If this rank has verified its own
 * result, send that. */
static __always_inline enum ring_verdict ring_on_restart(struct ring_work *w, bool mine)
{
	__u32 asker = w->frame->sender;

	if (!mine)
		return ring_drop(w, DROP_BAD_RANK);
	if (ring_holds(w) && ring_is_verified(w, word_read(&w->chunk->result))) {
		if (ring_too_soon(w))
			return RING_GONE;
		return ring_send_result(w->ctx, w->progress, asker, w->frame->round + 1,
					asker == ring_rank_after(ring_config.rank)
						? w->chunk->before[RING_STAGE_RESULT]
						: RING_NOTHING);
	}
	if (w->frame->seq != seq_of(w->progress))
		return ring_drop(w, DROP_NOT_HELD);
	return ring_restart(w, w->frame->round);
}

/* A nack from the next rank. With `upstream`, this rank retransmits; with `origin`, it passes the
 * nack on to the chunk's owner, which sends the result or starts the reduce-scatter phase over. A
 * frame that this rank has not sent is not lost, so a nack for it is dropped.
 */
static __always_inline enum ring_verdict ring_on_nack(struct ring_work *w)
{
	bool mine = ring_is_mine(w, w->frame->seq, w->index), direct = !w->frame->hop,
	     answers = ring_config.upstream || mine;
	__u32 asker = direct ? w->frame->sender : ring_rank_after(w->frame->sender);

	if (!ring_is_sealed(w))
		return RING_GONE;
	if (w->frame->flags & RING_FLAG_RESTART)
		return ring_on_restart(w, mine);
	if (direct ? asker != ring_rank_after(ring_config.rank) : ring_config.upstream || !mine)
		return ring_drop(w, DROP_BAD_RANK);
	if (ring_holds_enough(w)) {
		if (ring_is_scattered(w, w->frame->seq, w->index))
			return ring_drop(w, DROP_NOT_HELD); /* the owner lacks nothing */
		if (!answers)
			return ring_pass_on(w, w->chunk->before[RING_STAGE_RESULT]);
		if (asker == ring_config.rank)
			return ring_drop(w, DROP_DUPLICATE);
		if (ring_too_soon(w))
			return RING_GONE;
		return ring_send_result(w->ctx, w->progress, asker, w->frame->round,
					direct ? w->chunk->before[RING_STAGE_RESULT]
					       : w->frame->prev);
	}
	/* The result cannot arrive there before it arrives here, but the rank may lack the partial
	 * sum of a later round. */
	if (direct && w->frame->flags & RING_FLAG_RESULT &&
	    (__u8)word_read(&w->chunk->reduced) <= w->frame->summed)
		return ring_drop(w, DROP_NOT_HELD);
	return ring_resend_partial(w, mine);
}

/* Note what another rank says about itself. */
static __always_inline void ring_note_rank(struct ring_work *w)
{
	__u32 sender = w->frame->sender, seq = w->frame->seq;
	struct ring_rank *rank = bpf_map_lookup_elem(&ring_ranks, &sender);

	if (!rank)
		return;
	if (w->frame->flags & RING_FLAG_ENDED) {
		rank->ended = 1;
		__sync_val_compare_and_swap(&w->control->ended, 0,
					    word_of(w->frame->reason, w->frame->blamed));
	}
	if (rank->seq && seq_is_before(seq, rank->seq))
		return;
	if (!(w->frame->flags & RING_FLAG_ENDED))
		rank->front = w->frame->front;
	rank->seq = seq;
	if (w->frame->flags & RING_FLAG_VERIFIED)
		rank->verified = seq;
}

/* Send a probe or an answer. An answer to the next rank names the last frame of the stream.
 * `acked`: with RING_FLAG_VERIFIED_ACK, the sequence number that is acknowledged. */
static __always_inline enum ring_verdict ring_tell(struct ring_work *w, __u8 kind, __u32 to,
						   __u8 flags, __u16 acked)
{
	__u32 seq = seq_of(word_read(&w->control->progress));
	__u64 ended = word_read(&w->control->ended);

	w->frame->kind = kind;
	w->frame->seq = seq;
	if (ended)
		w->frame->blamed = ended;
	else
		w->frame->front = w->control->front;
	w->frame->hop = 0;
	w->frame->flags =
		flags | (*(volatile __u32 *)&w->control->verified == seq ? RING_FLAG_VERIFIED : 0) |
		(ended ? RING_FLAG_ENDED : 0);
	w->frame->reason = ended >> 32;
	w->frame->acked = acked;
	w->frame->prev = RING_NOTHING;
	if (kind == RING_ALIVE && to == ring_rank_after(ring_config.rank))
		ring_name_latest(w, seq);
	return ring_send(w, to, 0, 0);
}

static __always_inline enum ring_verdict ring_on_probe(struct ring_work *w)
{
	if (!ring_is_sealed(w))
		return RING_GONE;
	ring_note_rank(w);
	if (!(w->frame->flags & RING_FLAG_VERIFIED))
		return ring_tell(w, RING_ALIVE, w->frame->sender, 0, 0);
	return ring_tell(w, RING_ALIVE, w->frame->sender, RING_FLAG_VERIFIED_ACK, w->frame->seq);
}

static __always_inline enum ring_verdict ring_on_alive(struct ring_work *w)
{
	__u32 stream = w->frame->stream, sender = w->frame->sender,
	      verified = *(volatile __u32 *)&w->control->verified;
	struct ring_rank *rank = bpf_map_lookup_elem(&ring_ranks, &sender);

	if (!ring_is_sealed(w) || !rank)
		return RING_GONE;
	ring_note_rank(w);
	/* a late answer may acknowledge an earlier one */
	if (w->frame->flags & RING_FLAG_VERIFIED_ACK && w->frame->acked == (__u16)verified)
		rank->verified_acked = verified;
	if (sender != ring_rank_before(ring_config.rank) ||
	    seq_is_before(w->frame->seq, seq_of(w->progress)))
		return RING_GONE;
	w->control->answered_us = now_us();
	if (w->stream)
		*(volatile __u64 *)&w->stream->answer =
			word_of(w->control->answered_us, w->frame->attempt);
	ring_look_back(w);
	if (stream < 64)
		__sync_fetch_and_or(&w->control->flushed, 1ull << stream);
	return RING_GONE;
}

/* The first checks on every frame, before any field is used as an index. */
static __always_inline bool ring_begin(struct ring_work *w, struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();

	w->ctx = ctx;
	w->frame = frame_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	w->stream = bpf_map_lookup_elem(&ring_streams, &cpu);
	if (!ring_recall(w) || !w->frame)
		return false;
	if (w->frame->cookie != ring_config.cookie || w->frame->version != RING_VERSION ||
	    w->frame->group != ring_config.group) {
		ring_count(w, DROP_BAD_COOKIE);
		return false;
	}
	w->progress = word_read(&w->control->progress);
	w->index = w->frame->chunk;
	return true;
}

/* Is the frame addressed to this rank, and does its sender exist? */
static __always_inline bool ring_is_for_me(struct ring_work *w)
{
	__u32 sender = w->frame->sender;

	if (w->frame->receiver != ring_config.rank ||
	    w->frame->ip.destination != ring_config.peers[ring_config.rank].ip) {
		ring_count(w, DROP_BAD_RECEIVER);
		return false;
	}
	if (sender >= RING_MAX_RANKS || sender >= ring_config.ranks || sender == ring_config.rank ||
	    w->frame->ip.source != ring_config.peers[sender].ip) {
		ring_count(w, DROP_BAD_RANK);
		return false;
	}
	w->sender = sender;
	return true;
}

/* A frame that has been verified is a sign of life. Any other may be a dead rank's, damaged on its
 * way or sent by a stranger.
 */
static __always_inline void ring_note_life(struct ring_work *w)
{
	if (w->verified && w->stream)
		w->stream->heard[w->sender & (RING_MAX_RANKS - 1)] += 1;
}

static __always_inline enum ring_verdict ring_on_frame(struct ring_work *w)
{
	__u8 kind = w->frame->kind;
	__u32 next;

	if (!ring_is_for_me(w))
		return RING_GONE;
	if (kind == RING_PROBE)
		return ring_on_probe(w);
	if (kind == RING_ALIVE)
		return ring_on_alive(w);
	if (kind != RING_REDUCE && kind != RING_RESULT && kind != RING_NACK)
		return ring_drop(w, DROP_BAD_KIND);
	if (!ring_find_chunk(w))
		return RING_GONE;
	if (kind == RING_NACK)
		return ring_on_nack(w);
	next = w->index + ring_config.ranks;
	if (kind == RING_REDUCE) {
		ring_payload_touch(bpf_map_lookup_elem(&ring_inputs, &next));
		return ring_on_reduce(w);
	}
	ring_payload_touch(bpf_map_lookup_elem(&ring_results, &next));
	return ring_on_result(w);
}
