/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The wire's side: what a rank does with each kind of frame that comes in by its link. */
#pragma once

#include "ring_store.h"

/* Is the frame, which is of this rank's generation, one of this rank's tensor? */
static __always_inline bool fits(struct work *w)
{
	struct ring_tensor *tensor = tensor_of(w, w->frame->generation);

	if (w->index >= tensor->total)
		count(w, RING_BAD_CHUNK);
	else if (w->frame->length != tensor->length)
		count(w, RING_BAD_LENGTH);
	else if (w->frame->tag != tensor->tag)
		count(w, RING_BAD_TENSOR);
	else
		return true;
	return false;
}

/* Look up the chunk that the frame names; refuse the frame if its payload cannot be one. */
static __always_inline bool find_chunk(struct work *w)
{
	w->chunk = bpf_map_lookup_elem(&chunks, &w->index);
	if (!w->chunk || w->index >= config.chunks) {
		count(w, RING_BAD_CHUNK);
		return false;
	}
	if (!w->frame->generation) { /* what chunks that were never stored have */
		count(w, RING_BAD_GENERATION);
		return false;
	}
	w->length = w->frame->length;
	if (w->length > config.chunk_bytes || w->length < RING_BLOCK || w->length % RING_BLOCK) {
		count(w, RING_BAD_LENGTH);
		return false;
	}
	/* Other generations: an earlier one is answered as it asks, what the next one will be is not known yet. */
	return w->frame->generation != generation_of(w->progress) || fits(w);
}

/* Does this rank hold the result of the frame's chunk and generation? */
static __always_inline bool holds(struct work *w)
{
	__u64 result = read_word(&w->chunk->result);

	return generation_of(result) == w->frame->generation && state_of(result) == RESULT_DONE;
}

/* Is it good enough for a rank that is in the frame's round? One that this rank's process has verified is for any. */
static __always_inline bool holds_enough(struct work *w)
{
	return holds(w) && (round_of(read_word(&w->chunk->result)) >= w->frame->round || is_settled(w, w->frame->generation));
}

/* Is the whole frame what its sender has sealed? */
static __always_inline bool verify(struct work *w, __u64 *sum)
{
	__u64 expected = payload_expected(w);

	if (payload_sum(w->ctx, w->length, sum)) {
		count(w, RING_BAD_LENGTH);
		return false;
	}
	if (*sum == expected)
		return true;
	count(w, RING_BAD_CHECKSUM);
	return false;
}

static __always_inline enum outcome on_reduce(struct work *w)
{
	__u32 generation = w->frame->generation, mine = generation_of(w->progress);
	__u32 hop = steps_to(w->index, config.rank);
	bool ready = false;
	__u64 sum;

	if (!hop || w->frame->hop != hop || w->frame->sender != rank_before(config.rank))
		return drop(w, RING_BAD_RANK);
	if (!config.upstream && holds_enough(w)) {
		/* The owner has not got the result, which went on from here. */
		if (!verify(w, &sum))
			return GONE;
		return too_soon(w) ? GONE : send_result(w, owner_of(w->index), w->frame->round, w->chunk->before[RESULT]);
	}
	if (generation != mine && generation != generation_after(mine))
		return drop(w, RING_BAD_GENERATION);
	if (generation == mine && w->index < (__u32)w->progress)
		return reduce(w);
	if (!verify(w, &sum))
		return GONE;
	look_back(w);
	park(w, sum, &ready);
	if (!ready)
		return GONE;
	return fits(w) ? reduce(w) : GONE;
}

static __always_inline enum outcome on_result(struct work *w)
{
	__u32 generation = w->frame->generation, hop = result_steps_to(w->index, config.rank);
	__u8 round = w->frame->round;
	__u64 result = read_word(&w->chunk->result), sum;
	enum taking taken;

	if (w->frame->hop != hop)
		return drop(w, RING_BAD_RANK);
	if (generation_of(result) == generation && state_of(result) != RESULT_NONE && round_of(result) >= round)
		return drop(w, RING_DUPLICATE);
	if (generation != generation_of(w->progress) || w->index >= (__u32)w->progress)
		/* No sum can be whole without this rank's part: a forgery, or a frame of another age. */
		return drop(w, RING_BAD_GENERATION);
	if (!verify(w, &sum))
		return GONE;
	look_back(w);
	taken = take_result(w, round, sum);
	if (taken == NOT_TAKEN)
		return drop(w, RING_DUPLICATE);
	if (!reload(w))
		return GONE;
	if (hop + 1 < config.ranks) {
		w->frame->hop = hop + 1;
		enlist(w, generation, w->index, RESULT);
		return send(w, rank_after(config.rank), w->length, sum);
	}
	return taken == TAKEN_FIRST && hop + 1 == config.ranks ? launch_next(w) : GONE;
}

/* Ask the owner to begin lap one of the frame's chunk anew, after round `round`. */
static __always_inline enum outcome ask_restart(struct work *w, __u8 round)
{
	w->frame->kind = RING_REQUEST;
	w->frame->flags = RING_FLAG_RESTART;
	w->frame->hop = 0;
	w->frame->round = round;
	w->frame->attempt = ++w->chunk->attempt;
	w->frame->prev = RING_NOTHING;
	count(w, RING_RESENT);
	return send(w, owner_of(w->index), w->length, 0);
}

/* The rank behind lacks what this one has sent it, and the chunk's owner is to send it again. The request says what was sent before that, as the
 * frame itself did, so that the owner's answer can.
 */
static __always_inline enum outcome pass_on(struct work *w, __u32 prev)
{
	w->frame->prev = prev;
	w->frame->hop = 1;
	count(w, RING_RESENT);
	return send(w, owner_of(w->index), w->length, 0);
}

/* The rank behind lacks the partial sum that this rank has sent. */
static __always_inline enum outcome resend_partial(struct work *w, bool mine)
{
	__u64 reduced = read_word(&w->chunk->reduced);
	__u8 round = reduced;
	enum outcome outcome;

	if (w->frame->generation != generation_of(w->progress) || generation_of(reduced) != w->frame->generation)
		return drop(w, RING_NOT_HELD);
	if (!config.upstream && !mine)
		return pass_on(w, RING_NOTHING); /* it passes by here again, and is told then what was before */
	if (too_soon(w))
		return GONE;
	if (mine)
		return launch(w, round, true);
	if (send_kept(w, round, &outcome))
		return outcome;
	w->chunk->resent_us = now_us();
	return ask_restart(w, round);
}

/* A result was refused somewhere, or a partial sum is nowhere to be had. Who has verified its own result sends that. */
static __always_inline enum outcome on_restart(struct work *w, bool mine)
{
	__u32 asker = w->frame->sender;

	if (!mine)
		return drop(w, RING_BAD_RANK);
	if (holds(w) && is_settled(w, w->frame->generation)) {
		if (too_soon(w))
			return GONE;
		return send_result(w, asker, w->frame->round + 1, asker == rank_after(config.rank) ? w->chunk->before[RESULT] : RING_NOTHING);
	}
	if (w->frame->generation != generation_of(w->progress))
		return drop(w, RING_NOT_HELD);
	return restart(w, w->frame->round);
}

/* The rank behind this one lacks a frame that this one has sent it. With `upstream` it gets it from here; with `origin` the request is passed on to
 * the chunk's owner, which sends the result, or begins lap one again. What this rank has not sent is not lost, whatever the asker believes.
 */
static __always_inline enum outcome on_request(struct work *w)
{
	bool mine = is_mine(w->index), direct = !w->frame->hop, answers = config.upstream || mine;
	__u32 asker = direct ? w->frame->sender : rank_after(w->frame->sender);

	if (!is_sealed(w))
		return GONE;
	if (w->frame->flags & RING_FLAG_RESTART)
		return on_restart(w, mine);
	if (direct ? asker != rank_after(config.rank) : config.upstream || !mine)
		return drop(w, RING_BAD_RANK);
	if (holds_enough(w)) {
		if (!answers)
			return pass_on(w, w->chunk->before[RESULT]);
		if (asker == config.rank)
			return drop(w, RING_DUPLICATE);
		if (too_soon(w))
			return GONE;
		return send_result(w, asker, w->frame->round, direct ? w->chunk->before[RESULT] : w->frame->prev);
	}
	/* It cannot have the result before this rank, but may lack the partial sum of a later round. */
	if (direct && w->frame->flags & RING_FLAG_RESULT && (__u8)read_word(&w->chunk->reduced) <= w->frame->prev)
		return drop(w, RING_NOT_HELD);
	return resend_partial(w, mine);
}

/* What another rank says of itself. */
static __always_inline void note_rank(struct work *w)
{
	__u32 sender = w->frame->sender, generation = w->frame->generation;
	struct ring_rank *rank = bpf_map_lookup_elem(&ranks, &sender);

	if (!rank || (rank->generation && is_before(generation, rank->generation)))
		return;
	rank->front = w->frame->chunk;
	rank->generation = generation;
	if (w->frame->flags & RING_FLAG_SETTLED)
		rank->settled = generation;
}

/* What this rank says of itself. To the rank behind it names what it has sent it last. */
static __always_inline enum outcome tell(struct work *w, __u8 kind, __u32 to, __u8 flags)
{
	__u32 generation = generation_of(read_word(&w->control->progress));

	w->frame->kind = kind;
	w->frame->generation = generation;
	w->frame->chunk = w->control->front;
	w->frame->hop = 0;
	w->frame->flags = flags | (*(volatile __u32 *)&w->control->settled == generation ? RING_FLAG_SETTLED : 0);
	w->frame->round = 0;
	w->frame->tag = 0;
	w->frame->prev = RING_NOTHING;
	if (kind == RING_ALIVE && to == rank_after(config.rank))
		name_latest(w, generation);
	return send(w, to, 0, 0);
}

static __always_inline enum outcome on_probe(struct work *w)
{
	if (!is_sealed(w))
		return GONE;
	note_rank(w);
	return tell(w, RING_ALIVE, w->frame->sender, w->frame->flags & RING_FLAG_SETTLED ? RING_FLAG_TOLD : 0);
}

static __always_inline enum outcome on_alive(struct work *w)
{
	__u32 lane = w->frame->lane, sender = w->frame->sender;
	struct ring_rank *rank = bpf_map_lookup_elem(&ranks, &sender);

	if (!is_sealed(w) || !rank)
		return GONE;
	note_rank(w);
	if (w->frame->flags & RING_FLAG_TOLD)
		rank->told = *(volatile __u32 *)&w->control->settled;
	if (sender != rank_before(config.rank) || is_before(w->frame->generation, generation_of(w->progress)))
		return GONE;
	look_back(w);
	if (lane < 64)
		__sync_fetch_and_or(&w->control->flushed, 1ull << lane);
	return GONE;
}

/* What every frame must be before anything is looked at that it names. */
static __always_inline bool begin(struct work *w, struct xdp_md *ctx)
{
	__u32 zero = 0, cpu = bpf_get_smp_processor_id();

	w->ctx = ctx;
	w->frame = ring_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	w->control = bpf_map_lookup_elem(&control, &zero);
	w->counters = bpf_map_lookup_elem(&counters, &zero);
	w->lane = bpf_map_lookup_elem(&lanes, &cpu);
	if (!w->frame || !w->control || !w->counters)
		return false;
	if (w->frame->cookie != config.cookie || w->frame->version != RING_VERSION || w->frame->group != config.group) {
		count(w, RING_BAD_COOKIE);
		return false;
	}
	w->progress = read_word(&w->control->progress);
	w->index = w->frame->chunk;
	return true;
}

/* Is a frame for this rank, and from another one? */
static __always_inline bool is_for_me(struct work *w)
{
	__u32 sender = w->frame->sender;

	if (w->frame->receiver != config.rank || w->frame->ip.daddr != config.peers[config.rank].ip) {
		count(w, RING_BAD_RECEIVER);
		return false;
	}
	if (sender >= RING_MAX_RANKS || sender >= config.ranks || sender == config.rank || w->frame->ip.saddr != config.peers[sender].ip) {
		count(w, RING_BAD_RANK);
		return false;
	}
	if (w->lane)
		w->lane->heard[sender] += 1;
	return true;
}

static __always_inline enum outcome on_frame(struct work *w)
{
	__u8 kind = w->frame->kind;
	__u32 next;

	if (!is_for_me(w))
		return GONE;
	if (kind == RING_PROBE)
		return on_probe(w);
	if (kind == RING_ALIVE)
		return on_alive(w);
	if (kind != RING_REDUCE && kind != RING_RESULT && kind != RING_REQUEST)
		return drop(w, RING_BAD_KIND);
	if (!find_chunk(w))
		return GONE;
	if (kind == RING_REQUEST)
		return on_request(w);
	next = w->index + config.ranks;
	if (kind == RING_REDUCE) {
		payload_touch(bpf_map_lookup_elem(&inputs, &next));
		return on_reduce(w);
	}
	payload_touch(bpf_map_lookup_elem(&results, &next));
	return on_result(w);
}
