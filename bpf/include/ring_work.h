/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The frame that a ring program works on: what is known about it, and how it leaves. */
#pragma once

#include "lib/frame.h"
#include "lib/patience.h"
#include "lib/word.h"
#include "ring_jumbo.h"

/* RING_SEND: the frame is ready for the uplink; RING_GONE: it is no longer needed. */
enum ring_verdict { RING_GONE, RING_SEND };

struct ring_work {
	struct xdp_md *ctx;
	struct ring_frame *frame;
	struct ring_control *control;
	struct ring_chunk *chunk;
	struct ring_stream *stream;
	__u64 *counters;
	__u64 progress; /* as read when this frame's work began */
	__u32 index;	/* number of the chunk */
	__u32 length;	/* payload of a frame in this sequence number, bytes */
	__u32 sender;	/* sender of the frame that has arrived */
	bool verified;	/* content and sender of that frame have been verified */
	bool nack_due;	/* a nack is reserved for this frame */
};

/* Look up the memory that all work needs. A global function, which the verifier walks once for all
 * of its callers, cannot be given pointers to it in a structure. */
static __always_inline bool ring_recall(struct ring_work *w)
{
	__u32 zero = 0;

	w->control = bpf_map_lookup_elem(&ring_control, &zero);
	w->counters = bpf_map_lookup_elem(&ring_counters, &zero);
	return w->control && w->counters;
}

static __always_inline __u64 ring_count_up(struct ring_work *w, __u32 counter)
{
	return ++w->counters[counter];
}

static __always_inline void ring_count(struct ring_work *w, __u32 counter)
{
	ring_count_up(w, counter);
}

static __always_inline enum ring_verdict ring_drop(struct ring_work *w, enum drop_reason reason)
{
	ring_count(w, reason);
	return RING_GONE;
}

static __always_inline __u32 ring_result_of(__u8 round, enum ring_result_state state)
{
	return (__u32)round << 8 | state;
}

/* The round of a result word. */
static __always_inline __u8 ring_round_of(__u64 word)
{
	return word >> 8;
}

static __always_inline enum ring_result_state ring_state_of(__u64 word)
{
	return word & 0xff;
}

/* Does a result word say that the whole result is stored? */
static __always_inline bool ring_is_done(__u64 word)
{
	return ring_state_of(word) == RING_RESULT_DONE ||
	       ring_state_of(word) == RING_RESULT_VERIFIED;
}

static __always_inline struct ring_tensor *ring_tensor_of(struct ring_work *w, __u32 seq)
{
	return &w->control->tensors[seq & 1];
}

/* Does the chunk end with the reduce-scatter phase? Only for a sequence number whose tensor this
 * rank knows: its own, or the previous one. */
static __always_inline bool ring_is_scattered(struct ring_work *w, __u32 seq, __u32 index)
{
	return index < ring_tensor_of(w, seq)->scattered;
}

/* Does the chunk begin with the all-gather phase? */
static __always_inline bool ring_is_gathered(struct ring_work *w, __u32 seq, __u32 index)
{
	__u32 first = ring_tensor_of(w, seq)->gathered;

	return first && index >= first;
}

static __always_inline __u32 ring_rank_after(__u32 rank)
{
	return rank + 1 >= ring_config.ranks ? 0 : rank + 1;
}

static __always_inline __u32 ring_rank_before(__u32 rank)
{
	return rank ? rank - 1 : ring_config.ranks - 1;
}

/* Is the chunk part of a broadcast? */
static __always_inline bool ring_is_broadcast(struct ring_work *w, __u32 seq, __u32 index)
{
	return ring_tensor_of(w, seq)->root && ring_is_gathered(w, seq, index);
}

static __always_inline __u32 ring_owner_of(struct ring_work *w, __u32 seq, __u32 index)
{
	return ring_is_broadcast(w, seq, index) ? ring_tensor_of(w, seq)->root - 1
						: index % ring_config.ranks;
}

static __always_inline bool ring_is_mine(struct ring_work *w, __u32 seq, __u32 index)
{
	return ring_owner_of(w, seq, index) == ring_config.rank;
}

/* Hops from a chunk's owner to a rank in the reduce-scatter phase. */
static __always_inline __u32 ring_steps_to(__u32 index, __u32 rank)
{
	__u32 owner = index % ring_config.ranks;

	return rank >= owner ? rank - owner : rank + ring_config.ranks - owner;
}

/* Hops of a result to a rank, from the owner's previous rank, which computes it. To that rank
 * itself it takes a full turn of the ring: it receives a result only after it has refused its own.
 */
static __always_inline __u32 ring_result_steps_to(struct ring_work *w, __u32 seq, __u32 index,
						  __u32 rank)
{
	return ring_steps_to(ring_owner_of(w, seq, index), rank) + 1;
}

/* Was the chunk retransmitted within the holdoff? */
static __always_inline bool ring_resent_lately(struct ring_work *w)
{
	return w->chunk->resent_us && now_us() - w->chunk->resent_us < w->control->nack_holdoff_us;
}

/* With `origin`, all ranks that lack a chunk nack it at once: ignore those that come within the
 * holdoff. */
static __always_inline bool ring_too_soon(struct ring_work *w)
{
	return !ring_config.upstream && ring_resent_lately(w);
}

/* Has this rank's process verified all results of a sequence number? If it has entered a later one,
 * it has. */
static __always_inline bool ring_seq_verified(struct ring_work *w, __u32 seq)
{
	return *(volatile __u32 *)&w->control->verified == seq ||
	       seq_is_before(seq, seq_of(w->progress));
}

/* Has the process verified the result that a word describes? */
static __always_inline bool ring_is_verified(struct ring_work *w, __u64 word)
{
	return ring_state_of(word) == RING_RESULT_VERIFIED ||
	       (ring_state_of(word) == RING_RESULT_DONE && ring_seq_verified(w, seq_of(word)));
}

/* Has the process entered another collective since this frame's work began? Then the data read may
 * be torn. */
static __always_inline bool ring_overtaken(struct ring_work *w)
{
	barrier();
	return seq_of(word_read(&w->control->progress)) != seq_of(w->progress);
}

/* Reload the frame's pointer, which a helper call invalidates. */
static __always_inline bool ring_reload(struct ring_work *w)
{
	w->frame = (void *)(long)w->ctx->data;
	return (void *)(w->frame + 1) <= (void *)(long)w->ctx->data_end;
}

/* Set up the work of a global function on the frame and a chunk. */
static __always_inline bool ring_resume(struct ring_work *w, struct xdp_md *ctx, __u64 progress,
					__u32 index)
{
	__u32 cpu = bpf_get_smp_processor_id();

	w->ctx = ctx;
	w->progress = progress;
	w->index = index;
	w->stream = bpf_map_lookup_elem(&ring_streams, &cpu);
	w->chunk = bpf_map_lookup_elem(&ring_chunks, &w->index);
	return ring_recall(w) && w->chunk && ring_reload(w);
}

/* Make the frame as long as its headers and `length` bytes of payload. Its pointers must be looked
 * up again afterwards. A frame with fragments can be cut, but cannot grow. */
static __always_inline bool ring_resize(struct ring_work *w, __u32 length)
{
	int have = bpf_xdp_get_buff_len(w->ctx);
	int want = ring_payload_offset(length) + length;

	return (have == want || !bpf_xdp_adjust_tail(w->ctx, want - have)) && ring_reload(w);
}

static __always_inline __u32 ring_item_of(__u32 index, __u8 round, enum ring_stage stage)
{
	return index << RING_CHUNK_SHIFT | (__u32)round << RING_ROUND_SHIFT | stage;
}

/* Set `prev` to the stream's last frame, if that belongs to this collective or the previous one. */
static __always_inline void ring_name_latest(struct ring_work *w, __u32 seq)
{
	struct ring_frame *f = w->frame;

	f->prev = RING_NOTHING;
	if (!w->stream || !w->stream->seq)
		return;
	if (w->stream->seq == seq) {
		f->prev = w->stream->prev;
	} else if (seq_after(w->stream->seq) == seq) {
		f->prev = w->stream->prev;
		f->flags |= RING_FLAG_EARLIER;
	}
}

/* Append a frame that is sent for the first time to this CPU's stream. */
static __always_inline void ring_enlist(struct ring_work *w, __u32 seq, __u32 index,
					enum ring_stage stage)
{
	struct ring_chunk *chunk = w->chunk;
	struct ring_frame *f = w->frame;

	f->flags = 0;
	ring_name_latest(w, seq);
	if (w->stream) {
		w->stream->seq = seq;
		w->stream->prev = ring_item_of(index, f->round, stage);
	}
	if (chunk) {
		chunk->before[stage] = f->flags ? RING_NOTHING : f->prev;
		chunk->attempt[seq & 1] = f->attempt;
		chunk->nacks = 0;
	}
}

/* Address the frame. All its fields but the seal, and its payload, are in place; `sum` is that of
 * the payload. */
__noinline int ring_seal(struct xdp_md *ctx, __u32 to, __u32 length, __u64 sum)
{
	__u32 bytes = ring_payload_offset(length) + length, zero = 0;
	struct ring_frame *f = (void *)(long)ctx->data;
	__u64 *counters = bpf_map_lookup_elem(&ring_counters, &zero);

	if (!counters || (void *)(f + 1) > (void *)(long)ctx->data_end)
		return RING_GONE;
	to &= RING_MAX_RANKS - 1;
	/* clang would omit the mask where it knows the bound from a check that the verifier does
	 * not connect with this register */
	barrier_var(to);
	frame_address(f, &ring_config.peers[ring_config.rank], &ring_config.peers[to],
		      bytes - sizeof(*f));
	f->sender = ring_config.rank;
	f->receiver = to;
	f->length = length;
	f->stream = bpf_get_smp_processor_id();
	f->checksum = sum + frame_seal(f);
	counters[RING_SENT] += 1;
	counters[RING_SENT_BYTES] += bytes;
	return RING_SEND;
}

static __always_inline enum ring_verdict ring_send(struct ring_work *w, __u32 to, __u32 length,
						   __u64 sum)
{
	return ring_seal(w->ctx, to, length, sum);
}

/* The sum that the payload must have, given the checksum and the header's seal. */
static __always_inline __u64 ring_payload_expected(struct ring_work *w)
{
	return w->frame->checksum - frame_seal(w->frame);
}

/* Verify the seal of a frame whose checksum covers the header alone. */
static __always_inline bool ring_is_sealed(struct ring_work *w)
{
	w->verified = !ring_payload_expected(w);
	if (!w->verified)
		ring_count(w, DROP_BAD_CHECKSUM);
	return w->verified;
}
