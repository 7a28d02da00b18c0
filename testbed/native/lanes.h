/* Quantize, sum and dequantize in one pass over cache-sized pieces. Reference model:
 * testbed/protocol/lanes.py, which explains the numbers.
 */
#pragma once

#include <immintrin.h>
#include <math.h>
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

/* The sum of a chunk's half words, each times the weight of its position, modulo 2^64:
 * testbed/protocol/check_weights.py says which errors it detects. A plain add sums it over ranks
 * like the lanes, because lanes never carry from one half to the next.
 */
static inline uint64_t weigh_part(const uint32_t *halves, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (uint64_t)weights[i] * halves[i];
	return sum;
}

static inline uint64_t weigh(const uint32_t *halves, size_t n)
{
	uint64_t sum = weigh_part(halves, MIN(n, WEIGHTS));

	for (size_t part = 1, start = WEIGHTS; start < n; part++, start += WEIGHTS)
		sum += weights[part] * weigh_part(halves + start, MIN(n - start, WEIGHTS));
	return sum;
}

/* Write a chunk's check, its last word, and its checksum for the programs. A plain sum of words,
 * which is all that programs can afford, misses errors that cancel out and words that have changed
 * places. The check detects them, and is verified where the results are read.
 */
static inline void lanes_seal(char *chunk, size_t bytes, struct ring_chunk *record)
{
	uint64_t *words = (uint64_t *)chunk, sum = 0;

	for (size_t i = 0; i < bytes / 8 - 1; i++)
		sum += words[i];
	words[bytes / 8 - 1] = weigh((const uint32_t *)chunk, bytes / 4 - 2);
	record->input_sum = sum + words[bytes / 8 - 1];
}

/* Does a sum of chunks match its check? */
static inline int lanes_verify(const char *chunk, size_t bytes)
{
	return weigh((const uint32_t *)chunk, bytes / 4 - 2) ==
	       ((const uint64_t *)chunk)[bytes / 8 - 1];
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
	size_t length = per_chunk * lanes->bytes + 8;
	uint32_t most = 0;
	char *chunk = out;

	for (size_t done = 0; done < n; done += per_chunk, chunk += stride, records++) {
		size_t part = MIN(per_chunk, n - done);
		uint32_t magnitude;

		if (lanes->bytes == 2)
			magnitude = quantize16(x + done, part, (uint16_t *)chunk, scale,
					       lanes->clamp, lanes->bias);
		else
			magnitude = quantize32(x + done, part, (uint32_t *)chunk, scale,
					       lanes->clamp, lanes->bias);
		most = magnitude > most ? magnitude : most;
		if (part == per_chunk)
			lanes_seal(chunk, length, records);
	}
	return most;
}

/* x = (lane - bias) * step. Large outputs bypass the cache, where they would only evict what the
 * ring is working on. The caller fences. */
#define DEQUANTIZE(name, lane, widen)                                                              \
	static inline void name(const lane *restrict lanes, size_t n, float *restrict x,           \
				float step, int32_t bias, int stream)                              \
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

#define STREAM (1 << 20)
#define WIDEN16(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define WIDEN32(p) _mm256_loadu_si256((const __m256i *)(p))

DEQUANTIZE(dequantize16, uint16_t, WIDEN16)
DEQUANTIZE(dequantize32, uint32_t, WIDEN32)

/* Dequantize chunks as laid out by lanes_quantize. Stop at the first chunk that fails its check,
 * and return the number of chunks before it. */
static inline size_t lanes_dequantize(const struct lanes *lanes, const void *sums, size_t n,
				      size_t stride, size_t per_chunk, float *x, int exponent)
{
	float step = ldexpf(1.0f, exponent - lanes->fraction_bits);
	/* For 32-bit lanes this wraps; the subtraction wraps back. */
	int32_t bias = (uint32_t)lanes->bias * lanes->ranks;

	size_t length = per_chunk * lanes->bytes + 8, good = 0;
	const char *chunk = sums;

	for (size_t done = 0; done < n; done += per_chunk, chunk += stride, good++) {
		size_t part = MIN(per_chunk, n - done);

		if (part == per_chunk && !lanes_verify(chunk, length))
			break;
		if (lanes->bytes == 2)
			dequantize16((const uint16_t *)chunk, part, x + done, step, bias,
				     n >= STREAM);
		else
			dequantize32((const uint32_t *)chunk, part, x + done, step, bias,
				     n >= STREAM);
	}
	_mm_sfence();
	return good;
}
