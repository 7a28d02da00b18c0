/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* From a vertex's row in a frame to the accumulators of its neighbours.
 *
 * A lane is a signed integer; its accumulator has twice the width, so that 2^16 (2^32) summands of full magnitude fit. Two 32-bit lanes
 * share a word as high * 2^32 + low, a sum of signed numbers: words then add up as their lanes do, without a carry to take care of, and
 * come apart again as low = (s32)word, high = (word - low) >> 32. For a maximum they lie side by side as they are.
 *
 * Frames are received on several CPUs at once. Each CPU has a bank of accumulators of its own, which no other writes: no atomic adds,
 * no lost ones. On a CPU programs do not interrupt each other: all of them run with softirqs off. The process adds up the banks.
 */
#pragma once

#include "pinch_work.h"

#define PINCH_TOUCH 8 /* cache lines of the next accumulator that are fetched ahead */

struct row_work {
	struct pinch_scratch *scratch;
	__u32 bank;   /* first accumulator */
	__u32 first;  /* of the neighbours, in `edges` */
	__u32 offset; /* words into the accumulator */
};

/* wide = row, lanes at twice the width. */
static __always_inline void widen(const __u64 *row, __u64 *wide)
{
	for (__u32 i = 0; i < PINCH_MAX_WORDS && i < config.words; i++) {
		__u64 word = row[i];

		if (config.bits == 32) {
			wide[2 * i] = (__s64)(__s32)word;
			wide[2 * i + 1] = (__s64)word >> 32;
		} else if (config.aggregation == PINCH_MAX) {
			wide[2 * i] = (__u32)(__s32)(__s16)word | (__u64)(__u32)(__s32)(__s16)(word >> 32) << 32;
			wide[2 * i + 1] = (__u32)(__s32)(__s16)(word >> 16) | (__u64)(__u32)(__s32)(__s16)(word >> 48) << 32;
		} else {
			const __u64 lanes = 0x0000ffff0000ffff, sign = 0x0000800000008000;

			wide[2 * i] = ((word & lanes) ^ sign) - sign;
			wide[2 * i + 1] = ((word >> 16 & lanes) ^ sign) - sign;
		}
	}
}

static __always_inline __u64 greater(__u64 a, __u64 b)
{
	__s32 low = (__s32)a > (__s32)b ? a : b, high = (__s32)(a >> 32) > (__s32)(b >> 32) ? a >> 32 : b >> 32;

	if (config.bits == 32)
		return (__s64)a > (__s64)b ? a : b;
	return (__u32)low | (__u64)(__u32)high << 32;
}

/* Add the row at hand to one neighbour. */
static long add_edge(__u32 k, struct row_work *row)
{
	__u32 index = row->first + k, target, offset = row->offset;
	struct pinch_edge *edge = bpf_map_lookup_elem(&edges, &index);
	__u64 *to, *next, *wide = row->scratch->wide;
	__s64 weight;

	if (!edge || edge->target >= config.targets)
		return 1;
	weight = edge->weight;
	target = row->bank + edge->target;
	to = bpf_map_lookup_elem(&accumulators, &target);
	if (!to || offset > 2 * config.words * (config.parts - 1))
		return 1;
	to += offset;
	/* Accumulators are far apart and in no cache: ask for the next one while adding to this one. */
	index += 1;
	edge = bpf_map_lookup_elem(&edges, &index);
	if (edge) {
		target = row->bank + edge->target;
		next = bpf_map_lookup_elem(&accumulators, &target);
		if (next) {
#pragma unroll
			for (__u32 i = 0; i < PINCH_TOUCH; i++)
				if (8 * i < 2 * config.words)
					(void)*(volatile __u64 *)(next + offset + 8 * i);
		}
	}
	if (config.aggregation == PINCH_SUM && config.words % 4 == 0) {
		for (__u32 i = 0; i < PINCH_MAX_WIDE && i < 2 * config.words; i += 8) {
#pragma unroll
			for (int j = 0; j < 8; j++)
				to[i + j] += wide[i + j];
		}
		return 0;
	}
	for (__u32 i = 0; i < PINCH_MAX_WIDE && i < 2 * config.words; i++) {
		if (config.aggregation == PINCH_MAX)
			to[i] = greater(to[i], wide[i]);
		else if (config.aggregation == PINCH_WEIGHTED)
			to[i] += wide[i] * weight;
		else
			to[i] += wide[i];
	}
	return 0;
}

/* Add a row to `count` of its neighbours. */
static __always_inline void add_row(struct row_work *row, const __u64 *words, __u32 count_)
{
	widen(words, row->scratch->wide);
	bpf_loop(count_, add_edge, row, 0);
	count(PINCH_EDGES, count_);
}

/* The first accumulator of this CPU's bank. */
static __always_inline __u32 bank_of(void)
{
	return config.cpu == PINCH_ANYWHERE ? bpf_get_smp_processor_id() % config.banks * config.targets : 0;
}
