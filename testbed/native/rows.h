/* Rows of embeddings become rows of lanes, as they travel: bpf/shared/rows_native_abi.h. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bits.h"
#include "shared/rows_native_abi.h"
#include "shared/token_abi.h"

#define ROW_MOST 512 /* columns */
#define ROWS_AHEAD \
	24	  /* rows that are fetched ahead: they lie in an order that no cache can guess */
#define LARGE 108 /* the exponent of rows from which on sums may pass through infinity */

#define INFINITE 0x7f800000 /* its bits, and the least of what is not finite */

#define BLOCK 64 /* columns whose sums stay in registers: with AVX2, half of those */
#define LINE 16	 /* floats of a cache line */

#define AHEAD 16 /* neighbours whose rows are being fetched */

typedef float floats __attribute__((vector_size(4 * LINE)));
typedef uint32_t uint32s __attribute__((vector_size(4 * LINE)));
typedef int32_t int32s __attribute__((vector_size(4 * LINE)));
typedef int16_t int16s __attribute__((vector_size(2 * LINE)));
typedef uint16_t uint16s __attribute__((vector_size(2 * LINE)));

/* The larger of each two. */
ALWAYS floats larger(floats one, floats other)
{
	uint32s mask = (uint32s)(one > other);

	return (floats)(((uint32s)one & mask) | ((uint32s)other & ~mask));
}

ALWAYS float power_of_two(int exponent)
{
	return float_of((uint32_t)(exponent + 127) << 23);
}

/* The largest magnitude, as the bits of a float: their order is that of integers, with infinity and
 * NaN on top. */
ALWAYS uint32_t row_absmax(const float *x, uint32_t n)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t magnitude = bits_of(x[i]) & 0x7fffffff;

		most = magnitude > most ? magnitude : most;
	}
	return most;
}

ALWAYS bool is_fixed(enum row_lanes lanes)
{
	return lanes == ROW_FIXED16 || lanes == ROW_FIXED32;
}

ALWAYS int lane_bits(enum row_lanes lanes)
{
	return lanes == ROW_FIXED32 ? TOKEN_WIDE_BITS : lanes == ROW_FIXED16 ? TOKEN_BITS : 16;
}

/* The step of a row's integers: the least for which no magnitude exceeds half of their range, from
 * which the limit takes 1. Steps are normal numbers, as is 1 over each of rows in float32. */
ALWAYS float row_step(uint32_t absmax, enum row_lanes lanes)
{
	int exponent = (int)(absmax >> 23), bits = lane_bits(lanes);

	return power_of_two((exponent < bits ? bits : exponent) - 126 - (bits - 1));
}

/* A row becomes integers, multiples of `step`. */
ALWAYS void scale_row(enum row_lanes lanes, const float *x, uint32_t n, char *to, float step)
{
	uint32_t half = 1u << (lane_bits(lanes) - 1);
	float most = (float)half - (lanes == ROW_FIXED32 ? 64 : 1), scale = 1 / step;
	uint32_t *wide = (uint32_t *)to;
	uint16_t *out = (uint16_t *)to;

	for (uint32_t i = 0; i < n; i++) {
		float scaled = x[i] * scale;
		uint32_t lane;

		scaled = scaled < most ? scaled : most;
		scaled = scaled > -most ? scaled : -most;
		lane = (int32_t)rintf(scaled);
		if (lanes == ROW_FIXED32)
			wide[i] = lane + half;
		else
			out[i] = lanes == ROW_FIXED16 ? lane + half : lane;
	}
}

/* Pack one row; `n` is most often a constant. Rounding is to nearest, ties to even. Fixed lanes are
 * multiples of `*step`, which becomes the step that the row needs. Returns the largest magnitude's
 * bits, which tell whether all values are finite; else lanes mean nothing. */
ALWAYS uint32_t pack_row(enum row_lanes lanes, const float *x, uint32_t n, char *to, float *step)
{
	uint32_t most = row_absmax(x, n);

	if (lanes == ROW_FLOAT32) {
		memcpy(to, x, 4 * n);
		*step = 1;
	} else if (lanes == ROW_BFLOAT16) {
		uint16_t *out = (uint16_t *)to;

		for (uint32_t i = 0; i < n; i++) {
			uint32_t bits = bits_of(x[i]);
			/* A magnitude that would round up to infinity is cut off. */
			uint32_t up = (bits & 0x7fffffff) < 0x7f7f8000 ? 0x7fff + (bits >> 16 & 1)
								       : 0;

			out[i] = (bits + up) >> 16;
		}
		*step = 1;
	} else {
		float own = row_step(most, lanes);

		scale_row(lanes, x, n, to, is_fixed(lanes) ? *step : own);
		*step = own;
	}
	return most;
}

ALWAYS void fetch_row(const float *row, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 16)
		__builtin_prefetch(row + i);
	__builtin_prefetch(row + n - 1); /* a row need not begin with a cache line */
}

/* Where the row of a neighbour is. */
ALWAYS const char *row_at(const struct adjacency *a, const char *from, int64_t i)
{
	if (a->offsets)
		return from + 4 * (size_t)a->offsets[i];
	return from ? from + 4 * a->indices[i] * a->dim : (const char *)a->places[a->indices[i]];
}

/* Where the row of a neighbour is that will be needed soon. */
ALWAYS const char *row_ahead(const struct adjacency *a, const char *from, int64_t i)
{
	int64_t last = a->indptr[a->targets] - 1;

	return row_at(a, from, i + AHEAD < last ? i + AHEAD : last);
}

ALWAYS float lane_at(enum row_lanes lanes, const char *row, uint64_t column)
{
	if (lanes == ROW_INT16)
		return ((const int16_t *)row)[column];
	if (lanes == ROW_BFLOAT16)
		return float_of((uint32_t)((const uint16_t *)row)[column] << 16);
	return ((const float *)row)[column];
}

/* A line of lanes. */
ALWAYS floats line_at(enum row_lanes lanes, const char *row, uint64_t column)
{
	uint64_t at = column * (lanes == ROW_FLOAT32 ? 4 : 2);
	uint16s wide;
	int16s narrow;
	floats line;

	if (lanes == ROW_INT16) {
		memcpy(&narrow, row + at, sizeof(narrow));
		return __builtin_convertvector(narrow, floats);
	}
	if (lanes == ROW_BFLOAT16) {
		memcpy(&wide, row + at, sizeof(wide));
		return (floats)(__builtin_convertvector(wide, uint32s) << 16);
	}
	memcpy(&line, row + at, sizeof(line));
	return line;
}

/* What the rows of a neighbour are multiplied by. */
ALWAYS float factor_of(const struct adjacency *a, bool stepped, enum adjacency_sum how, int64_t i)
{
	float factor = stepped ? a->steps[a->indices[i]] : 1;

	return how == ADJACENCY_WEIGHTED ? factor * a->weights[i] : factor;
}

/* All but `a`, `row`, `from`, `column` and `to` are constants: there is one such function for each,
 * without their branches, and with sums in registers. */
ALWAYS void aggregate_lines(const struct adjacency *a, enum row_lanes lanes, bool stepped,
			    enum adjacency_sum how, uint64_t row, const char *from, uint64_t column,
			    float *to, const uint64_t lines)
{
	int64_t end = a->indptr[row + 1];
	uint64_t each = lanes == ROW_FLOAT32 ? 4 : 2, first = column * each;
	uint64_t bytes = lines * LINE * each;
	floats sum[BLOCK / LINE];

#pragma clang loop unroll(full)
	for (uint64_t j = 0; j < lines; j++)
		sum[j] = (floats){} + (how == ADJACENCY_MAX ? -INFINITY : 0.0f);
	for (int64_t i = a->indptr[row]; i < end; i++) {
		const char *next = row_ahead(a, from, i);
		const char *other = row_at(a, from, i);
		float factor = factor_of(a, stepped, how, i);

		for (uint64_t j = 0; j < bytes; j += 64)
			__builtin_prefetch(next + first + j);
		__builtin_prefetch(next + first + bytes - 1); /* see fetch_row */
#pragma clang loop unroll(full)
		for (uint64_t j = 0; j < lines; j++) {
			floats line = line_at(lanes, other, column + j * LINE);

			if (how == ADJACENCY_MAX)
				sum[j] = larger(stepped ? line * factor : line, sum[j]);
			else if (stepped || how == ADJACENCY_WEIGHTED)
				sum[j] += line * factor;
			else
				sum[j] += line;
		}
	}
#pragma clang loop unroll(full)
	for (uint64_t j = 0; j < lines; j++)
		memcpy(to + j * LINE, &sum[j], sizeof(floats));
}

/* The columns that fill no line. */
ALWAYS void aggregate_rest(const struct adjacency *a, enum row_lanes lanes, bool stepped,
			   enum adjacency_sum how, uint64_t row, const char *from, uint64_t first,
			   float *to)
{
	for (uint64_t column = first; column < a->dim; column++) {
		float sum = how == ADJACENCY_MAX ? -INFINITY : 0;

		for (int64_t i = a->indptr[row]; i < a->indptr[row + 1]; i++) {
			float value = lane_at(lanes, row_at(a, from, i), column);
			float factor = factor_of(a, stepped, how, i);

			if (how == ADJACENCY_MAX)
				sum = value * factor > sum ? value * factor : sum;
			else
				sum += value * factor;
		}
		to[column] = sum;
	}
}

/* Sum up one row's neighbours. */
ALWAYS void aggregate_row(const struct adjacency *a, enum row_lanes lanes, bool stepped,
			  enum adjacency_sum how, uint64_t row, const char *from, float *to)
{
	uint64_t first = 0;

	for (; first + BLOCK <= a->dim; first += BLOCK)
		aggregate_lines(a, lanes, stepped, how, row, from, first, to + first, BLOCK / LINE);
	for (; first + LINE <= a->dim; first += LINE)
		aggregate_lines(a, lanes, stepped, how, row, from, first, to + first, 1);
	aggregate_rest(a, lanes, stepped, how, row, from, first, to);
}

/* A sum of finite values that is too large for a float32: in units of a larger power of two. */
static uint32_t pack_large(const struct row_source *s, const float *x, int64_t row, char *to,
			   float *step)
{
	const struct adjacency *a = &s->sums;
	float scaled[ROW_MOST], unit;
	double sum[ROW_MOST] = {};
	double most = 0;
	int exponent;

	for (int64_t k = a->indptr[row]; k < a->indptr[row + 1]; k++) {
		const float *from = x + (size_t)a->indices[k] * s->dim;
		double weight = a->sum == ADJACENCY_WEIGHTED ? a->weights[k] : 1;

		if (row_absmax(from, s->dim) >= INFINITE)
			return INFINITE;
		for (uint32_t i = 0; i < s->dim; i++)
			sum[i] += weight * from[i];
	}
	for (uint32_t i = 0; i < s->dim; i++)
		most = fabs(sum[i]) > most ? fabs(sum[i]) : most;
	frexp(most, &exponent);
	if (exponent <= LARGE)
		exponent = LARGE; /* summands have cancelled out */
	if (exponent > 127 + 15)  /* such a step is no float32 */
		return INFINITE;
	if (is_fixed((enum row_lanes)s->lanes)) {
		for (uint32_t i = 0; i < s->dim; i++)
			scaled[i] = (float)(sum[i] / *step);
		scale_row((enum row_lanes)s->lanes, scaled, s->dim, to, 1);
		*step = power_of_two(exponent - lane_bits((enum row_lanes)s->lanes) + 1);
		return INFINITE - 1;
	}
	unit = power_of_two(exponent - LARGE);
	for (uint32_t i = 0; i < s->dim; i++)
		scaled[i] = (float)(sum[i] / unit);
	pack_row((enum row_lanes)s->lanes, scaled, s->dim, to, step);
	*step *= unit;
	return INFINITE - 1;
}

ALWAYS uint32_t pack_sum(const struct row_source *s, enum row_lanes lanes, const float *x,
			 int64_t row, uint32_t n, char *to, float *step)
{
	const struct adjacency *a = &s->sums;
	const char *from = (const char *)x;
	int64_t first = a->indptr[row], end = a->indptr[row + 1];
	float sum[ROW_MOST];
	uint32_t most;

	if (a->sum != ADJACENCY_WEIGHTED && end - first == 1) {
		fetch_row((const float *)row_ahead(a, from, first), n);
		return pack_row(lanes, x + (size_t)a->indices[first] * n, n, to, step);
	}
	if (a->sum == ADJACENCY_SUM)
		aggregate_row(a, ROW_FLOAT32, false, ADJACENCY_SUM, row, from, sum);
	else if (a->sum == ADJACENCY_WEIGHTED)
		aggregate_row(a, ROW_FLOAT32, false, ADJACENCY_WEIGHTED, row, from, sum);
	else
		aggregate_row(a, ROW_FLOAT32, false, ADJACENCY_MAX, row, from, sum);
	most = pack_row(lanes, sum, n, to, step);
	/* A maximum hides infinity and NaN. */
	for (int64_t k = first; k < end && a->sum == ADJACENCY_MAX; k++)
		most = row_absmax(x + (size_t)a->indices[k] * n, n) >= INFINITE ? INFINITE : most;
	if (most >= INFINITE && a->sum != ADJACENCY_MAX)
		return pack_large(s, x, row, to, step);
	return most;
}

ALWAYS uint32_t pack_rows_of(const struct row_source *s, enum row_lanes lanes, uint32_t n,
			     const float *x, const __s64 *rows, uint64_t count, uint64_t left,
			     char *to, float *steps)
{
	uint32_t most = 0;

	for (uint64_t i = 0; i < count; i++, to += s->row_bytes) {
		uint64_t next = i + ROWS_AHEAD < left ? i + ROWS_AHEAD : i;
		float step = s->step;
		uint32_t absmax;

		if (s->summed) {
			absmax = pack_sum(s, lanes, x, rows[i], n, to, &step);
		} else {
			fetch_row(x + rows[next] * n, n);
			absmax = pack_row(lanes, x + rows[i] * n, n, to, &step);
		}
		most = absmax > most ? absmax : most;
		if (is_fixed(lanes))
			*steps = step > *steps ? step : *steps;
		else if (steps)
			memcpy(steps + i, &step, 4);
	}
	return most;
}

ALWAYS uint32_t pack_lanes(const struct row_source *s, enum row_lanes lanes, const float *x,
			   const __s64 *rows, uint64_t count, uint64_t left, char *to, float *steps)
{
	if (s->dim == 64)
		return pack_rows_of(s, lanes, 64, x, rows, count, left, to, steps);
	if (s->dim == 256)
		return pack_rows_of(s, lanes, 256, x, rows, count, left, to, steps);
	return pack_rows_of(s, lanes, s->dim, x, rows, count, left, to, steps);
}

/* Pack the rows at the first `count` of `left` positions, which are read ahead. `steps` may be
 * NULL, and need not be aligned; with fixed lanes, it is the largest step that any row has needed.
 * Returns the bits of the largest magnitude: see row_absmax. */
static inline uint32_t pack_rows(const struct row_source *s, const float *x, const __s64 *rows,
				 uint64_t count, uint64_t left, char *to, float *steps)
{
	if (s->lanes == ROW_INT16)
		return pack_lanes(s, ROW_INT16, x, rows, count, left, to, steps);
	if (s->lanes == ROW_BFLOAT16)
		return pack_lanes(s, ROW_BFLOAT16, x, rows, count, left, to, steps);
	if (s->lanes == ROW_FIXED16)
		return pack_lanes(s, ROW_FIXED16, x, rows, count, left, to, steps);
	if (s->lanes == ROW_FIXED32)
		return pack_lanes(s, ROW_FIXED32, x, rows, count, left, to, steps);
	return pack_lanes(s, ROW_FLOAT32, x, rows, count, left, to, steps);
}
