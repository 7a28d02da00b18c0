/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Adding a vertex's row in a frame to the accumulators of its neighbours.
 *
 * A lane is a signed integer; its accumulator has twice the width, so that 2^16 (2^32) summands of
 * full magnitude fit. Two 32-bit lanes share a word as high * 2^32 + low, a sum of signed numbers.
 * Such words add up like their lanes, so carries need no care, and come apart again as low =
 * (s32)word, high = (word - low) >> 32. For a maximum, lanes lie side by side unchanged.
 *
 * If sums are packed, 32-bit lanes share words in the same way without being widened: the process
 * keeps lanes so small, and gives each accumulator so few neighbours, that no sum overflows.
 *
 * Several CPUs receive frames at once. Each CPU has its own bank of accumulators, which no other
 * CPU writes, so additions need not be atomic. Programs on one CPU do not interrupt each other,
 * because they run with softirqs off. The process adds up the banks.
 */
#pragma once

#include "pinch_work.h"

struct pinch_row_work {
	const __u64 *wide; /* the row as accumulators have it, mostly at twice the width */
	__u32 bank;	   /* first accumulator */
	__u32 first;	   /* first of the neighbours, in `pinch_edges` */
	__u32 count;
	__u32 offset; /* words into the accumulator */
};

/* One word's lanes at twice the width. */
static __always_inline void pinch_widen(__u64 word, __u64 *wide)
{
	if (pinch_config.bits == 32) {
		wide[0] = (__s64)(__s32)word;
		wide[1] = (__s64)word >> 32;
	} else if (pinch_config.aggregation == PINCH_MAX) {
		wide[0] = (__u32)(__s32)(__s16)word | (__u64)(__u32)(__s32)(__s16)(word >> 32)
							      << 32;
		wide[1] = (__u32)(__s32)(__s16)(word >> 16) |
			  (__u64)(__u32)(__s32)(__s16)(word >> 48) << 32;
	} else {
		const __u64 lanes = 0x0000ffff0000ffff, sign = 0x0000800000008000;

		wide[0] = ((word & lanes) ^ sign) - sign;
		wide[1] = ((word >> 16 & lanes) ^ sign) - sign;
	}
}

/* Write a payload's word as accumulators have it, as one word or two. `at` is its index after the
 * word that `wide` is for. */
static __always_inline void pinch_unpack(__u64 word, __u64 *wide, __u32 at)
{
	const __u64 sign = 0x80000000;

	if (pinch_config.packed)
		wide[at] = (word ^ sign) - sign; /* the upper half lends one if the lower is < 0 */
	else
		pinch_widen(word, &wide[2 * at]);
}

/* All ones if a number is negative. There is neither a branch nor an arithmetic shift, because the
 * verifier would follow both outcomes, and its states would double with every word. */
static __always_inline __u64 pinch_if_negative(__s64 number)
{
	__u64 mask;

	asm volatile("" : "+r"(number));
	mask = 0 - ((__u64)number >> 63);
	asm volatile("" : "+r"(mask));
	return mask;
}

static __always_inline __u64 pinch_greater_lane(__u64 a, __u64 b)
{
	__u64 less = pinch_if_negative(((__s64)a >> 1) - ((__s64)b >> 1) - (~a & b & 1));

	return a ^ ((a ^ b) & less);
}

static __always_inline __u64 pinch_greater_lanes(__u64 a, __u64 b)
{
	__u64 low = pinch_if_negative((__s64)(__s32)a - (__s32)b),
	      high = pinch_if_negative(((__s64)a >> 32) - ((__s64)b >> 32));

	return a ^ ((a ^ b) & ((low & 0xffffffff) | high << 32));
}

static __always_inline __u64 pinch_combine(__u64 to, __u64 wide, __s64 weight, __u32 aggregation,
					   __u32 bits)
{
	if (aggregation == PINCH_MAX)
		return bits == 32 ? pinch_greater_lane(to, wide) : pinch_greater_lanes(to, wide);
	return to + (aggregation == PINCH_WEIGHTED ? wide * weight : wide);
}

/* Where to add a row: the accumulator of the `k`th neighbour. NULL: there are no more neighbours.
 */
static __always_inline __u64 *pinch_accumulator_of(struct pinch_row_work *row, __u32 k,
						   __u32 offset)
{
	__u32 index = row->first + k, target;
	struct pinch_edge *edge = bpf_map_lookup_elem(&pinch_edges, &index);
	__u64 *to;

	if (!edge || k >= row->count || edge->target >= pinch_config.targets)
		return NULL;
	target = row->bank + edge->target;
	to = bpf_map_lookup_elem(&pinch_accumulators, &target);
	return to ? to + offset : NULL;
}

/* `aggregation` and `bits` are constants, so that each combination has its own loop, with eight
 * words per iteration, because the verifier walks through all of it. */
static __always_inline void pinch_add_words(__u64 *to, const __u64 *wide, __s64 weight,
					    __u32 aggregation, __u32 bits)
{
	__u32 i = 0;

	for (; i + 8 <= PINCH_MAX_WIDE && i + 8 <= pinch_config.sum_words; i += 8) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			to[i + j] =
				pinch_combine(to[i + j], wide[i + j], weight, aggregation, bits);
	}
	for (; i < PINCH_MAX_WIDE && i < pinch_config.sum_words; i++)
		to[i] = pinch_combine(to[i], wide[i], weight, aggregation, bits);
}

static __always_inline void pinch_add_row(struct pinch_row_work *row, __u32 k, __u64 *to)
{
	struct pinch_edge *edge;
	__u32 index = row->first + k;

	if (pinch_config.aggregation == PINCH_SUM) {
		pinch_add_words(to, row->wide, 1, PINCH_SUM, 0);
	} else if (pinch_config.aggregation == PINCH_MAX) {
		if (pinch_config.bits == 32)
			pinch_add_words(to, row->wide, 1, PINCH_MAX, 32);
		else
			pinch_add_words(to, row->wide, 1, PINCH_MAX, 16);
	} else {
		edge = bpf_map_lookup_elem(&pinch_edges, &index);
		if (edge)
			pinch_add_words(to, row->wide, edge->weight, PINCH_WEIGHTED, 0);
	}
}

/* Add the row to four neighbours. Accumulators are far apart and usually not in a cache, so all
 * four are prefetched before the first is used. */
static long pinch_add_edges(__u32 k, struct pinch_row_work *row)
{
	__u32 offset = row->offset;
	__u64 *a, *b, *c, *d;

	if (offset > pinch_config.sum_words * (pinch_config.parts - 1))
		return 1;
	a = pinch_accumulator_of(row, 4 * k, offset);
	/* After a NULL, all others are NULL as well, so the verifier walks through the loops of
	 * add_row in five states instead of sixteen. */
	b = a ? pinch_accumulator_of(row, 4 * k + 1, offset) : NULL;
	c = b ? pinch_accumulator_of(row, 4 * k + 2, offset) : NULL;
	d = c ? pinch_accumulator_of(row, 4 * k + 3, offset) : NULL;
	if (b)
		(void)*(volatile __u64 *)b;
	if (c)
		(void)*(volatile __u64 *)c;
	if (d)
		(void)*(volatile __u64 *)d;
	if (a)
		pinch_add_row(row, 4 * k, a);
	if (b)
		pinch_add_row(row, 4 * k + 1, b);
	if (c)
		pinch_add_row(row, 4 * k + 2, c);
	if (d)
		pinch_add_row(row, 4 * k + 3, d);
	return 0;
}

/* Add the row to one neighbour, because four loops over maxima are too many for the verifier. */
static long pinch_add_edge(__u32 k, struct pinch_row_work *row)
{
	__u32 offset = row->offset;
	__u64 *to;

	if (offset > pinch_config.sum_words * (pinch_config.parts - 1))
		return 1;
	to = pinch_accumulator_of(row, k, offset);
	if (!to)
		return 1;
	pinch_add_row(row, k, to);
	return 0;
}

/* Add the row to all of `count` neighbours. */
static __always_inline void pinch_add_all(struct pinch_row_work *row)
{
	if (pinch_config.aggregation == PINCH_MAX)
		bpf_loop(row->count, pinch_add_edge, row, 0);
	else
		bpf_loop((row->count + 3) / 4, pinch_add_edges, row, 0);
}

/* The first accumulator of this CPU's bank. */
static __always_inline __u32 pinch_bank_of(void)
{
	return pinch_bank_here() * pinch_config.targets;
}
