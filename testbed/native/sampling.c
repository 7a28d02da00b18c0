// Sampled neighbourhoods: testbed/gnn/sampling.py.

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define GOLDEN 0x9E3779B97F4A7C15 // as in testbed/gnn/mix.py
#define AHEAD 8			  // vertices whose rows are being fetched
#define MOST 64			  // neighbours that are drawn of a vertex

static inline uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
	x = (x ^ x >> 27) * 0x94D049BB133111EB;
	return x ^ x >> 31;
}

// Draw `count` of `degree` places, all different, by Floyd's algorithm (Bentley and Floyd, CACM
// 30(9), 1987): the draw in a slot is a hash of `state`, which is the vertex's, and of the slot.
static void draw(uint64_t state, uint64_t degree, uint32_t count, uint64_t *places)
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

uint64_t sampling_draw(const int64_t *indptr, const int32_t *indices, const int32_t *rows,
		       const int32_t *names, uint64_t n, uint32_t fanout, uint64_t key,
		       int64_t *ends, int32_t *out);

// Take up to `fanout` neighbours of each vertex, drawn uniformly and without replacement, or all
// (0). `rows` are vertices' rows in the adjacency, `names` what decides about their draws. `ends`
// is where those of each end in `out`, which has room for all. Returns how many there are.
uint64_t sampling_draw(const int64_t *indptr, const int32_t *indices, const int32_t *rows,
		       const int32_t *names, uint64_t n, uint32_t fanout, uint64_t key,
		       int64_t *ends, int32_t *out)
{
	uint64_t total = 0, places[MOST];

	for (uint64_t i = 0; i < n; i++) {
		const int32_t *from = indices + indptr[rows[i]];
		uint64_t degree = indptr[rows[i] + 1] - indptr[rows[i]];

		if (i + 2 * AHEAD < n)
			__builtin_prefetch(indptr + rows[i + 2 * AHEAD]);
		if (i + AHEAD < n)
			__builtin_prefetch(indices + indptr[rows[i + AHEAD]]);
		if (!fanout || degree <= fanout) {
			memcpy(out + total, from, 4 * degree);
			total += degree;
		} else {
			draw(mix(key + names[i] * GOLDEN), degree, fanout, places);
			for (uint32_t slot = 0; slot < fanout; slot++)
				out[total++] = from[places[slot]];
		}
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

uint64_t sampling_select(const int64_t *indptr, const int32_t *values, const int32_t *rows,
			 uint64_t n, int64_t *ends, int32_t *out);

// Take some rows of an adjacency. Returns how many values they have.
uint64_t sampling_select(const int64_t *indptr, const int32_t *values, const int32_t *rows,
			 uint64_t n, int64_t *ends, int32_t *out)
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
