/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Sequence numbers of collectives, which have 32 bits and wrap, and words that combine a sequence
 * number with 32 bits of state that only grow within it. Words only move forward. Reference model:
 * testbed/protocol/sequence.py.
 */
#pragma once

#include <linux/types.h>
#include <stdbool.h>

static __always_inline __u32 seq_of(__u64 word)
{
	return word >> 32;
}

/* 0 means "none", so a wrap skips it. It skips 1 as well, so that consecutive numbers still differ
 * in their lowest bit. */
static __always_inline __u32 seq_after(__u32 seq)
{
	return seq == 0xffffffff ? 2 : seq + 1;
}

/* Is `seq` the earlier one (RFC 1982)? */
static __always_inline bool seq_is_before(__u32 seq, __u32 other)
{
	return (__s32)(seq - other) < 0;
}

static __always_inline __u64 word_of(__u32 seq, __u32 lower)
{
	return (__u64)seq << 32 | lower;
}

/* Would this change move a word forward? Within a sequence number its lower half only grows. A word
 * that is 0 was never written. */
static __always_inline bool word_is_forward(__u64 from, __u64 to)
{
	__u32 before = seq_of(from), after = seq_of(to);

	return !from || seq_is_before(before, after) ||
	       (before == after && (__u32)from < (__u32)to);
}
