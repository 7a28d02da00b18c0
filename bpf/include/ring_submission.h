/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The submission queue. The process posts work requests and kicks the doorbell; the kick becomes
 * many frames, and each takes one request. */
#pragma once

#include "ring_receive.h"

/* Replay an early frame: the kick becomes it. */
static __always_inline enum ring_verdict ring_replay(struct ring_work *w, __u32 slot)
{
	struct ring_early *early = bpf_map_lookup_elem(&ring_early_frames, &slot);
	void *data = bpf_map_lookup_elem(&ring_early_data, &slot);
	struct ring_frame *f;
	__u32 length;
	__u64 sum;

	if (!early || !data || slot >= RING_EARLY_SLOTS)
		return ring_drop(w, DROP_BAD_CHUNK);
	if (__sync_val_compare_and_swap(&early->state, RING_EARLY_WAITING, RING_EARLY_REPLAYING) !=
	    RING_EARLY_WAITING)
		return RING_GONE;
	length = early->length;
	if (length > ring_config.chunk_bytes || length < RING_BLOCK || !ring_resize(w, length) ||
	    ring_payload_fill(w->ctx, data, length) || !ring_reload(w)) {
		__sync_lock_test_and_set(&early->state, RING_EARLY_FREE);
		return ring_drop(w, DROP_BAD_LENGTH);
	}
	f = w->frame;
	f->kind = RING_REDUCE;
	f->seq = early->seq;
	f->chunk = early->chunk;
	f->attempt = early->attempt;
	f->hop = early->hop;
	f->round = early->round;
	f->sender = ring_rank_before(ring_config.rank);
	f->receiver = ring_config.rank;
	f->flags = 0;
	f->length = length;
	f->tag = early->tag;
	f->stream = 0;
	f->prev = RING_NOTHING; /* the predecessor was checked when the frame arrived */
	sum = early->sum;
	__sync_lock_test_and_set(&early->state, RING_EARLY_FREE);
	f->checksum = sum + frame_seal(f);
	w->index = f->chunk;
	return ring_find_chunk(w) ? ring_on_reduce(w) : RING_GONE;
}

/* Turn the frame into a nack. It is as long as its answer, because the answer reuses its buffer.
 * Each nack has an attempt of its own, so that a fault rule that matches on header fields does not
 * match all of them.
 */
static __always_inline enum ring_verdict ring_send_nack(struct ring_work *w, __u8 round,
							enum ring_stage stage)
{
	struct ring_tensor *tensor = ring_tensor_of(w, seq_of(w->progress));
	__u32 length = tensor->length;

	if (!ring_resize(w, length))
		return RING_GONE;
	w->frame->kind = RING_NACK;
	w->frame->seq = seq_of(w->progress);
	w->frame->chunk = w->index;
	w->frame->attempt = ++w->chunk->nacks;
	w->frame->hop = 0;
	w->frame->flags = stage == RING_STAGE_RESULT ? RING_FLAG_RESULT : 0;
	w->frame->round = round;
	w->frame->tag = tensor->tag;
	w->frame->summed = (__u8)word_read(&w->chunk->reduced);
	w->chunk->nacked_us = now_us();
	w->chunk->tries += w->chunk->tries < 0xffff;
	ring_count(w, RING_RESENT);
	return ring_send(w, ring_rank_before(ring_config.rank), length, 0);
}

/* Nack the chunk's next missing frame, if one is missing, and has not been nacked since the process
 * looked. */
static __always_inline enum ring_verdict ring_nack_next(struct ring_work *w)
{
	__u32 seq = seq_of(w->progress);
	__u64 reduced = word_read(&w->chunk->reduced), result = word_read(&w->chunk->result);
	bool begun = seq_of(reduced) == seq;

	if (ring_waits(w->control, w->chunk, now_us()))
		return RING_GONE;
	if (seq_of(result) == seq &&
	    (ring_is_done(result) || ring_state_of(result) == RING_RESULT_CLAIMED))
		return RING_GONE;
	if (seq_of(result) == seq && ring_state_of(result) == RING_RESULT_REFUSED)
		return ring_send_nack(w, ring_round_of(result) + 1, RING_STAGE_RESULT);
	/* a result of any round will do */
	if (begun || ring_is_gathered(w, seq, w->index))
		return ring_send_nack(w, 0, RING_STAGE_RESULT);
	return ring_is_mine(w, seq, w->index) ? RING_GONE
					      : ring_send_nack(w, 0, RING_STAGE_PARTIAL);
}

/* The process has refused the chunk's result of round `round`. */
static __always_inline enum ring_verdict ring_restart_wr(struct ring_work *w, __u8 round)
{
	struct ring_tensor *tensor = ring_tensor_of(w, seq_of(w->progress));

	if (ring_is_mine(w, seq_of(w->progress), w->index))
		return ring_restart(w, round);
	w->length = tensor->length;
	if (!ring_resize(w, w->length))
		return RING_GONE;
	w->frame->seq = seq_of(w->progress);
	w->frame->chunk = w->index;
	w->frame->tag = tensor->tag;
	return ring_send_restart(w, round);
}

/* Probe a rank. */
static __always_inline enum ring_verdict ring_probe(struct ring_work *w, const struct ring_wr *wr)
{
	w->frame->attempt = wr->attempt;
	return ring_tell(w, RING_PROBE, wr->chunk, 0, 0);
}

/* Take the next work request. False: none waits, or other CPUs were faster. */
static __always_inline bool ring_take_wr(struct ring_work *w, struct ring_wr *wr)
{
	for (int attempt = 0; attempt < 8; attempt++) {
		__u32 taken = *(volatile __u32 *)&w->control->sq_head;
		__u32 slot = taken % RING_SQ_ENTRIES;
		struct ring_wr *found = bpf_map_lookup_elem(&ring_sq, &slot);

		if (!found || taken == *(volatile __u32 *)&w->control->sq_tail)
			return false;
		*wr = *found;
		if (__sync_val_compare_and_swap(&w->control->sq_head, taken, taken + 1) == taken)
			return true;
	}
	return false;
}

/* Execute a work request that belongs to the current collective. */
static __always_inline enum ring_verdict ring_send_wr(struct ring_work *w, const struct ring_wr *wr)
{
	w->index = wr->chunk;
	if (wr->seq != seq_of(w->progress) || wr->chunk >= (__u32)w->progress)
		return ring_drop(w, DROP_BAD_SEQ);
	if (wr->kind == RING_WR_LAUNCH)
		return ring_launch_first(w);
	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	if (!w->chunk)
		return ring_drop(w, DROP_BAD_CHUNK);
	return wr->kind == RING_WR_RESTART ? ring_restart_wr(w, wr->extra) : ring_nack_next(w);
}

static __always_inline enum ring_verdict ring_on_wr(struct ring_work *w, const struct ring_wr *wr)
{
	switch (wr->kind) {
	case RING_WR_LAUNCH:
	case RING_WR_NACK:
	case RING_WR_RESTART:
		return ring_send_wr(w, wr);
	case RING_WR_REPLAY:
		return ring_replay(w, wr->chunk);
	case RING_WR_PROBE:
		return ring_probe(w, wr);
	}
	return ring_drop(w, DROP_BAD_KIND);
}

/* Turn a spare frame into the nack that it was reserved for. */
__noinline int ring_send_due_nack(struct xdp_md *ctx, __u64 progress)
{
	struct ring_work here = {}, *w = &here;
	__u32 zero = 0;
	struct ring_nacks *list = bpf_map_lookup_elem(&ring_nacks, &zero);
	struct ring_nack nack;

	w->ctx = ctx;
	w->progress = progress;
	if (!list || !ring_recall(w) ||
	    !(ring_take_nack(w, list, &list->fresh, &nack) ||
	      ring_take_nack(w, list, &list->again, &nack)))
		return RING_GONE;
	w->index = nack.item >> RING_CHUNK_SHIFT;
	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	if (!w->chunk)
		return RING_GONE;
	return ring_send_nack(w, nack.item >> RING_ROUND_SHIFT, nack.item & RING_STAGE_BIT);
}

/* Send the frame on its way; if a nack is due, send a copy to the doorbell as well. */
static __always_inline int ring_leave(struct ring_work *w, enum ring_verdict outcome, bool by_link)
{
	if (w->nack_due && outcome == RING_SEND)
		return bpf_redirect_map(&ring_fan_nack, 0, BPF_F_BROADCAST);
	if (w->nack_due)
		outcome = ring_send_due_nack(w->ctx, w->progress);
	if (outcome != RING_SEND)
		return XDP_DROP;
	return by_link ? XDP_TX : bpf_redirect(ring_config.uplink, 0);
}
