/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Adding in the kernel: once all frames of an exchange have landed, a timer's callback gathers the
 * summands of each sum from their slots. It adds a slice at a time, so that no CPU is occupied for
 * long, and wakes the process when all sums are there.
 *
 * Lanes are unsigned: what they mean, plus half of their range. A word has four of 16 bits or two
 * of 32; a sum has two words for it, with every other lane each, and so twice the bits for each
 * lane. Senders choose the step of their lanes, a power of two; lanes with a smaller one are
 * shifted to the largest. Reference model: testbed/protocol/token/adding.py.
 *
 * A damaged frame makes sums wrong: the process verifies what has landed, and when what was damaged
 * has come again, all is added anew.
 */
#pragma once

#include "token_maps.h"

#define TOKEN_BATCH 4 /* summands whose sum stays in registers */

MAPPED_ARRAY(token_parts, struct token_part);
MAPPED_ARRAY(token_edges, struct token_edge);
MAPPED_ARRAY(token_weights, __s64); /* by edge */
MAPPED_BUFFER(token_sums);	    /* `parts` of each parity */

struct token_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct token_timer);
} token_timers SEC(".maps");

/* A slice. */
struct token_gather {
	__u64 added; /* seq << 32 | next part */
	__u32 edge;
	__u32 sum;		     /* index in token_sums */
	__s32 left;		     /* edges before the slice ends, at most about so many */
	__u32 shifted;		     /* some lanes have a smaller step than others */
	__u8 shifts[RING_MAX_RANKS]; /* of each sender's lanes */
};

static __always_inline __u32 token_first_slot(__u64 added)
{
	return (seq_of(added) & 1) * token_config.slots;
}

static __always_inline __u32 token_row_bytes(void)
{
	return 8 * (token_config.words < TOKEN_WORDS ? token_config.words : TOKEN_WORDS);
}

/* The words of a summand. */
static __always_inline const __u64 *token_row(const struct token_gather *g, __u32 index,
					      __u32 *rank)
{
	struct token_edge *edge = bpf_map_lookup_elem(&token_edges, &index);
	const void *slot;
	__u32 number, at;

	if (!edge)
		return NULL;
	number = token_first_slot(g->added) + edge->slot;
	at = 8 * edge->at;
	*rank = edge->rank;
	slot = bpf_map_lookup_elem(&token_landing, &number);
	if (!slot || token_row_bytes() > token_config.room ||
	    at > token_config.room - token_row_bytes())
		return NULL;
	return slot + at;
}

static __always_inline __u64 *token_sum_of(const struct token_gather *g)
{
	__u32 index = g->sum;

	return bpf_map_lookup_elem(&token_sums, &index);
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

/* Add TOKEN_BATCH summands. */
static __always_inline long token_take_batch(__u32 i, struct token_gather *g, const bool wide)
{
	__u32 first = g->edge + TOKEN_BATCH * i, rank;
	const __u64 *a = token_row(g, first, &rank), *b = token_row(g, first + 1, &rank),
		    *c = token_row(g, first + 2, &rank), *d = token_row(g, first + 3, &rank);
	__u64 *sum = token_sum_of(g), words = token_config.words;

	if (!a || !b || !c || !d || !sum)
		return 1;
#pragma clang loop unroll(full)
	for (__u64 k = 0; k < TOKEN_WORDS; k++) {
		__u64 low, high;

		if (k >= words)
			continue;
		low = token_low(a[k], wide) + token_low(b[k], wide);
		high = token_high(a[k], wide) + token_high(b[k], wide);
		low += token_low(c[k], wide) + token_low(d[k], wide);
		high += token_high(c[k], wide) + token_high(d[k], wide);
		sum[2 * k] += low;
		sum[2 * k + 1] += high;
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
	__u32 bits = wide ? 32 : 16;
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
	if (token_config.wide)
		return token_take_batch(i, g, true);
	return token_take_batch(i, g, false);
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

/* Form the next sum; 1: the slice ends. */
static long token_add_part(__u32 i, struct token_gather *g)
{
	__u32 number = g->added, count;
	struct token_part *part = bpf_map_lookup_elem(&token_parts, &number);
	__u64 *sum, words = token_config.words, start;

	g->sum = (seq_of(g->added) & 1) * token_config.parts + number;
	sum = token_sum_of(g);
	if (!part || !sum)
		return 1;
	start = token_each(part->start, token_config.wide);
	count = part->count < TOKEN_PART ? part->count : TOKEN_PART;
	g->edge = part->first;
	g->left -= count;
#pragma clang loop unroll(full)
	for (__u64 k = 0; k < TOKEN_WORDS; k++) {
		if (k >= words)
			continue;
		sum[2 * k] = start;
		sum[2 * k + 1] = start;
	}
	if (!g->shifted && !token_config.weighted && !token_config.maximum) {
		bpf_loop(count / TOKEN_BATCH, token_batch, g, 0);
		g->edge += count / TOKEN_BATCH * TOKEN_BATCH;
		count %= TOKEN_BATCH;
	}
	bpf_loop(count, token_one, g, 0);
	g->added++;
	return g->left <= 0;
}

/* The exponent of a sender's step, as float32 has it; 0: it sends no rows. */
static __always_inline __u32 token_exponent(const struct token_gather *g, __u32 rank)
{
	const volatile struct token_pair *pair = &token_config.pairs[rank % RING_MAX_RANKS];
	__u32 slot = token_first_slot(g->added) + pair->step_slot, at = pair->step_at;
	const void *data = bpf_map_lookup_elem(&token_landing, &slot);

	if (!pair->stepped || !data || at > token_config.room - 4)
		return 0;
	return *(const __u32 *)(data + at) >> 23 & 0xff;
}

static __always_inline void token_find_shifts(struct token_gather *g)
{
	__u32 most = 0;

	for (__u32 rank = 0; rank < RING_MAX_RANKS && rank < token_config.ranks; rank++) {
		__u32 exponent = token_exponent(g, rank);

		g->shifts[rank] = exponent;
		most = exponent > most ? exponent : most;
	}
	for (__u32 rank = 0; rank < RING_MAX_RANKS && rank < token_config.ranks; rank++) {
		g->shifts[rank] = g->shifts[rank] ? most - g->shifts[rank] : 0;
		g->shifted |= g->shifts[rank];
	}
}

/* Have all frames of an exchange landed, without all sums having been formed? Then form some.
 * Returns whether there was something to do. */
static __always_inline bool token_add_slice(struct token_control *c, __u32 seq)
{
	struct token_gather g = { .left = TOKEN_SLICE };
	__u64 *added = &c->added[seq & 1];

	/* In this order: before the process resets `added`, it reduces `complete`. */
	g.added = word_read(added);
	if (seq_of(g.added) != seq) {
		*(volatile __u64 *)added = word_of(seq, 0);
		g.added = word_read(added); /* so that the verifier does not know it */
	}
	if ((__u32)g.added == token_config.parts ||
	    *(volatile __u32 *)&c->complete[seq & 1] != token_config.partners ||
	    *(volatile __u32 *)&c->meeting == seq)
		return false;
	token_find_shifts(&g);
	bpf_loop(token_config.parts - (__u32)g.added, token_add_part, &g, 0);
	*(volatile __u64 *)added = g.added;
	count(TOKEN_SLICES, 1);
	count(TOKEN_EDGES, TOKEN_SLICE - g.left);
	if ((__u32)g.added == token_config.parts)
		wake(seq);
	return true;
}

/* Runs on one CPU at a time. Frames of the next exchange may all have landed before the sums of
 * this one are there. */
static int token_on_timer(void *map, __u32 *key, struct token_timer *value)
{
	struct token_control *c = control_of();
	__u32 open;

	if (!c)
		return 0;
	open = *(volatile __u32 *)&c->open;
	if (token_add_slice(c, open) || token_add_slice(c, seq_after(open)))
		bpf_timer_start(&value->timer, 0, 0);
	return 0;
}

/* All frames of an exchange have landed. */
static __always_inline void token_start_adding(void)
{
	__u32 zero = 0;
	struct token_timer *t = bpf_map_lookup_elem(&token_timers, &zero);

	if (!t)
		return;
	bpf_timer_init(&t->timer, &token_timers, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&t->timer, token_on_timer);
	bpf_timer_start(&t->timer, 0, 0);
}
