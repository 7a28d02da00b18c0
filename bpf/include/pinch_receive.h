/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Frames of embeddings that arrive: each is checked, claimed, added to its vertices' neighbours,
 * and acknowledged. */
#pragma once

#include "pinch_handshake.h"
#include "pinch_hub.h"
#include "pinch_land.h"

enum pinch_next {
	PINCH_DONE = 0,
	PINCH_ACKNOWLEDGE = 1, /* turn the frame into an acknowledgement */
	PINCH_GO_ON = 2,       /* there are hubs to continue with */
};

struct pinch_frame_work {
	struct pinch_control *control;
	struct pinch_scratch *scratch;
	const volatile struct pinch_source *source;
	__u32 rows;  /* vertices in the frame */
	__u32 words; /* words before the first row */
	__u32 bank;
	__u32 hubs; /* hubs that were queued */
	__u32 unused;
	__u32 edges;
};

struct pinch_digest_work {
	struct pinch_scratch *scratch;
	__u64 check; /* so far */
};

/* Take some words: add them to the check, and copy them, as accumulators have them, to where
 * additions read them. */
static long pinch_digest_step(__u32 i, struct pinch_digest_work *w)
{
	const __u32 *weight;
	const __u64 *words;
	__u64 check = 0, *wide;

	if (i >= PINCH_MAX_STEPS)
		return 1;
	words = &w->scratch->raw[i * PINCH_STEP];
	wide = &w->scratch->wide[(pinch_config.packed ? 1 : 2) * i * PINCH_STEP];
	weight = &weights[2 * i * PINCH_STEP];
#pragma unroll
	for (int j = 0; j < PINCH_STEP; j++) {
		__u64 word = words[j];

		check += pinch_weigh(word, &weight[2 * j]);
		pinch_unpack(word, wide, j);
	}
	w->check += check;
	return 0;
}

/* The check of the payload in the scratch buffer. Its lanes are unpacked in the same pass. */
static __always_inline __u64 pinch_digest(struct pinch_scratch *s, __u32 words)
{
	struct pinch_digest_work w = { .scratch = s };

	if (words > PINCH_MAX_WORDS)
		return 0;
#pragma unroll
	for (int j = 0; j < PINCH_STEP - 1; j++)
		s->raw[words + j] = 0;
	bpf_loop((words + PINCH_STEP - 1) / PINCH_STEP, pinch_digest_step, &w, 0);
	return w.check;
}

static long pinch_receive_vertex(__u32 i, struct pinch_frame_work *w)
{
	struct pinch_row_work row = { .bank = w->bank };
	__u32 number, part = 0, index, at = w->words + i * pinch_config.words;
	struct pinch_vertex *vertex;

	if (i / 2 >= PINCH_MAX_WORDS || at > PINCH_MAX_WORDS - pinch_config.words)
		return 1;
	number = w->scratch->raw[i / 2] >> (i & 1) * 32;
	if (pinch_config.parts > 1)
		part = w->scratch->raw[0] >> 32;
	if (number >= w->source->vertices || part >= pinch_config.parts) {
		pinch_count(DROP_BAD_CHUNK, 1);
		return 0;
	}
	index = w->source->first + number;
	vertex = bpf_map_lookup_elem(&pinch_vertices, &index);
	if (!vertex)
		return 0;
	if (!vertex->count) {
		w->unused++;
		return 0;
	}
	if (vertex->hub) {
		pinch_set_aside(w->control, &w->scratch->raw[at], vertex, vertex->hub - 1 + part,
				part);
		w->hubs++;
		return 0;
	}
	row.wide = &w->scratch->wide[pinch_config.packed ? at : 2 * at];
	row.first = vertex->first;
	row.offset = part * pinch_config.sum_words;
	row.count = vertex->count;
	pinch_add_all(&row);
	w->edges += vertex->count;
	return 0;
}

/* Is the payload complete and intact? It is copied to the scratch buffer. */
static __always_inline bool pinch_load_payload(struct xdp_md *ctx, struct ring_frame *f,
					       struct pinch_scratch *s)
{
	__u64 seal = frame_seal(f), check = f->checksum;
	__u32 length = f->length;

	if (length < 8 || length > pinch_config.payload || length % 8 ||
	    bpf_xdp_load_bytes(ctx, sizeof(struct ring_frame), s->raw, length)) {
		pinch_count(DROP_BAD_LENGTH, 1);
		return false;
	}
	if (pinch_digest(s, length / 8) + seal != check) {
		pinch_count(DROP_BAD_CHECKSUM, 1);
		return false;
	}
	return true;
}

/* Does a sequence number directly precede this rank's? */
static __always_inline bool pinch_is_late(__u32 seq, __u32 mine)
{
	return seq && seq_after(seq) == mine;
}

/* Are number, sequence number and tag possible for a frame of this sender? */
static __always_inline bool pinch_is_expected(struct pinch_control *c, const struct ring_frame *f,
					      __u32 mine)
{
	if (f->number >= pinch_config.sources[f->sender % RING_MAX_RANKS].frames) {
		pinch_count(DROP_BAD_CHUNK, 1);
		return false;
	}
	if (f->seq != mine && !pinch_is_late(f->seq, mine)) {
		pinch_count(DROP_BAD_SEQ, 1);
		return false;
	}
	if (f->tag != (__u16)c->tag) {
		pinch_count(DROP_BAD_TENSOR, 1);
		return false;
	}
	return true;
}

/* A rank asks whether a frame has arrived. Returns one of enum pinch_next. */
static __always_inline __u32 pinch_on_ask(struct pinch_control *c, const struct ring_frame *f)
{
	__u32 sender = f->sender;
	struct pinch_peer *peer;

	if (!pinch_is_expected(c, f, seq_of(c->progress)))
		return PINCH_DONE;
	if (f->length) {
		pinch_count(DROP_BAD_LENGTH, 1);
		return PINCH_DONE;
	}
	if (f->checksum != frame_seal(f)) {
		pinch_count(DROP_BAD_CHECKSUM, 1);
		return PINCH_DONE;
	}
	peer = bpf_map_lookup_elem(&pinch_peers, &sender);
	if (!peer)
		return PINCH_DONE;
	__sync_fetch_and_add(&peer->heard, 1);
	return PINCH_ACKNOWLEDGE;
}

/* Returns a set of enum pinch_next. */
static __always_inline __u32 pinch_on_embed(struct xdp_md *ctx, struct pinch_control *c,
					    struct ring_frame *f)
{
	__u32 zero = 0, sender = f->sender, seq = f->seq, mine = seq_of(c->progress),
	      number = f->number, fresh, come;
	__u32 next = f->flags & PINCH_FLAG_ASK ? PINCH_ACKNOWLEDGE : PINCH_DONE;
	struct pinch_frame_work w = { .control = c, .bank = pinch_bank_of() };
	struct pinch_landed *slot = NULL;
	struct pinch_peer *peer;

	w.source = &pinch_config.sources[sender % RING_MAX_RANKS];
	if (!pinch_is_expected(c, f, mine))
		return PINCH_DONE;
	w.scratch = bpf_map_lookup_elem(&pinch_scratch, &zero);
	peer = bpf_map_lookup_elem(&pinch_peers, &sender);
	if (!w.scratch || !peer)
		return PINCH_DONE;
	if (pinch_config.landing) {
		slot = pinch_land(ctx, f);
		if (!slot)
			return PINCH_DONE;
	} else if (!pinch_load_payload(ctx, f, w.scratch)) {
		return PINCH_DONE;
	}
	f = pinch_frame_of(ctx);
	if (!f)
		return PINCH_DONE;
	w.rows = f->length / (8 * pinch_config.words + 4);
	w.words = (w.rows + 1) / 2;
	if (!w.rows || w.rows > pinch_config.rows ||
	    8 * (w.words + w.rows * pinch_config.words) != f->length) {
		pinch_count(DROP_BAD_LENGTH, 1);
		return PINCH_DONE;
	}
	__sync_fetch_and_add(&peer->heard, 1);
	/* This rank has completed the previous exchange, so it has all of its frames. Acknowledge
	 * again, because the sender has missed acknowledgements. */
	if (pinch_is_late(seq, mine))
		return PINCH_ACKNOWLEDGE;
	switch (bitmap_add(&pinch_seen, w.source->seen + number / 32, seq, 1u << number % 32,
			   &fresh)) {
	case BITMAP_CLAIMED:
		break;
	case BITMAP_TAKEN:
		pinch_count(DROP_DUPLICATE, 1);
		return PINCH_ACKNOWLEDGE;
	case BITMAP_STALE:
		pinch_count(DROP_BAD_SEQ, 1);
		return PINCH_DONE;
	case BITMAP_CONTENDED:
		pinch_count(DROP_CONTENDED, 1);
		return PINCH_DONE;
	}
	if (slot)
		pinch_keep(slot, sender, w.rows);
	else
		bpf_loop(w.rows, pinch_receive_vertex, &w, 0);
	pinch_count(PINCH_RECEIVED, 1);
	pinch_count(PINCH_VERTICES, w.rows - w.unused);
	pinch_count(PINCH_UNUSED, w.unused);
	pinch_count(PINCH_EDGES, w.edges);
	come = __sync_fetch_and_add(&peer->received, 1) + 1;
	__sync_fetch_and_add(&peer->news, 1);
	__sync_fetch_and_add(&c->received, 1);
	pinch_check_complete(c, seq);
	/* Always acknowledge the last frame expected from this sender, even if it was reordered. */
	if (come == pinch_frames_in(pinch_word_in(peer->theirs, seq)))
		next |= PINCH_ACKNOWLEDGE;
	return next | (w.hubs ? PINCH_GO_ON : PINCH_DONE);
}
