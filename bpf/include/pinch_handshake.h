/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Handshakes. A rank that enters an exchange sends every other rank one word, which holds the
 * number of frames that it has for that rank, and the exponent of its own largest value. A rank
 * that has received the words of all others knows how many frames to expect, that all ranks accept
 * frames of this sequence number, and whether the scale of its payloads fits. All ranks know the
 * same exponents, so all come to the same decision.
 *
 * If the scale is known beforehand, a rank waits only for the ranks with which it exchanges frames.
 *
 * A word is seq << 32 | frames << 9 | exponent, with PINCH_NOT_FINITE in place of the exponent if a
 * value is NaN or infinite. A rank keeps the words of the latest even and the latest odd sequence
 * number. That suffices because a rank goes on only when it has every handshake, so none is more
 * than one ahead of another.
 *
 * The header says where the sender is: the sequence number that it has `entered` last, and the
 * ranks that it `waits` for there. With PINCH_ENDED in place of the exponent, exchanges have ended,
 * and the header names the ranks that caused it: those whose values are `nonfinite`, and those that
 * are `gone` or, with PINCH_FLAG_LATE, `late`. Every rank that receives this passes it on.
 */
#pragma once

#include "pinch_work.h"

static __always_inline __u32 pinch_frames_in(__u64 word)
{
	return (__u32)word >> PINCH_EXPONENT_BITS;
}

static __always_inline __u32 pinch_exponent_in(__u64 word)
{
	return word & PINCH_NOT_FINITE;
}

/* The word of a sequence number in such a pair of words; 0: there is none. */
static __always_inline __u64 pinch_word_in(const __u64 *pair, __u32 seq)
{
	__u64 word = *(const volatile __u64 *)&pair[seq & 1];

	return seq_of(word) == seq ? word : 0;
}

/* Does this rank still lack a partner's handshake, or its frames, of a sequence number that it has
 * entered? */
static __always_inline bool pinch_is_behind(const struct pinch_peer *peer, __u32 seq)
{
	__u64 word = pinch_word_in(peer->theirs, seq);

	return !word || *(const volatile __u32 *)&peer->received < pinch_frames_in(word);
}

struct pinch_waits_work {
	__u32 seq;
	__u32 partners;
	__u32 waits;
};

static long pinch_note_wait(__u32 rank, struct pinch_waits_work *w)
{
	struct pinch_peer *peer = bpf_map_lookup_elem(&pinch_peers, &rank);
	__u64 ours = peer ? pinch_word_in(peer->ours, w->seq) : 0;

	if (rank == pinch_config.rank || !ours || !(w->partners >> rank & 1))
		return 0;
	if (pinch_is_behind(peer, w->seq) ||
	    *(volatile __u32 *)&peer->acked < pinch_frames_in(ours))
		w->waits |= 1u << rank % 32;
	return 0;
}

/* The ranks from which this one lacks something, in its current sequence number. */
static __always_inline __u32 pinch_waits_of(struct pinch_control *c, __u32 seq)
{
	struct pinch_waits_work w = { .seq = seq, .partners = c->partners };

	bpf_loop(pinch_config.ranks, pinch_note_wait, &w, 0);
	return w.waits;
}

static __always_inline bool pinch_has_ended(struct pinch_control *c)
{
	return *(volatile __u32 *)&c->nonfinite || *(volatile __u32 *)&c->gone ||
	       *(volatile __u32 *)&c->late;
}

/* The checksum of a handshake that has been addressed. */
static __always_inline __u64 pinch_handshake_check(const struct pinch_handshake *handshake)
{
	return pinch_weigh(handshake->word, weights) + frame_seal(&handshake->head);
}

struct pinch_meet_work {
	__u32 partners;
	__u32 seq;
	__u32 frames;
	__u32 exponent;
};

static long pinch_meet_rank(__u32 rank, struct pinch_meet_work *w)
{
	struct pinch_peer *peer = bpf_map_lookup_elem(&pinch_peers, &rank);
	__u64 word = peer ? pinch_word_in(peer->theirs, w->seq) : 0;

	if (!(w->partners >> rank & 1))
		return 0;
	if (!word)
		return 1;
	w->partners &= ~(1u << rank);
	w->frames += pinch_frames_in(word);
	w->exponent = pinch_exponent_in(word) > w->exponent ? pinch_exponent_in(word) : w->exponent;
	return 0;
}

/* Have all partners entered this sequence number, and does the scale of the payloads fit? Then
 * frames may be sent. If the scale does not fit, wake the process. */
static __always_inline bool pinch_meet(struct pinch_control *c, __u32 seq)
{
	struct pinch_meet_work w = { .partners = c->partners, .seq = seq };
	__u64 before = *(volatile __u64 *)&c->met, event = seq;

	if (seq_of(before) == seq)
		return true;
	bpf_loop(pinch_config.ranks, pinch_meet_rank, &w, 0);
	if (w.partners)
		return false;
	if (w.exponent < *(volatile __u32 *)&c->lowest ||
	    w.exponent > *(volatile __u32 *)&c->highest) {
		*(volatile __u32 *)&c->unfit = seq;
		bpf_ringbuf_output(&pinch_events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
		return false;
	}
	/* This does nothing if the process has gone on meanwhile. */
	if (seq == seq_of(*(volatile __u64 *)&c->progress))
		__sync_val_compare_and_swap(&c->met, before, word_of(seq, w.frames));
	pinch_check_complete(c, seq);
	return true;
}

/* The part of a handshake that is the same for all ranks. */
struct pinch_status {
	__u32 seq; /* the last that the sender has entered */
	__u32 waits;
	__u8 attempt;
	bool ask; /* the sender wants an answer */
};

/* Turn the frame into a handshake to a rank. */
static __always_inline void pinch_write_handshake(struct pinch_handshake *handshake,
						  struct pinch_control *c, __u32 to, __u64 word,
						  const struct pinch_status *say)
{
	struct ring_frame *f = &handshake->head;
	bool ended = pinch_has_ended(c);
	__u32 gone = ended ? *(volatile __u32 *)&c->gone : 0,
	      late = ended && !gone ? *(volatile __u32 *)&c->late : 0;

	pinch_write_head(f, PINCH_HANDSHAKE, seq_of(word), say->attempt, c->tag);
	if (ended) {
		f->nonfinite = c->nonfinite;
		if (late)
			f->late = late;
		else
			f->gone = gone;
	} else {
		f->waits = say->waits;
		f->entered = say->seq;
	}
	f->flags = (say->ask ? PINCH_FLAG_ASK : 0) | (late ? PINCH_FLAG_LATE : 0);
	handshake->word = ended ? word_of(seq_of(word), PINCH_ENDED) : word;
	pinch_address(f, to, sizeof(word));
	f->checksum = pinch_handshake_check(handshake);
	pinch_count(PINCH_HANDSHAKES, 1);
}
