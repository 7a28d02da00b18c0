/* Rows that have hardly changed are not sent again: struct token_cache. Part of tokens.c. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "rows.h"

#include "shared/token_native_abi.h"

/* Bytes of a message's marks. */
static uint64_t mark_bytes(const struct tokens *t, uint64_t rows)
{
	return t->cache.marks ? (rows + 63) / 64 * 8 : 0;
}

/* How many rows a message has; UINT64_MAX if its marks name some behind the last. */
static uint64_t count_marks(const char *message, uint64_t rows)
{
	const uint64_t *marks = (const uint64_t *)message;
	uint64_t count = 0;

	for (uint64_t i = 0; i < (rows + 63) / 64; i++)
		count += __builtin_popcountll(marks[i]);
	return rows % 64 && marks[rows / 64] >> rows % 64 ? UINT64_MAX : count;
}

/* Has a row changed by more than the bound, or changed at all, if it is old? NaN has changed. */
ALWAYS bool has_changed(const float *row, const float *last, uint32_t n, float bound, bool old)
{
	uint32_t more = 0, other = 0;

	for (uint32_t i = 0; i < n; i++) {
		more |= !(fabsf(row[i] - last[i]) <= bound);
		other |= row[i] != last[i];
	}
	return more || (old && other);
}

ALWAYS void choose_of(struct token_cache *c, const float *x, uint32_t n)
{
	for (uint64_t k = 0; k < c->rows; k++) {
		const float *row = x + c->positions[k] * n;
		bool changed = has_changed(row, c->last + k * n, n, c->bound,
					   c->age[k] + 1 >= c->staleness);

		if (changed) {
			memcpy(c->last + k * n, row, 4 * n);
			c->larges -= c->large[k];
			c->large[k] = row_absmax(row, n) >= bits_of(power_of_two(LARGE));
			c->larges += c->large[k];
		}
		c->age[k] = changed ? 0 : c->age[k] + 1;
		c->changed[c->positions[k]] = changed;
		c->hits += !changed;
	}
	c->lookups += c->rows;
}

/* Choose the rows that are sent in this exchange. */
static void choose_rows(struct tokens *t, const float *x)
{
	uint32_t n = t->source.dim;

	if (n == 64)
		choose_of(&t->cache, x, 64);
	else if (n == 256)
		choose_of(&t->cache, x, 256);
	else
		choose_of(&t->cache, x, n);
}

/* Mark the rows for a partner that are sent, and list them. */
static void mark_rows(const struct tokens *t, struct token_partner *p, char *message)
{
	uint64_t *marks = (uint64_t *)message;

	memset(marks, 0, mark_bytes(t, p->rows_out));
	p->count = 0;
	for (uint64_t i = 0; i < p->rows_out; i++) {
		uint64_t changed = t->cache.changed[p->rows[i]];

		marks[i / 64] |= changed << i % 64;
		p->marked[p->count] = p->rows[i];
		p->count += changed;
	}
}

/* Keep the rows of a message that is intact. */
static void keep_rows(const struct tokens *t, const struct token_partner *p, const char *message)
{
	const uint64_t *marks = (const uint64_t *)message;
	const char *row = message + mark_bytes(t, p->rows_in), *step;
	uint64_t bytes = t->source.row_bytes;

	step = row + count_marks(message, p->rows_in) * bytes;
	for (uint64_t first = 0; first < p->rows_in; first += 64)
		for (uint64_t left = marks[first / 64]; left; left &= left - 1) {
			uint64_t i = p->first_row + first + __builtin_ctzll(left);

			memcpy(t->cache.store + i * bytes, row, bytes);
			row += bytes;
			if (!t->stepped)
				continue;
			memcpy(t->steps + i, step, 4);
			step += 4;
		}
}
