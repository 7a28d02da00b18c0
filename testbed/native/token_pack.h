/* What an exchange by tokens sends: rows become messages, and messages frames. Part of tokens.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "lanes.h"
#include "rows.h"
#include "token_cache.h"

#include "shared/token_native_abi.h"

static struct token_out *out_at(const struct tokens *t, uint32_t seq, uint32_t frame)
{
	return &t->outs[(seq & 1) * t->config->outs + frame];
}

static char *payload_at(const struct tokens *t, uint32_t seq, uint32_t frame)
{
	return t->payloads + ((uint64_t)(seq & 1) * t->config->outs + frame) * t->config->room;
}

static bool is_common(const struct tokens *t)
{
	return is_fixed((enum row_lanes)t->source.lanes);
}

// Bytes of a message's steps.
static uint64_t step_bytes(const struct tokens *t, uint64_t rows)
{
	if (is_common(t))
		return rows ? 4 : 0;
	return t->stepped ? 4 * rows : 0;
}

// Bytes of a message with `count` of a partner's rows, in whole words.
static uint64_t message_bytes(const struct tokens *t, uint64_t rows, uint64_t count)
{
	if (t->meeting)
		return 0;
	return mark_bytes(t, rows) +
	       (count * t->source.row_bytes + step_bytes(t, count) + 7) / 8 * 8;
}

// Frames of a message.
static uint32_t frames_of(const struct tokens *t, uint64_t bytes)
{
	uint64_t room = t->config->room;

	return bytes ? (bytes + room - 1) / room : 1;
}

// Bytes of data in frame `number` of a message.
static uint32_t bytes_of(const struct tokens *t, uint64_t bytes, uint32_t number)
{
	uint64_t left = bytes - (uint64_t)number * t->config->room;

	return left < t->config->room ? left : t->config->room;
}

// The order in which frames of this exchange are sent.
static __u64 *order_of(const struct tokens *t)
{
	return t->order + (t->seq & 1) * t->config->outs;
}

// Pack what frame `number` of a message holds.
static void pack_data(struct tokens *t, struct token_partner *p, const float *x, uint32_t number,
		      struct token_out *out)
{
	uint32_t first = t->config->pairs[p->rank].out;
	uint64_t room = t->config->room, row_bytes = t->source.row_bytes;
	uint64_t end = (uint64_t)number * room + out->bytes, begin = mark_bytes(t, p->rows_out);
	uint64_t rows = end > begin ? (end - begin + row_bytes - 1) / row_bytes : 0;
	char *message = payload_at(t, t->seq, first), *lanes = message + begin;
	char *steps = lanes + p->count * row_bytes, *rest = steps + step_bytes(t, p->count);

	rows = rows < p->count ? rows : p->count;
	if (rows > p->packed) {
		const __s64 *positions = t->cache.marks ? p->marked : p->rows;
		float *to = is_common(t) ? &p->needed
			    : t->stepped ? (float *)(steps + 4 * p->packed)
					 : NULL;
		uint32_t absmax;

		t->source.step = p->step;
		absmax = pack_rows(&t->source, x, positions + p->packed, rows - p->packed,
				   p->count - p->packed, lanes + p->packed * row_bytes, to);
		if (absmax >= INFINITE)
			p->flags_out |= PINCH_FLAG_NONFINITE;
		if (absmax >= bits_of(power_of_two(LARGE)))
			p->flags_out |= PINCH_FLAG_LARGE;
		p->packed = rows;
	}
	if (is_common(t) && out->bytes && message + end >= rest) // in the last frame
		memcpy(steps, &p->step, 4);
	if (out->bytes && message + end > rest) // in the last frame: what makes a whole word of it
		memset(rest, 0, message + end - rest);
	out->check = sums_of((const uint64_t *)(message + number * room), out->bytes / 8).weighed;
	out->payload = (t->seq & 1) * t->config->outs + first + number;
}

// Pack frame `number` of a message.
static void pack_frame(struct tokens *t, struct token_partner *p, const float *x, uint32_t number,
		       bool returns)
{
	struct token_out *out = out_at(t, t->seq, t->config->pairs[p->rank].out + number);
	const struct token_partner *like = &t->partners[p->like];
	const struct token_out *same = out_at(t, t->seq, t->config->pairs[like->rank].out + number);

	out->bytes = bytes_of(t, p->bytes, number);
	if (like == p && !p->final)
		pack_data(t, p, x, number, out);
	p->flags_out = like->flags_out; // whose frame comes before
	out->check = same->check;
	out->payload = same->payload;
	out->flags = p->flags_out | (returns ? PINCH_FLAG_RETURN : 0);
	p->tokens += returns;
	out->token = returns ? p->tokens : 0;
	out->number = number;
	out->frames = frames_of(t, p->bytes);
	out->receiver = p->rank;
	t->flags |= p->flags_out;
}

static void begin_packing(const struct tokens *t, struct token_partner *p)
{
	p->packed = 0;
	p->flags_out = PINCH_FLAG_TOKEN | (t->cache.larges ? PINCH_FLAG_LARGE : 0);
	p->needed = 0;
	p->final = false;
}

// Find what goes to each partner.
static void begin_messages(struct tokens *t, const float *x)
{
	if (x && t->cache.marks)
		choose_rows(t, x);
	for (uint32_t i = 0; i < t->config->partners; i++) {
		struct token_partner *p = &t->partners[i], *like = &t->partners[p->like];

		if (!t->cache.marks || !x)
			p->count = p->rows_out;
		else if (like == p)
			mark_rows(t, p, payload_at(t, t->seq, t->config->pairs[p->rank].out));
		else
			p->count = like->count;
		p->bytes = message_bytes(t, p->rows_out, p->count);
		t->cache.saved += p->rows_out - p->count;
	}
}

// Put frames in order: those for different partners alternate, so that each has something to do,
// and each one's first comes before any other. Returns how many there are.
static uint32_t put_in_order(struct tokens *t)
{
	__u64 *order = order_of(t);
	uint32_t total = 0, before;
	uint32_t number = 0;

	do {
		before = total;
		for (uint32_t i = 0; i < t->config->partners; i++)
			if (number < frames_of(t, t->partners[i].bytes))
				order[total++] = t->config->pairs[t->partners[i].rank].out + number;
		number++;
	} while (total > before);
	return total;
}

// Pack all frames, in order; without `x`, one for each partner. Returns how many there are.
//
// A step that all rows of a message have in common is taken to be what it was the last time. Where
// it is not, the message is packed again, and nothing may be asked for before: half of it would
// have another step.
static uint32_t pack(struct tokens *t, const float *x)
{
	const __u64 *order = order_of(t);
	uint32_t total;
	bool again = true;

	begin_messages(t, x);
	total = put_in_order(t);
	for (uint32_t i = 0; i < t->config->partners; i++)
		begin_packing(t, &t->partners[i]);
	while (again) {
		again = false;
		for (uint32_t i = 0; i < t->config->partners; i++)
			t->partners[i].tokens = 0;
		for (uint32_t n = 0; n < total; n++) {
			uint32_t frame = order[n];
			struct token_partner *p = &t->partners[t->partner_of[frame]];

			pack_frame(t, p, x, frame - t->config->pairs[p->rank].out,
				   n % t->config->stride == t->config->stride - 1);
		}
		for (uint32_t i = 0; i < t->config->partners; i++) {
			struct token_partner *p = &t->partners[i];
			float needed = p->needed;

			p->final = true;
			if (!is_common(t) || !needed || needed == p->step)
				continue;
			begin_packing(t, p);
			p->step = needed;
			again = true;
		}
	}
	for (uint32_t n = 0; n < total; n++)
		__atomic_store_n(&out_at(t, t->seq, order[n])->seq, t->seq, __ATOMIC_RELEASE);
	return total;
}
