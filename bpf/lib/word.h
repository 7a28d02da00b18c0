/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Words of lib/seq.h in memory that several CPUs change, and bitmaps made of them: each word has a
 * sequence number and 32 bits. */
#pragma once

#include "lib/bpf.h"
#include "lib/seq.h"

static __always_inline __u64 word_read(const __u64 *word)
{
	return *(const volatile __u64 *)word;
}

/* Move a word forward, unless another CPU or the process has moved it. */
static __always_inline bool word_advance(__u64 *word, __u64 from, __u64 to)
{
	return word_is_forward(from, to) && __sync_val_compare_and_swap(word, from, to) == from;
}

#define BITMAP_TRIES 8 /* for a word that other CPUs change as well */

enum bitmap_claim { BITMAP_CLAIMED, BITMAP_TAKEN, BITMAP_STALE, BITMAP_CONTENDED };

static __always_inline __u32 bitmap_bits(__u64 word, __u32 seq)
{
	return seq_of(word) == seq ? (__u32)word : 0;
}

static __always_inline __u32 bitmap_count(__u32 bits)
{
	bits -= bits >> 1 & 0x55555555;
	bits = (bits & 0x33333333) + (bits >> 2 & 0x33333333);
	return ((bits + (bits >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24;
}

/* Add bits to a word of a bitmap; `*fresh` is set to those that it did not have. Sequence numbers
 * only move forward: a frame of an earlier one, which a program may still have been processing when
 * the process moved on, changes nothing.
 */
static __always_inline enum bitmap_claim bitmap_add(void *bitmap, __u32 index, __u32 seq,
						    __u32 bits, __u32 *fresh)
{
	__u64 *word = bpf_map_lookup_elem(bitmap, &index);
	__u64 before, after;
	int i;

	*fresh = 0;
	if (!word)
		return BITMAP_STALE;
	for (i = 0; i < BITMAP_TRIES; i++) {
		before = word_read(word);
		if (seq_is_before(seq, seq_of(before)))
			return BITMAP_STALE;
		*fresh = bits & ~bitmap_bits(before, seq);
		if (!*fresh)
			return BITMAP_TAKEN;
		after = word_of(seq, bitmap_bits(before, seq) | bits);
		if (__sync_val_compare_and_swap(word, before, after) == before)
			return BITMAP_CLAIMED;
	}
	*fresh = 0;
	return BITMAP_CONTENDED;
}
