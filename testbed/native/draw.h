/* What a vertex draws of its neighbours (testbed/gnn/sampling.py), and rows that are copied. */
#pragma once

#include <linux/types.h>
#include <stdint.h>
#include <string.h>

#include "shared/parts_native_abi.h"

#define GOLDEN 0x9E3779B97F4A7C15 /* as in testbed/gnn/mix.py */
#define AHEAD 8			  /* vertices whose rows are being fetched */

static inline uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
	x = (x ^ x >> 27) * 0x94D049BB133111EB;
	return x ^ x >> 31;
}

/* Draw `count` of `degree` places, all different, by Floyd's algorithm (Bentley and Floyd, CACM
 * 30(9), 1987): the draw in a slot is a hash of `state`, which is the vertex's, and of the slot. */
static inline void draw(uint64_t state, uint64_t degree, uint32_t count, uint64_t *places)
{
	for (uint32_t slot = 0; slot < count; slot++) {
		uint64_t last = degree - count + slot;
		uint64_t found = (unsigned __int128)mix(state + (slot + 1) * GOLDEN) * (last + 1) >>
				 64;

		for (uint32_t i = 0; i < slot; i++)
			if (places[i] == found) {
				found = last;
				break;
			}
		places[slot] = found;
	}
}

/* Take up to `fanout` neighbours of the vertex in a row, or all (0). `name` is what decides about
 * its draws. Returns how many there are. */
static inline uint64_t draw_one(const __s64 *indptr, const int32_t *indices, int32_t row,
				int32_t name, uint32_t fanout, uint64_t key, int32_t *out)
{
	const int32_t *from = indices + indptr[row];
	uint64_t degree = indptr[row + 1] - indptr[row], places[PARTS_FANOUT];

	if (!fanout || degree <= fanout) {
		memcpy(out, from, 4 * degree);
		return degree;
	}
	draw(mix(key + name * GOLDEN), degree, fanout, places);
	for (uint32_t slot = 0; slot < fanout; slot++)
		out[slot] = from[places[slot]];
	return fanout;
}

/* Fetch what vertices will need that come after the i-th. */
static inline void fetch_neighbours(const __s64 *indptr, const int32_t *indices,
				    const int32_t *rows, uint64_t i, uint64_t n)
{
	if (i + 2 * AHEAD < n)
		__builtin_prefetch(indptr + rows[i + 2 * AHEAD]);
	if (i + AHEAD < n)
		__builtin_prefetch(indices + indptr[rows[i + AHEAD]]);
}

static inline void copy_rows(const char *from, uint64_t row_bytes, const int32_t *rows, uint64_t n,
			     char *to)
{
	for (uint64_t i = 0; i < n; i++) {
		if (i + AHEAD < n)
			for (uint64_t at = 0; at < row_bytes; at += 64)
				__builtin_prefetch(from + rows[i + AHEAD] * row_bytes + at);
		memcpy(to + i * row_bytes, from + rows[i] * row_bytes, row_bytes);
	}
}
