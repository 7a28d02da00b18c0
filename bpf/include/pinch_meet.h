/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Handshakes that arrive. */
#pragma once

#include "pinch_handshake.h"

enum pinch_met {
	PINCH_MET_DONE = 0,
	PINCH_MET_ANSWER = 1, /* the frame is now the answer */
	PINCH_MET_ALL = 2,    /* frames may be sent */
};

/* Is the handshake intact? */
static __always_inline bool pinch_is_handshake(struct pinch_control *c,
					       struct pinch_handshake *handshake, void *end)
{
	struct ring_frame *f = &handshake->head;

	if (f->tag != (__u16)c->tag) {
		pinch_count(DROP_BAD_TENSOR, 1);
		return false;
	}
	if ((void *)(handshake + 1) > end || f->length != sizeof(handshake->word)) {
		pinch_count(DROP_BAD_LENGTH, 1);
		return false;
	}
	if (f->seq != seq_of(handshake->word) || f->checksum != pinch_handshake_check(handshake)) {
		pinch_count(DROP_BAD_CHECKSUM, 1);
		return false;
	}
	return true;
}

/* The word for a rank that lacks this rank's handshake: the word of the sequence number asked for,
 * or, if this rank has not entered that yet, its latest word. */
static __always_inline __u64 pinch_answer_of(struct pinch_peer *peer, __u32 seq, __u32 mine)
{
	__u64 word = pinch_word_in(peer->ours, seq);

	/* A rank may be any number of exchanges ahead of another that is not its partner. */
	if (seq == PINCH_FIRST && mine > PINCH_FIRST && !word)
		return word_of(PINCH_FIRST, 0);
	return word ? word : *(volatile __u64 *)&peer->ours[~seq & 1];
}

/* The sender's exchanges have ended, and so have this rank's: record why, and wake the process. */
static __always_inline void pinch_note_end(struct pinch_control *c, __u32 sender, __u32 nonfinite,
					   __u32 gone, __u32 late)
{
	__u64 event = 0;

	__sync_fetch_and_or(&c->end_acked, 1u << sender % RING_MAX_RANKS);
	if (!(nonfinite & ~c->nonfinite) && !(gone & ~c->gone) && !(late & ~c->late))
		return;
	__sync_fetch_and_or(&c->nonfinite, nonfinite);
	__sync_fetch_and_or(&c->gone, gone);
	__sync_fetch_and_or(&c->late, late);
	bpf_ringbuf_output(&pinch_events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
}

/* Record a rank's word. May this rank send now? */
static __always_inline bool pinch_take_word(struct pinch_control *c, struct pinch_peer *peer,
					    __u64 word, __u32 mine)
{
	__u32 seq = seq_of(word);
	__u64 *place = &peer->theirs[seq & 1], before = *(volatile __u64 *)place;

	if (seq != mine && seq != seq_after(mine))
		return false;
	if (before && (__s32)(seq - seq_of(before)) <= 0) {
		pinch_count(DROP_DUPLICATE, 1);
		return false;
	}
	if (__sync_val_compare_and_swap(place, before, word) != before)
		return false;
	__sync_fetch_and_add(&peer->news, 1);
	return seq == mine && pinch_meet(c, seq);
}

/* Returns one of enum pinch_met. */
static __always_inline __u32 pinch_on_handshake(struct xdp_md *ctx, struct pinch_control *c)
{
	struct pinch_handshake *handshake = (void *)(long)ctx->data;
	__u32 sender, seq, mine = seq_of(*(volatile __u64 *)&c->progress);
	struct pinch_status say = {};
	struct pinch_peer *peer;
	__u64 answer;
	bool ask, late;

	if ((void *)(&handshake->head + 1) > (void *)(long)ctx->data_end ||
	    !pinch_is_handshake(c, handshake, (void *)(long)ctx->data_end))
		return PINCH_MET_DONE;
	sender = handshake->head.sender;
	seq = handshake->head.seq;
	ask = handshake->head.flags & PINCH_FLAG_ASK;
	late = handshake->head.flags & PINCH_FLAG_LATE;
	say.attempt = handshake->head.attempt;
	peer = bpf_map_lookup_elem(&pinch_peers, &sender);
	if (!peer)
		return PINCH_MET_DONE;
	__sync_fetch_and_add(&peer->heard, 1);
	if (pinch_exponent_in(handshake->word) == PINCH_ENDED) {
		pinch_note_end(c, sender, handshake->head.nonfinite,
			       late ? 0 : handshake->head.gone, late ? handshake->head.late : 0);
	} else {
		*(volatile __u32 *)&peer->at = handshake->head.entered;
		*(volatile __u32 *)&peer->waits = handshake->head.waits;
		if (pinch_take_word(c, peer, handshake->word, mine))
			return PINCH_MET_ALL;
		if (seq != mine && seq != seq_after(mine) && seq_after(seq) != mine &&
		    (seq != PINCH_FIRST || !ask) && !pinch_has_ended(c)) {
			pinch_count(DROP_BAD_SEQ, 1);
			return PINCH_MET_DONE;
		}
	}
	if (!ask)
		return PINCH_MET_DONE;
	answer = pinch_has_ended(c) ? word_of(seq, 0) : pinch_answer_of(peer, seq, mine);
	say.seq = pinch_word_in(peer->ours, mine)
			  ? mine
			  : seq_of(*(volatile __u64 *)&peer->ours[~mine & 1]);
	say.waits = pinch_waits_of(c, mine);
	handshake = (void *)(long)ctx->data;
	if (!answer || (void *)(handshake + 1) > (void *)(long)ctx->data_end)
		return PINCH_MET_DONE;
	pinch_write_handshake(handshake, c, sender, answer, &say);
	return PINCH_MET_ANSWER;
}
