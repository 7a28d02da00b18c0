/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Words of lib/generation.h in memory that several CPUs change, and bitmaps of them: 32 bits a word, those of a generation. */
#pragma once

#include "lib/bpf.h"
#include "lib/generation.h"

static __always_inline __u64 word_read(const __u64 *word)
{
	return *(const volatile __u64 *)word;
}

/* Move a word forward, unless somebody else has moved it. */
static __always_inline bool word_advance(__u64 *word, __u64 from, __u64 to)
{
	return word_is_forward(from, to) && __sync_val_compare_and_swap(word, from, to) == from;
}
