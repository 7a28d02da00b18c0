// Sampled neighbourhoods: testbed/gnn/sampling.py.

#include <stdint.h>
#include <string.h>

#include "draw.h"

uint64_t sampling_draw(const __s64 *indptr, const int32_t *indices, const int32_t *rows,
		       const int32_t *names, uint64_t n, uint32_t fanout, uint64_t key, __s64 *ends,
		       int32_t *out);

// Take up to `fanout` neighbours of each vertex, drawn uniformly and without replacement, or all
// (0). `rows` are vertices' rows in the adjacency, `names` what decides about their draws. `ends`
// is where those of each end in `out`, which has room for all. Returns how many there are.
uint64_t sampling_draw(const __s64 *indptr, const int32_t *indices, const int32_t *rows,
		       const int32_t *names, uint64_t n, uint32_t fanout, uint64_t key, __s64 *ends,
		       int32_t *out)
{
	uint64_t total = 0;

	for (uint64_t i = 0; i < n; i++) {
		fetch_neighbours(indptr, indices, rows, i, n);
		total += draw_one(indptr, indices, rows[i], names[i], fanout, key, out + total);
		ends[i] = total;
	}
	return total;
}

uint64_t sampling_number(int32_t *places, const int32_t *first, uint64_t known,
			 const int32_t *vertices, uint64_t n, int32_t *distinct, int32_t *numbers);

// Number vertices: the `known` in `first`, which are distinct, and then others in the order in
// which they first occur. `places` has a zero for each vertex of the graph, and has so again
// afterwards. Returns how many there are.
uint64_t sampling_number(int32_t *places, const int32_t *first, uint64_t known,
			 const int32_t *vertices, uint64_t n, int32_t *distinct, int32_t *numbers)
{
	uint64_t count = known;

	memcpy(distinct, first, 4 * known);
	for (uint64_t i = 0; i < known; i++)
		places[first[i]] = i + 1;
	for (uint64_t i = 0; i < n; i++) {
		int32_t *place = places + vertices[i];

		if (i + AHEAD < n)
			__builtin_prefetch(places + vertices[i + AHEAD], 1);
		if (!*place) {
			distinct[count++] = vertices[i];
			*place = count;
		}
		numbers[i] = *place - 1;
	}
	for (uint64_t i = 0; i < count; i++)
		places[distinct[i]] = 0;
	return count;
}

uint64_t sampling_select(const __s64 *indptr, const int32_t *values, const int32_t *rows,
			 uint64_t n, __s64 *ends, int32_t *out);

// Take some rows of an adjacency. Returns how many values they have.
uint64_t sampling_select(const __s64 *indptr, const int32_t *values, const int32_t *rows,
			 uint64_t n, __s64 *ends, int32_t *out)
{
	uint64_t total = 0;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t count = indptr[rows[i] + 1] - indptr[rows[i]];

		if (i + AHEAD < n)
			__builtin_prefetch(values + indptr[rows[i + AHEAD]]);
		memcpy(out + total, values + indptr[rows[i]], 4 * count);
		total += count;
		ends[i] = total;
	}
	return total;
}

void sampling_gather(const uint64_t *places, const int32_t *numbers, uint64_t n, uint64_t row_bytes,
		     char *to);

// Copy rows that are anywhere: `places` are their addresses, by number.
void sampling_gather(const uint64_t *places, const int32_t *numbers, uint64_t n, uint64_t row_bytes,
		     char *to)
{
	for (uint64_t i = 0; i < n; i++) {
		if (i + AHEAD < n)
			for (uint64_t at = 0; at < row_bytes; at += 64)
				__builtin_prefetch((const char *)places[numbers[i + AHEAD]] + at);
		memcpy(to + i * row_bytes, (const char *)places[numbers[i]], row_bytes);
	}
}
