/* Quantize, sum and dequantize in one pass over cache-sized pieces. Reference model:
 * testbed/protocol/lanes.py, which explains the numbers.
 */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shared/ring_native_abi.h"
#include "shared/weights_abi.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* The largest magnitude as the bits of a float, whose integer order is their float order, with
 * infinity and NaN on top. */
static inline uint32_t lanes_absmax(const float *x, size_t n)
{
	const uint32_t *bits = (const uint32_t *)x;
	uint32_t most = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t magnitude = bits[i] & 0x7fffffff;

		most = magnitude > most ? magnitude : most;
	}
	return most;
}

/* The least exponent at which a magnitude, given as the bits of a finite float, is not clamped. */
static inline int lanes_exponent_for(const struct lanes *lanes, uint32_t magnitude)
{
	int exponent, least = lanes->fraction_bits - 126;
	float value;

	memcpy(&value, &magnitude, 4);
	if (!magnitude)
		return least;
	frexpf(value, &exponent);
	exponent = exponent > least ? exponent : least;
	return rint(ldexp(value, lanes->fraction_bits - exponent)) <= lanes->limit ? exponent
										   : exponent + 1;
}

/* Index of the first infinity or NaN, or n. */
static inline size_t lanes_find_nonfinite(const float *x, size_t n)
{
	const uint32_t *bits = (const uint32_t *)x;

	for (size_t i = 0; i < n; i++)
		if ((bits[i] & 0x7fffffff) >= 0x7f800000)
			return i;
	return n;
}

/* Rounding is to nearest, ties to even. Values beyond the limit are clamped, and NaN becomes the
 * limit, so that no lane can carry: the magnitude tells the caller about both.
 */
#define QUANTIZE(name, lane)                                                               \
	static inline uint32_t name(const float *restrict x, size_t n, lane *restrict out, \
				    float scale, float limit, int32_t bias)                \
	{                                                                                  \
		uint32_t most = 0;                                                         \
                                                                                           \
		for (size_t i = 0; i < n; i++) {                                           \
			float scaled = x[i] * scale;                                       \
			uint32_t bits;                                                     \
                                                                                           \
			memcpy(&bits, &x[i], 4);                                           \
			bits &= 0x7fffffff;                                                \
			most = bits > most ? bits : most;                                  \
			scaled = scaled < limit ? scaled : limit;                          \
			scaled = scaled > -limit ? scaled : -limit;                        \
			out[i] = (lane)((int32_t)rintf(scaled) + bias);                    \
		}                                                                          \
		return most;                                                               \
	}

QUANTIZE(quantize16, uint16_t)
QUANTIZE(quantize32, uint32_t)

/* Sums of a payload's words: plain, and each half word times the weight of its position, modulo
 * 2^64. testbed/protocol/check_weights.py says which errors the weights detect. A plain add sums
 * both over ranks like the lanes, because lanes never carry from one half to the next.
 */
struct sums {
	uint64_t plain, weighed;
};

/* Add a part of at most WEIGHTS / 2 words, all of whose weights are multiplied by `factor`. */
static inline void sums_add(struct sums *sums, const uint64_t *words, size_t n, uint64_t factor)
{
	const uint64_t *pairs = (const uint64_t *)weights;
	uint64_t plain = 0, weighed = 0;

	for (size_t i = 0; i < n; i++) {
		plain += words[i];
		weighed += (words[i] & 0xffffffff) * (pairs[i] & 0xffffffff) +
			   (words[i] >> 32) * (pairs[i] >> 32);
	}
	sums->plain += plain;
	sums->weighed += factor * weighed;
}

/* What the weights of the part from word `at` on are multiplied by. */
static inline uint64_t factor_at(size_t at)
{
	return at ? weights[at / (WEIGHTS / 2)] : 1;
}

static inline struct sums sums_of(const uint64_t *words, size_t n)
{
	struct sums sums = {};

	for (size_t at = 0; at < n; at += WEIGHTS / 2)
		sums_add(&sums, words + at, MIN(n - at, WEIGHTS / 2), factor_at(at));
	return sums;
}

/* Write a chunk's check, its last word, and its checksum for the programs. A plain sum of words,
 * which is all that programs can afford, misses errors that cancel out and words that have changed
 * places. The check detects them, and is verified where the results are read.
 */
static inline void write_check(char *chunk, size_t bytes, struct sums sums,
			       struct ring_chunk *record)
{
	((uint64_t *)chunk)[bytes / 8 - 1] = sums.weighed;
	record->input_sum = sums.plain + sums.weighed;
}

static inline void lanes_seal(char *chunk, size_t bytes, struct ring_chunk *record)
{
	write_check(chunk, bytes, sums_of((const uint64_t *)chunk, bytes / 8 - 1), record);
}

/* Does a sum of chunks match its check? */
static inline int lanes_verify(const char *chunk, size_t bytes)
{
	const uint64_t *words = (const uint64_t *)chunk;

	return sums_of(words, bytes / 8 - 1).weighed == words[bytes / 8 - 1];
}

/* Values in a part: few enough that its lanes are still in the L1 cache when they are summed. */
static inline size_t part_of_lanes(const struct lanes *lanes)
{
	return 4 * WEIGHTS / lanes->bytes;
}

/* Quantize `n` values from `x` on into the chunks from `out` on, `stride` bytes apart, `per_chunk`
 * in each and a word for the check; the last may be partly filled, and is then not sealed. Returns
 * the largest magnitude, as lanes_absmax.
 */
static inline uint32_t lanes_quantize(const struct lanes *lanes, const float *x, size_t n,
				      void *out, size_t stride, size_t per_chunk,
				      struct ring_chunk *records, int exponent)
{
	float scale = ldexpf(1.0f, lanes->fraction_bits - exponent);
	size_t length = per_chunk * lanes->bytes + 8, part = part_of_lanes(lanes);
	uint32_t most = 0;
	char *chunk = out;

	for (; n; x += MIN(n, per_chunk), n -= MIN(n, per_chunk), chunk += stride, records++) {
		size_t count = MIN(per_chunk, n);
		struct sums sums = {};

		for (size_t at = 0; at < count; at += part) {
			size_t lanes_here = MIN(part, count - at), byte = at * lanes->bytes;
			uint32_t magnitude;

			if (lanes->bytes == 2)
				magnitude = quantize16(x + at, lanes_here,
						       (uint16_t *)(chunk + byte), scale,
						       lanes->clamp, lanes->bias);
			else
				magnitude = quantize32(x + at, lanes_here,
						       (uint32_t *)(chunk + byte), scale,
						       lanes->clamp, lanes->bias);
			most = MAX(magnitude, most);
			if (count == per_chunk)
				sums_add(&sums, (const uint64_t *)(chunk + byte),
					 lanes_here * lanes->bytes / 8, factor_at(byte / 8));
		}
		if (count == per_chunk)
			write_check(chunk, length, sums, records);
	}
	return most;
}

/* x = (lane - bias) * step. Large outputs bypass the cache, where they would only evict what the
 * ring is working on. The caller fences. */
#define DEQUANTIZE(name, lane, widen)                                                              \
	static inline void name(const lane *restrict lanes, size_t n, float *restrict x,           \
				float step, int32_t bias, bool stream)                             \
	{                                                                                          \
		size_t i = 0;                                                                      \
		const __m256i biases = _mm256_set1_epi32(bias);                                    \
		const __m256 steps = _mm256_set1_ps(step);                                         \
                                                                                                   \
		if (stream) {                                                                      \
			for (; i < n && (uintptr_t)(x + i) % 32; i++)                              \
				x[i] = (float)(int32_t)((uint32_t)lanes[i] - (uint32_t)bias) *     \
				       step;                                                       \
			for (; i + 8 <= n; i += 8) {                                               \
				__m256i value = _mm256_sub_epi32(widen(lanes + i), biases);        \
                                                                                                   \
				_mm256_stream_ps(x + i,                                            \
						 _mm256_mul_ps(_mm256_cvtepi32_ps(value), steps)); \
			}                                                                          \
		}                                                                                  \
		for (; i < n; i++)                                                                 \
			x[i] = (float)(int32_t)((uint32_t)lanes[i] - (uint32_t)bias) * step;       \
	}

/* Values of a tensor from which on its results bypass the cache. */
#define STREAM (4 << 20)
#define WIDEN16(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define WIDEN32(p) _mm256_loadu_si256((const __m256i *)(p))

DEQUANTIZE(dequantize16, uint16_t, WIDEN16)
DEQUANTIZE(dequantize32, uint32_t, WIDEN32)

/* Dequantize chunks as laid out by lanes_quantize, a part at a time, which is summed while it is in
 * the L1 cache. Stop at the first chunk that fails its check, whose values are then meaningless,
 * and return the number of chunks before it. `stream`: `x` bypasses the cache. */
static inline size_t lanes_dequantize(const struct lanes *lanes, const void *results, size_t n,
				      size_t stride, size_t per_chunk, float *x, int exponent,
				      bool stream)
{
	float step = ldexpf(1.0f, exponent - lanes->fraction_bits);
	/* For 32-bit lanes this wraps; the subtraction wraps back. */
	int32_t bias = (uint32_t)lanes->bias * lanes->ranks;
	size_t good = 0, part = part_of_lanes(lanes);
	const char *chunk = results;

	for (; n; x += MIN(n, per_chunk), n -= MIN(n, per_chunk), chunk += stride, good++) {
		size_t count = MIN(per_chunk, n);
		struct sums sums = {};

		for (size_t at = 0; at < count; at += part) {
			size_t lanes_here = MIN(part, count - at), byte = at * lanes->bytes;

			if (count == per_chunk)
				sums_add(&sums, (const uint64_t *)(chunk + byte),
					 lanes_here * lanes->bytes / 8, factor_at(byte / 8));
			if (lanes->bytes == 2)
				dequantize16((const uint16_t *)(chunk + byte), lanes_here, x + at,
					     step, bias, stream);
			else
				dequantize32((const uint32_t *)(chunk + byte), lanes_here, x + at,
					     step, bias, stream);
		}
		if (count == per_chunk &&
		    sums.weighed != *(const uint64_t *)(chunk + per_chunk * lanes->bytes))
			break;
	}
	_mm_sfence();
	return good;
}
