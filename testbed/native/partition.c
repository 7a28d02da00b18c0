// Loops over edges and vertices of the streaming partitioner: testbed/gnn/streaming/loops.py.
//
// Several threads call these functions at once. What they share they change by atomic operations
// whose order does not matter, so that results do not depend on the number of threads.

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/partition_native_abi.h"

uint64_t partition_assign(const struct partition *p, uint32_t how, const uint32_t *src,
			  const uint32_t *dst, uint64_t n, uint16_t *owners, uint64_t *counts);
void partition_scatter(uint32_t parts, const uint32_t *src, const uint32_t *dst,
		       const uint16_t *owners, uint64_t n, const uint64_t *counts, uint64_t *places,
		       uint32_t *to_src, uint32_t *to_dst);
void partition_degrees(const uint32_t *ids, uint64_t n, uint32_t *degrees);
void partition_group(const uint32_t *src, const uint32_t *dst, uint64_t n, uint64_t first,
		     uint64_t rows, int64_t *indptr, uint32_t *indices);
void partition_fennel(const struct fennel *f);
void partition_hdrf(const struct hdrf *h, const uint32_t *src, const uint32_t *dst, uint64_t n,
		    uint16_t *owners);
void partition_adopt(uint16_t *masters, const uint32_t *src, const uint32_t *dst, uint64_t n,
		     const uint16_t *owners);
void rmat_edges(const struct rmat *r, uint64_t first, uint64_t step, uint64_t n, uint32_t *src,
		uint32_t *dst);

// Most edges end where a part has been before: a read is cheaper than an atomic write.
static inline __attribute__((always_inline)) void hold(const struct partition *p, uint32_t vertex,
						       uint32_t part)
{
	__u64 *word = p->held + (uint64_t)vertex * p->words + part / 64;
	uint64_t bit = 1ULL << part % 64;

	if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & bit))
		__atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
}

// `how` is a constant: there is one such function for each, without their branches.
static inline __attribute__((always_inline)) uint64_t assign(const struct partition *p,
							     enum partition_owner how,
							     const uint32_t *src,
							     const uint32_t *dst, uint64_t n,
							     uint16_t *owners, uint64_t *counts)
{
	uint64_t cut = 0;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t s = src[i], d = dst[i], owner;
		uint32_t from = p->masters[s], to = p->masters[d];

		switch (how) {
		case PARTITION_GIVEN:
			owner = owners[i];
			break;
		case PARTITION_SOURCE:
			owner = from;
			break;
		case PARTITION_TARGET:
			owner = to;
			break;
		case PARTITION_HYBRID_OUT:
			owner = p->degrees[s] > p->hub ? to : from;
			break;
		case PARTITION_HYBRID_IN:
			owner = p->degrees[d] > p->hub ? from : to;
			break;
		case PARTITION_LOWER:
			owner = p->degrees[s] <= p->degrees[d] ? from : to;
			break;
		default:
			owner = from / p->columns * p->columns + to % p->columns;
		}
		owners[i] = owner;
		counts[owner]++;
		cut += from != to;
		if (owner != from)
			hold(p, s, owner);
		if (owner != to)
			hold(p, d, owner);
	}
	return cut;
}

// Choose the owners of edges, count those of each part, and note the mirrors that parts need.
// Returns how many have ends with different masters.
uint64_t partition_assign(const struct partition *p, uint32_t how, const uint32_t *src,
			  const uint32_t *dst, uint64_t n, uint16_t *owners, uint64_t *counts)
{
	switch (how) {
	case PARTITION_GIVEN:
		return assign(p, PARTITION_GIVEN, src, dst, n, owners, counts);
	case PARTITION_SOURCE:
		return assign(p, PARTITION_SOURCE, src, dst, n, owners, counts);
	case PARTITION_TARGET:
		return assign(p, PARTITION_TARGET, src, dst, n, owners, counts);
	case PARTITION_HYBRID_OUT:
		return assign(p, PARTITION_HYBRID_OUT, src, dst, n, owners, counts);
	case PARTITION_HYBRID_IN:
		return assign(p, PARTITION_HYBRID_IN, src, dst, n, owners, counts);
	case PARTITION_LOWER:
		return assign(p, PARTITION_LOWER, src, dst, n, owners, counts);
	default:
		return assign(p, PARTITION_CARTESIAN, src, dst, n, owners, counts);
	}
}

static inline void adopt(uint16_t *masters, uint32_t vertex, uint32_t part)
{
	if (masters[vertex] == PARTITION_UNASSIGNED)
		masters[vertex] = part;
}

// The master of a vertex without one is the owner of its first edge.
void partition_adopt(uint16_t *masters, const uint32_t *src, const uint32_t *dst, uint64_t n,
		     const uint16_t *owners)
{
	for (uint64_t i = 0; i < n; i++) {
		adopt(masters, src[i], owners[i]);
		adopt(masters, dst[i], owners[i]);
	}
}

static inline double worth(const struct hdrf *h, uint32_t vertex, uint32_t part, double value)
{
	uint64_t word = h->held[(uint64_t)vertex * h->words + part / 64];

	return h->masters[vertex] == part || word >> part % 64 & 1 ? value : 0;
}

// Choose the owners of the next edges of the stream: the part with the highest score, among equals
// the first. A part that has an end of the edge already is worth more if that is the end with the
// lower degree, so that hubs are replicated first.
void partition_hdrf(const struct hdrf *h, const uint32_t *src, const uint32_t *dst, uint64_t n,
		    uint16_t *owners)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t s = src[i], d = dst[i], best = 0;
		uint64_t least = h->sizes[0], most = h->sizes[0];
		double share, high = -1;

		h->degrees[s]++;
		h->degrees[d]++;
		share = (double)h->degrees[s] / ((double)h->degrees[s] + (double)h->degrees[d]);
		for (uint32_t part = 1; part < h->parts; part++) {
			least = h->sizes[part] < least ? h->sizes[part] : least;
			most = h->sizes[part] > most ? h->sizes[part] : most;
		}
		for (uint32_t part = 0; part < h->parts; part++) {
			double score = (double)(most - h->sizes[part]) / (double)(1 + most - least);

			score += worth(h, s, part, 2 - share);
			score += worth(h, d, part, 1 + share);
			if (score > high) {
				high = score;
				best = part;
			}
		}
		owners[i] = best;
		h->sizes[best]++;
		for (int end = 0; end < 2; end++) {
			uint32_t vertex = end ? d : s;

			adopt(h->masters, vertex, best);
			if (h->masters[vertex] != best)
				h->held[(uint64_t)vertex * h->words + best / 64] |= 1ULL
										    << best % 64;
		}
	}
}

// Order edges by owner, stably; `places` has room for one number per part.
void partition_scatter(uint32_t parts, const uint32_t *src, const uint32_t *dst,
		       const uint16_t *owners, uint64_t n, const uint64_t *counts, uint64_t *places,
		       uint32_t *to_src, uint32_t *to_dst)
{
	uint64_t sum = 0;

	for (uint32_t part = 0; part < parts; part++) {
		places[part] = sum;
		sum += counts[part];
	}
	for (uint64_t i = 0; i < n; i++) {
		uint64_t place = places[owners[i]]++;

		to_src[place] = src[i];
		to_dst[place] = dst[i];
	}
}

// Count how often each vertex occurs.
void partition_degrees(const uint32_t *ids, uint64_t n, uint32_t *degrees)
{
	for (uint64_t i = 0; i < n; i++)
		__atomic_fetch_add(&degrees[ids[i]], 1, __ATOMIC_RELAXED);
}

// Group edges by source, stably: a counting sort into CSR. `indptr` has rows + 2 zeros; the first
// rows + 1 of them are the result.
void partition_group(const uint32_t *src, const uint32_t *dst, uint64_t n, uint64_t first,
		     uint64_t rows, int64_t *indptr, uint32_t *indices)
{
	for (uint64_t i = 0; i < n; i++)
		indptr[src[i] - first + 2]++;
	for (uint64_t row = 2; row < rows + 2; row++)
		indptr[row] += indptr[row - 1];
	for (uint64_t i = 0; i < n; i++)
		indices[indptr[src[i] - first + 1]++] = dst[i];
}

static void set_penalty(const struct fennel *f, uint32_t part)
{
	// Statements of their own, which no compiler contracts: the reference model rounds so.
	double edges = f->per_edge * f->edges[part];
	double load = (f->nodes[part] + edges) / 2;

	f->penalties[part] = f->weight * sqrt(load);
}

// Choose the masters of vertices, in order. Masters that other threads assign in this round are not
// looked at: they may be there or not.
void partition_fennel(const struct fennel *f)
{
	for (uint32_t part = 0; part < f->parts; part++)
		set_penalty(f, part);
	for (uint64_t vertex = f->first; vertex < f->last; vertex++) {
		int64_t begin = f->indptr[vertex - f->first],
			end = f->indptr[vertex - f->first + 1];
		uint32_t best = 0;

		if ((uint64_t)(end - begin) > f->hub) {
			while (best + 1 < f->parts && f->bounds[best + 1] <= vertex)
				best++;
		} else {
			double most = -INFINITY;

			for (int64_t i = begin; i < end; i++) {
				uint64_t other = f->indices[i];
				uint16_t part = f->masters[other];
				int elsewhere = other >= f->round_first && other < f->round_last &&
						(other < f->first || other >= f->last);

				if (!elsewhere && part != PARTITION_UNASSIGNED)
					f->neighbours[part]++;
			}
			for (uint32_t part = 0; part < f->parts; part++) {
				double score = f->neighbours[part] - f->penalties[part];

				if (score > most) {
					most = score;
					best = part;
				}
				f->neighbours[part] = 0;
			}
		}
		f->masters[vertex] = best;
		f->nodes[best] += 1;
		f->edges[best] += end - begin;
		set_penalty(f, best);
	}
}

static inline uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
	x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
	return x ^ x >> 31;
}

// A permutation of 0..2^scale - 1: odd multipliers and shifts to the right can be undone.
static inline uint32_t scramble(const struct rmat *r, uint32_t x)
{
	uint32_t mask = (1ULL << r->scale) - 1, half = (r->scale + 1) / 2;

	x = (x * 0x9E3779B1u + (uint32_t)mix(r->seed)) & mask;
	x ^= x >> half;
	x = x * 0x85EBCA6Bu & mask;
	x ^= x >> half;
	return x * 0xC2B2AE35u & mask;
}

static inline uint32_t mix32(uint32_t x)
{
	x = (x ^ x >> 16) * 0x85EBCA6Bu;
	x = (x ^ x >> 13) * 0xC2B2AE35u;
	return x ^ x >> 16;
}

#define DRAWN 256 // edges at a time, so that the loops over them become vectors

// Draw edges first, first + step, ...: each from a hash of its number, 16 bits a level.
void rmat_edges(const struct rmat *r, uint64_t first, uint64_t step, uint64_t n, uint32_t *src,
		uint32_t *dst)
{
	uint32_t low[DRAWN], high[DRAWN], draw[DRAWN], row[DRAWN], column[DRAWN];

	for (uint64_t begin = 0; begin < n; begin += DRAWN) {
		uint32_t count = n - begin < DRAWN ? n - begin : DRAWN;

		for (uint32_t i = 0; i < DRAWN; i++) {
			uint64_t number = first + (begin + i) * step;
			uint64_t state = mix(r->seed + (number + 1) * 0x9E3779B97F4A7C15ULL);

			low[i] = state;
			high[i] = state >> 32;
			row[i] = column[i] = 0;
		}
		for (uint32_t level = 0; level < r->scale; level++) {
			for (uint32_t i = 0; i < DRAWN; i++) {
				uint32_t x = level & 1 ? draw[i] >> 16
						       : mix32(low[i] + mix32(high[i] + level));

				draw[i] = x;
				x &= 0xffff;
				row[i] = row[i] << 1 | (x >= r->ab);
				column[i] = column[i] << 1 |
					    (((x >= r->a) & (x < r->ab)) | (x >= r->abc));
			}
		}
		for (uint32_t i = 0; i < count; i++) {
			src[begin + i] = scramble(r, row[i]);
			dst[begin + i] = scramble(r, column[i]);
		}
	}
}
