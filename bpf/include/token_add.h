/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Adding in the kernel: when the process has verified what has landed, a program gathers the
 * summands of each sum from their slots, a slice of the sums each time it is run, so that no CPU is
 * occupied for long.
 *
 * Lanes are unsigned: what they mean, plus half of their range. A word has four, of 15 bits in 16,
 * or two, of 31 bits in 32, so that two words can be added as they are. A sum has two words for
 * one, with every other lane each, and so twice the bits for each lane. Senders choose the step of
 * their lanes, a power of two; lanes with a smaller one are shifted to the largest. Reference
 * model: testbed/protocol/token/adding.py.
 */
#pragma once

#include "token_maps.h"

#define TOKEN_BATCH 8 /* summands whose sum stays in registers */

MAPPED_ARRAY(token_parts, struct token_part);
MAPPED_ARRAY(token_edges, struct token_edge);
MAPPED_ARRAY(token_weights, __s64); /* by edge */
MAPPED_BUFFER(token_sums);	    /* by part */

/* A slice. */
struct token_gather {
	__u32 first;		     /* slot of this exchange */
	__u32 part;		     /* the one whose sum is formed */
	__u32 edge;		     /* its next one */
	__u64 start;		     /* of its sum, in each field */
	__s32 left;		     /* edges before the slice ends, at most about so many */
	__u32 shifted;		     /* some lanes have a smaller step than others */
	__u8 shifts[RING_MAX_RANKS]; /* of each sender's lanes */
};

/* The words of a summand. */
static __always_inline const __u64 *token_row(const struct token_gather *g, __u32 index,
					      __u32 *rank)
{
	struct token_edge *edge = bpf_map_lookup_elem(&token_edges, &index);
	const void *slot;
	__u32 number, at;

	if (!edge)
		return NULL;
	number = g->first + edge->slot;
	at = 8 * edge->at;
	*rank = edge->rank;
	slot = bpf_map_lookup_elem(&token_landing, &number);
	if (!slot || at > token_config.farthest)
		return NULL;
	return slot + at;
}

static __always_inline __u64 *token_sum_of(const struct token_gather *g)
{
	return bpf_map_lookup_elem(&token_sums, &g->part);
}

/* Every other lane of a word, in fields of twice the width. */
static __always_inline __u64 token_low(__u64 word, const bool wide)
{
	return word & (wide ? 0x00000000ffffffffull : 0x0000ffff0000ffffull);
}

static __always_inline __u64 token_high(__u64 word, const bool wide)
{
	return wide ? word >> 32 : word >> 16 & 0x0000ffff0000ffffull;
}

/* The same number in each field. */
static __always_inline __u64 token_each(__u64 number, const bool wide)
{
	return wide ? number : number << 32 | number;
}

/* The larger one in each field; lanes leave its upper half free. */
static __always_inline __u64 token_larger(__u64 one, __u64 other, const bool wide)
{
	__u64 top = wide ? 1ull << 63 : 0x8000000080000000ull, mask;

	mask = ((one | top) - other) & top; /* where `one` is not smaller */
	mask = (mask >> (wide ? 31 : 15)) - (mask >> (wide ? 63 : 31));
	return (one & mask) | (other & ~mask);
}

/* Add `count` summands, which is a constant, to the sum, or begin it with them. */
static __always_inline long token_take_some(struct token_gather *g, __u32 first, const __u32 count,
					    const bool wide, const bool begin)
{
	const __u64 *rows[TOKEN_BATCH];
	__u64 *sum = token_sum_of(g), words = token_config.words;
	__u32 rank;

	if (!sum)
		return 1;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < count; i++) {
		rows[i] = token_row(g, first + i, &rank);
		if (!rows[i])
			return 1;
	}
#pragma clang loop unroll(full)
	for (__u64 k = 0; k < TOKEN_WORDS; k++) {
		__u64 low = begin ? g->start : sum[2 * k];
		__u64 high = begin ? g->start : sum[2 * k + 1];

		if (k >= words)
			continue;
#pragma clang loop unroll(full)
		for (__u32 i = 0; i < count; i += 2) {
			__u64 pair = rows[i][k] + (i + 1 < count ? rows[i + 1][k] : 0);

			low += token_low(pair, wide);
			high += token_high(pair, wide);
		}
		sum[2 * k] = low;
		sum[2 * k + 1] = high;
	}
	return 0;
}

/* Shift the lanes of a word's fields, and round them: half of the range is added again, so that
 * lanes with any step have it. */
struct token_shift {
	__u64 round, keep, half;
	__u32 by;
};

static __always_inline struct token_shift token_shift_of(__u32 by, const bool wide)
{
	__u32 bits = wide ? TOKEN_WIDE_BITS : TOKEN_BITS;
	__u64 half = 1ull << (bits - 1), lanes = token_each((half << 1) - 1, wide);

	if (!by)
		return (struct token_shift){ .keep = lanes };
	if (by >= bits) /* it is less than half a unit */
		return (struct token_shift){ .half = token_each(half, wide) };
	return (struct token_shift){ .round = token_each(1ull << (by - 1), wide),
				     .keep = lanes,
				     .half = token_each(half - (half >> by), wide),
				     .by = by };
}

static __always_inline __u64 token_shifted(__u64 fields, const struct token_shift *s)
{
	return ((fields + s->round) >> s->by & s->keep) + s->half;
}

/* Add one summand, whatever its step and its weight. */
static __always_inline long token_take(__u32 i, struct token_gather *g, const bool wide,
				       const bool weighted, const bool maximum)
{
	__u32 index = g->edge + i, rank = 0;
	const __u64 *row = token_row(g, index, &rank);
	__u64 *sum = token_sum_of(g), words = token_config.words, weight = 1;
	struct token_shift shift;

	if (!row || !sum)
		return 1;
	shift = token_shift_of(g->shifts[rank % RING_MAX_RANKS], wide);
	if (weighted) {
		__s64 *found = bpf_map_lookup_elem(&token_weights, &index);

		if (!found)
			return 1;
		weight = *found;
	}
#pragma clang loop unroll(full)
	for (__u64 k = 0; k < TOKEN_WORDS; k++) {
		__u64 low, high;

		if (k >= words)
			continue;
		low = token_shifted(token_low(row[k], wide), &shift);
		high = token_shifted(token_high(row[k], wide), &shift);
		if (maximum) {
			sum[2 * k] = token_larger(sum[2 * k], low, wide);
			sum[2 * k + 1] = token_larger(sum[2 * k + 1], high, wide);
		} else {
			sum[2 * k] += low * weight;
			sum[2 * k + 1] += high * weight;
		}
	}
	return 0;
}

/* The verifier knows the configuration, and removes what cannot be reached. */
static long token_batch(__u32 i, struct token_gather *g)
{
	__u32 first = g->edge + TOKEN_BATCH * i;

	if (token_config.wide)
		return token_take_some(g, first, TOKEN_BATCH, true, false);
	return token_take_some(g, first, TOKEN_BATCH, false, false);
}

static __always_inline void token_begin(struct token_gather *g, __u32 count, const bool wide)
{
	if (count == 1)
		token_take_some(g, g->edge, 1, wide, true);
	else if (count == 2)
		token_take_some(g, g->edge, 2, wide, true);
	else if (count == 3)
		token_take_some(g, g->edge, 3, wide, true);
	else if (count == 4)
		token_take_some(g, g->edge, 4, wide, true);
	else if (count == 5)
		token_take_some(g, g->edge, 5, wide, true);
	else if (count == 6)
		token_take_some(g, g->edge, 6, wide, true);
	else if (count == 7)
		token_take_some(g, g->edge, 7, wide, true);
	else
		token_take_some(g, g->edge, 8, wide, true);
}

static long token_one(__u32 i, struct token_gather *g)
{
	const bool wide = token_config.wide;

	if (token_config.weighted)
		return wide ? token_take(i, g, true, true, false)
			    : token_take(i, g, false, true, false);
	if (token_config.maximum)
		return wide ? token_take(i, g, true, false, true)
			    : token_take(i, g, false, false, true);
	return wide ? token_take(i, g, true, false, false) : token_take(i, g, false, false, false);
}

static __always_inline void token_start(const struct token_gather *g)
{
	__u64 *sum = token_sum_of(g), words = token_config.words;

	if (!sum)
		return;
#pragma clang loop unroll(full)
	for (__u64 k = 0; k < TOKEN_WORDS; k++) {
		if (k >= words)
			continue;
		sum[2 * k] = g->start;
		sum[2 * k + 1] = g->start;
	}
}

/* Begin a sum with summands that have the same step and weights of 1. */
static __always_inline void token_add_plain(struct token_gather *g, __u32 count)
{
	__u32 some = (count - 1) % TOKEN_BATCH + 1;

	if (token_config.wide)
		token_begin(g, some, true);
	else
		token_begin(g, some, false);
	g->edge += some;
	if (count > some)
		bpf_loop((count - some) / TOKEN_BATCH, token_batch, g, 0);
	g->edge += count - some;
}

/* Form the next sum; 1: the slice ends. */
static long token_add_part(__u32 i, struct token_gather *g)
{
	struct token_part *part = bpf_map_lookup_elem(&token_parts, &g->part);
	__u32 count, plain;

	if (!part)
		return 1;
	g->edge = part->first;
	g->start = token_each(part->start, token_config.wide);
	count = part->count < TOKEN_PART ? part->count : TOKEN_PART;
	plain = part->plain < count ? part->plain : count;
	g->left -= count;
	if (plain && !g->shifted && !token_config.maximum) {
		token_add_plain(g, plain);
		count -= plain;
	} else {
		token_start(g);
	}
	bpf_loop(count, token_one, g, 0);
	g->part++;
	return g->left <= 0;
}

/* The exponent of a sender's step, as float32 has it; 0: it sends no rows. */
static __always_inline __u32 token_exponent(const struct token_gather *g, __u32 rank)
{
	const volatile struct token_pair *pair = &token_config.pairs[rank % RING_MAX_RANKS];
	__u32 slot = g->first + pair->step_slot, at = pair->step_at;
	const void *data = bpf_map_lookup_elem(&token_landing, &slot);

	if (!pair->stepped || !data || at > token_config.room - 4)
		return 0;
	return *(const __u32 *)(data + at) >> 23 & 0xff;
}

static __always_inline void token_find_shifts(struct token_gather *g)
{
	__s32 most = 0;

	for (__u32 rank = 0; rank < RING_MAX_RANKS && rank < token_config.ranks; rank++) {
		__s32 exponent = token_exponent(g, rank), more = exponent - most;
		__s32 less = more >> 31; /* all bits, if it is less */

		g->shifts[rank] = exponent;
		/* The larger one, without a branch: with one, 31 ranks have too many paths. */
		asm volatile("" : "+r"(less));
		most += more & ~less;
	}
	for (__u32 rank = 0; rank < RING_MAX_RANKS && rank < token_config.ranks; rank++) {
		g->shifts[rank] = g->shifts[rank] ? most - g->shifts[rank] : 0;
		g->shifted |= g->shifts[rank];
	}
}

/* Form some of the sums that are still missing. */
static __always_inline void token_add_slice(struct token_control *c)
{
	struct token_gather g = { .left = TOKEN_SLICE };

	g.first = (c->open & 1) * token_config.slots;
	g.part = c->added;
	token_find_shifts(&g);
	bpf_loop(token_config.parts - g.part, token_add_part, &g, 0);
	c->added = g.part;
	count(TOKEN_SLICES, 1);
	count(TOKEN_EDGES, TOKEN_SLICE - g.left);
}
