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

static __always_inline enum outcome on_reduce(struct work *w)
{
	__u32 generation = w->frame->generation, mine = generation_of(w->progress);
	__u32 owner = w->index % config.ranks;
	__u32 hop = config.rank >= owner ? config.rank - owner : config.rank + config.ranks - owner;
	bool ready = false;

	if (!hop || w->frame->hop != hop)
		return drop(w, RING_BAD_RANK);
	if (holds(w))
		return answer(w);
	if (generation != mine && generation != generation_after(mine))
		return drop(w, RING_BAD_GENERATION);
	if (generation == mine && w->index < (__u32)w->progress)
		return reduce(w);
	park(w, &ready);
	if (!ready)
		return GONE;
	return fits(w) ? reduce(w) : GONE;
}

static __always_inline enum outcome on_result(struct work *w)
{
	__u32 generation = w->frame->generation;
	__u64 sum;
	int error;

	if (w->frame->last >= config.ranks || w->frame->hop >= config.ranks)
		return drop(w, RING_BAD_RANK);
	if (w->chunk->done == generation) {
		count(w, RING_DUPLICATE);
	} else if (generation != generation_of(w->progress) || w->index >= (__u32)w->progress) {
		/* No sum can be whole without this rank's part: a forgery, or a frame of another age. */
		return drop(w, RING_BAD_GENERATION);
	} else if (claim(w)) {
		void *result = bpf_map_lookup_elem(&results, &w->index);

		if (!result)
			return GONE;
		error = payload_store(w->ctx, result, w->length, &sum);
		if (error || sum + seal(w) != w->frame->checksum) {
			unclaim(w);
			return drop(w, error ? RING_BAD_LENGTH : RING_BAD_CHECKSUM);
		}
		stored(w, sum);
		w->frame->flags |= RING_FLAG_USEFUL;
	}
	if (config.rank != w->frame->last) {
		w->frame->hop += 1;
		return send(w, rank_after(config.rank), w->length);
	}
	return w->frame->flags & RING_FLAG_USEFUL ? launch_next(w) : GONE;
}

/* Somebody lacks a result. Who holds it sends it; its owner, when nobody does yet, begins its first lap again. With `upstream` the
 * request comes from the rank behind this one, goes on against the ring as far as the owner, and does not when this rank asks itself.
 */
static __always_inline enum outcome on_request(struct work *w)
{
	__u32 generation = w->frame->generation, now = now_us();
	bool mine = w->index % config.ranks == config.rank, held = holds(w);

	if (config.upstream ? !is_from(w, rank_after(config.rank)) : !mine || !is_from(w, w->frame->last))
		return drop(w, RING_BAD_RANK);
	/* Never launched: it will be, and nothing is lost yet. */
	if (!held && (generation != generation_of(w->progress) || w->index >= (__u32)w->progress ||
		      (mine && w->index / config.ranks >= (__u32)w->control->next)))
		return drop(w, RING_BAD_GENERATION);
	if (too_soon(w, w->chunk, now))
		return GONE;
	w->chunk->sent_us = now;
	count(w, RING_RESENT);
	if (held && config.upstream)
		return resume(w);
	if (held) {
		w->frame->attempt = ++w->chunk->attempt;
		return answer(w);
	}
	if (mine)
		return launch(w, w->index, w->chunk->attempt + 1, w->frame->flags & RING_FLAG_DOUBT);
	if (w->frame->hop + 1 >= config.ranks)
		return drop(w, RING_BAD_RANK);
	w->frame->hop += 1;
	return send(w, rank_before(config.rank), w->length);
}

static __always_inline enum outcome on_probe(struct work *w)
{
	__u32 asker = w->frame->last;

	if (!is_from(w, asker))
		return drop(w, RING_BAD_RANK);
	w->frame->kind = RING_ALIVE;
	w->frame->last = config.rank;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = w->control->stored;
	return send(w, asker, 0);
}

static __always_inline enum outcome on_alive(struct work *w)
{
	struct ring_event event = {
		.kind = RING_EVENT_ALIVE,
		.rank = w->frame->last,
		.generation = w->frame->generation,
		.stored = w->frame->chunk,
	};

	if (!is_from(w, event.rank))
		return drop(w, RING_BAD_RANK);
	bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	return GONE;
}

/* What every frame must be before anything is looked at that it names. */
static __always_inline bool begin(struct work *w, struct xdp_md *ctx)
{
	__u32 zero = 0;

	w->ctx = ctx;
	w->frame = ring_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	w->control = bpf_map_lookup_elem(&control, &zero);
	w->counters = bpf_map_lookup_elem(&counters, &zero);
	if (!w->frame || !w->control || !w->counters)
		return false;
	if (w->frame->cookie != config.cookie || w->frame->version != RING_VERSION) {
		count(w, RING_BAD_COOKIE);
		return false;
	}
	w->progress = *(volatile __u64 *)&w->control->progress;
	w->index = w->frame->chunk;
	return true;
}

static __always_inline enum outcome on_frame(struct work *w)
{
	__u8 kind = w->frame->kind;
	__u32 next;

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
	if (!is_from(w, rank_before(config.rank)))
		return drop(w, RING_BAD_RANK);
	next = w->index + config.ranks;
	if (kind == RING_REDUCE) {
		payload_touch(bpf_map_lookup_elem(&inputs, &next));
		return on_reduce(w);
	}
	payload_touch(bpf_map_lookup_elem(&results, &next));
	return on_result(w);
}
