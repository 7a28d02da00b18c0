// Aggregation of rows over an adjacency in CSR: testbed/exchange/adjacency.py.
//
// Sums of a row stay in registers while its neighbours pass by: a block of columns at a time, whose
// width the compiler knows.

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/adjacency_native_abi.h"

#define BLOCK 64 // columns: with AVX2, half of the registers
#define LINE 16	 // floats of a cache line
#define AHEAD \
	8 // neighbours whose rows are being fetched: they lie in an order that no cache can guess

static inline __attribute__((always_inline)) const float *row_at(const struct adjacency *a,
								 const float *from, int64_t i)
{
	return from ? from + a->indices[i] * a->dim : a->places[a->indices[i]];
}

// `how` and most often `width` are constants: there is one such function for each, without their
// branches.
static inline __attribute__((always_inline)) void
aggregate_block(const struct adjacency *a, enum adjacency_sum how, uint64_t row, const float *from,
		uint64_t column, float *to, uint64_t width)
{
	int64_t end = a->indptr[row + 1], last = a->indptr[a->rows] - 1;
	float sum[BLOCK];

	for (uint64_t j = 0; j < width; j++)
		sum[j] = how == ADJACENCY_MAX ? -INFINITY : 0;
	for (int64_t i = a->indptr[row]; i < end; i++) {
		const float *next = row_at(a, from, i + AHEAD < last ? i + AHEAD : last) + column;
		const float *other = row_at(a, from, i) + column;
		float weight = how == ADJACENCY_WEIGHTED ? a->weights[i] : 1;

		for (uint64_t j = 0; j < width; j += LINE)
			__builtin_prefetch(next + j);
		for (uint64_t j = 0; j < width; j++) {
			if (how == ADJACENCY_MAX)
				sum[j] = other[j] > sum[j] ? other[j] : sum[j];
			else
				sum[j] += how == ADJACENCY_WEIGHTED ? weight * other[j] : other[j];
		}
	}
	for (uint64_t j = 0; j < width; j++)
		to[j] = sum[j];
}

static inline __attribute__((always_inline)) void
aggregate_all(const struct adjacency *a, enum adjacency_sum how, const float *from, float *to)
{
	for (uint64_t row = 0; row < a->rows; row++, to += a->dim) {
		uint64_t first = 0;

		for (; first + BLOCK <= a->dim; first += BLOCK)
			aggregate_block(a, how, row, from, first, to + first, BLOCK);
		for (; first + LINE <= a->dim; first += LINE)
			aggregate_block(a, how, row, from, first, to + first, LINE);
		if (first < a->dim)
			aggregate_block(a, how, row, from, first, to + first, a->dim - first);
	}
}

static inline __attribute__((always_inline)) void
aggregate_how(const struct adjacency *a, uint32_t how, const float *from, float *to)
{
	if (how == ADJACENCY_SUM)
		aggregate_all(a, ADJACENCY_SUM, from, to);
	else if (how == ADJACENCY_WEIGHTED)
		aggregate_all(a, ADJACENCY_WEIGHTED, from, to);
	else
		aggregate_all(a, ADJACENCY_MAX, from, to);
}

void aggregate(const struct adjacency *a, uint32_t how, const float *from, float *to);

// Aggregate rows of `from` into `to`, dense matrices of `dim` columns. With `from` NULL, rows are
// at `places`.
void aggregate(const struct adjacency *a, uint32_t how, const float *from, float *to)
{
	if (!from)
		aggregate_how(a, how, NULL, to);
	else
		aggregate_how(a, how, from, to);
}
