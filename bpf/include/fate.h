/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The fate of a frame: a pure function of the seed, the rules, and the frame's identity. Reference
 * model: testbed/faults/fate.py.
 *
 * It does not depend on time or on the order in which frames arrive, so a run can be replayed, and
 * a simulation gets the same faults. All numbers are integers, so that both sides agree bit for
 * bit. Probabilities are compared with 63 bits of a draw; 1 is 2^63.
 */
#pragma once

#include "fault.h"

/* splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
 * OOPSLA 2014). */
static __always_inline __u64 fate_mix(__u64 x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static __always_inline __u64 fate_draw(__u64 hash, __u32 number)
{
	return fate_mix(hash + (number + 1) * 0x9e3779b97f4a7c15ull);
}

static __always_inline __u64 fate_hash(__u64 seed, __u32 rule, const struct fault_packet *packet)
{
	__u64 stream = packet->sender | packet->receiver << 8 | packet->kind << 16 |
		       (__u64)packet->hop << 24 | (__u64)packet->attempt << 32 |
		       (__u64)packet->group << 48;
	__u64 place = packet->seq | (__u64)packet->chunk << 32;

	return fate_mix(fate_mix(fate_draw(seed, rule) ^ stream) ^ place);
}

static __always_inline bool fate_within(struct fault_range range, __u32 number)
{
	return range.first <= number && number <= range.last;
}

static __always_inline bool fate_matches(const struct fault_rule *rule,
					 const struct fault_packet *packet)
{
	return rule->receivers[packet->sender % FATE_MAX_HOSTS] >>
			       packet->receiver % FATE_MAX_HOSTS &
		       1 &&
	       rule->kinds[packet->kind >> 5] >> (packet->kind & 31) & 1 &&
	       fate_within(rule->group, packet->group) && fate_within(rule->seq, packet->seq) &&
	       fate_within(rule->chunk, packet->chunk) && fate_within(rule->hop, packet->hop) &&
	       fate_within(rule->attempt, packet->attempt);
}

/* The search for a stream's state, backwards from a frame. */
struct fate_stream {
	__u64 seed, enter, stay;
	__u32 rule;
	__u32 bad; /* the state, once found */
	struct fault_packet packet;
};

static long fate_look_back(__u32 step, void *context)
{
	struct fate_stream *stream = context;
	__u64 draw =
		fate_draw(fate_hash(stream->seed, stream->rule, &stream->packet), DRAW_STATE) >> 1;

	stream->bad = draw < stream->enter;
	if (stream->bad || draw >= stream->stay)
		return 1;
	stream->packet.chunk -= 1;
	return 0;
}

/* Is a frame's stream in the bad state (Gilbert-Elliott chain)? Each draw applies to both states of
 * the chain at once; one below `enter`, or of at least `stay`, takes both to the same state. So the
 * state is a function of the few frames since the last such draw. A stream without one began in its
 * stationary distribution, which also stands in for frames further back than FATE_LOOKBACK.
 */
static __always_inline bool fate_bad(__u64 seed, __u32 number, const struct fault_rule *rule,
				     const struct fault_packet *packet)
{
	struct fate_stream stream = { .seed = seed,
				      .enter = rule->enter,
				      .stay = rule->stay,
				      .rule = number,
				      .packet = *packet };
	__u32 steps = packet->chunk < FATE_LOOKBACK ? packet->chunk + 1 : FATE_LOOKBACK, before;

	stream.packet.hop = 0;
	before = stream.packet.chunk - steps;
	bpf_loop(steps, fate_look_back, &stream, 0);
	if (stream.packet.chunk != before)
		return stream.bad;
	return fate_draw(fate_hash(seed, number, &stream.packet), DRAW_STATIONARY) >> 1 <
	       rule->stationary;
}

/* The delay at which the distribution function is draw / 2^64, interpolated linearly between two
 * quantiles. */
static __always_inline __u64 fate_quantile(const struct fault_quantiles *table, __u64 draw)
{
	__u32 index = draw >> 54;
	__u64 low = table->at[index], high = table->at[index + 1];

	return low + ((high - low) * (draw >> 30 & 0xffffff) >> 24);
}

struct fate_walk {
	struct fault_rules *rules;
	struct fault_verdict *verdict;
	struct fault_packet packet;
	__u32 bits; /* bits of the frame, from FATE_FIRST_BYTE on */
};

static __always_inline __u64 fate_flip(struct fault_verdict *verdict, __u64 hash, __u32 count,
				       __u32 bits)
{
	__u64 first = 0;
	__u32 i;

	for (i = 0; i < FATE_MAX_BITS && i < count && bits; i++) {
		__u32 at = FATE_FIRST_BYTE * 8 + fate_draw(hash, DRAW_VALUES + i) % bits;

		if (i == 0)
			first = at;
		if (verdict->bits >= FATE_MAX_BITS)
			break;
		verdict->flips[verdict->bits & (FATE_MAX_BITS - 1)] = at;
		verdict->bits += 1;
	}
	return first;
}

static __always_inline __u64 fate_delay(struct fault_verdict *verdict, __u64 hash, __u32 number)
{
	struct fault_quantiles *table = bpf_map_lookup_elem(&quantiles, &number);
	__u64 first = 0;
	int i;

	if (!table)
		return 0;
	for (i = 0; i <= FATE_MAX_COPIES; i++) { /* a later rule may make copies */
		__u64 delay = fate_quantile(table, fate_draw(hash, DRAW_VALUES + i));

		if (i == 0)
			first = delay;
		verdict->delays[i] += delay;
	}
	verdict->delayed = 1;
	return first;
}

static long fate_apply(__u32 number, void *context)
{
	struct fate_walk *walk = context;
	struct fault_verdict *verdict = walk->verdict;
	struct fault_fired *fired;
	struct fault_rule *rule;
	__u64 hash, argument = 0;

	if (number >= FATE_MAX_RULES)
		return 1;
	rule = &walk->rules->rules[number];
	if (!fate_matches(rule, &walk->packet))
		return 0;
	hash = fate_hash(walk->rules->seed, number, &walk->packet);
	if (fate_draw(hash, DRAW_MEETS) >> 1 >= rule->p)
		return 0;
	switch (rule->action) {
	case FAULT_BURST:
		if (!fate_bad(walk->rules->seed, number, rule, &walk->packet))
			return 0;
		verdict->drop = 1;
		break;
	case FAULT_DROP:
		verdict->drop = 1;
		break;
	case FAULT_DUPLICATE:
		argument = rule->count;
		verdict->copies += rule->count;
		if (verdict->copies > FATE_MAX_COPIES)
			verdict->copies = FATE_MAX_COPIES;
		break;
	case FAULT_CORRUPT:
		argument = fate_flip(verdict, hash, rule->count, walk->bits);
		break;
	case FAULT_DELAY:
		argument = fate_delay(verdict, hash, rule->quantiles);
		break;
	case FAULT_REORDER:
		argument = rule->count;
		verdict->behind += rule->count;
		verdict->within += rule->within;
		break;
	}
	fired = &verdict->firings[verdict->fired & (FATE_MAX_RULES - 1)];
	fired->argument = argument;
	fired->rule = number;
	fired->action = rule->action;
	verdict->fired += 1;
	return verdict->drop != 0;
}

/* Decide the fate of a frame of `length` bytes. The caller provides the verdict's memory, because
 * it is too large for a program's stack. */
static __always_inline void fate_judge(struct fault_rules *all, const struct fault_packet *packet,
				       __u32 length, struct fault_verdict *verdict)
{
	struct fate_walk walk = { .rules = all, .verdict = verdict, .packet = *packet };
	int i;

	if (length > FATE_FIRST_BYTE)
		walk.bits = (length - FATE_FIRST_BYTE) * 8;
	verdict->drop = verdict->copies = verdict->behind = verdict->bits = verdict->fired =
		verdict->delayed = 0;
	verdict->within = 0;
	for (i = 0; i <= FATE_MAX_COPIES; i++)
		verdict->delays[i] = 0;
	bpf_loop(all->count, fate_apply, &walk, 0);
}
