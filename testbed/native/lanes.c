/* Quantize, sum up and dequantize in one pass over cache-sized pieces. Twin: testbed/collectives/lanes.py, which says what the
 * numbers mean and is what the tests compare with.
 */
#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* The largest magnitude as the bits of a float: for those, integer order is float order, with infinity and NaN on top. */
uint32_t lanes_absmax(const float *x, size_t n)
{
	const uint32_t *bits = (const uint32_t *)x;
	uint32_t most = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t magnitude = bits[i] & 0x7fffffff;

		most = magnitude > most ? magnitude : most;
	}
	return most;
}

/* Index of the first infinity or NaN, or n. */
size_t lanes_find_nonfinite(const float *x, size_t n)
{
	const uint32_t *bits = (const uint32_t *)x;

	for (size_t i = 0; i < n; i++)
		if ((bits[i] & 0x7fffffff) >= 0x7f800000)
			return i;
	return n;
}

/* Rounding is to nearest, ties to even. Values beyond the limit are clamped: the caller learns of them by the magnitude. */
#define QUANTIZE(name, lane)                                                                           \
	static uint32_t name(const float *restrict x, size_t n, lane *restrict out, float scale, float limit, int32_t bias) \
	{                                                                                              \
		uint32_t most = 0;                                                                     \
                                                                                                       \
		for (size_t i = 0; i < n; i++) {                                                       \
			float scaled = x[i] * scale;                                                   \
			uint32_t bits;                                                                 \
                                                                                                       \
			memcpy(&bits, &x[i], 4);                                                       \
			bits &= 0x7fffffff;                                                            \
			most = bits > most ? bits : most;                                              \
			scaled = scaled > limit ? limit : scaled;                                      \
			scaled = scaled < -limit ? -limit : scaled;                                    \
			out[i] = (lane)((int32_t)rintf(scaled) + bias);                                \
		}                                                                                      \
		return most;                                                                           \
	}

QUANTIZE(quantize16, uint16_t)
QUANTIZE(quantize32, uint32_t)

/* One slot of the chunk records in the ring's map; struct ring_chunk of bpf/include/ring.h. */
struct record {
	uint64_t input_sum;
	uint64_t rest[3];
};

static uint64_t sum_words(const uint64_t *words, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += words[i];
	return sum;
}

/* Quantize `n` values from `x` on into the chunks from `lanes` on, `per_chunk` in each; the last may be filled in part, and then is
 * left without its checksum. Returns the largest magnitude, as lanes_absmax.
 */
uint32_t lanes_quantize(const float *x, size_t n, void *lanes, size_t lane_bytes, size_t per_chunk, struct record *records,
			float scale, float limit, int32_t bias)
{
	uint32_t most = 0;

	for (size_t done = 0; done < n; done += per_chunk, records++) {
		size_t part = MIN(per_chunk, n - done);
		uint32_t magnitude;

		if (lane_bytes == 2)
			magnitude = quantize16(x + done, part, (uint16_t *)lanes + done, scale, limit, bias);
		else
			magnitude = quantize32(x + done, part, (uint32_t *)lanes + done, scale, limit, bias);
		most = magnitude > most ? magnitude : most;
		if (part == per_chunk)
			records->input_sum = sum_words((uint64_t *)((char *)lanes + done * lane_bytes), per_chunk * lane_bytes / 8);
	}
	return most;
}

/* Checksums of `count` chunks of `bytes` each. */
void lanes_checksum(const char *lanes, size_t count, size_t bytes, struct record *records)
{
	for (size_t i = 0; i < count; i++)
		records[i].input_sum = sum_words((const uint64_t *)(lanes + i * bytes), bytes / 8);
}

/* x = (lane - bias) * step. Large outputs go past the cache: they would only push out what the ring is working on. */
#define DEQUANTIZE(name, lane, widen)                                                                  \
	static void name(const lane *restrict lanes, size_t n, float *restrict x, float step, int32_t bias) \
	{                                                                                              \
		size_t i = 0;                                                                          \
		const __m256i biases = _mm256_set1_epi32(bias);                                        \
		const __m256 steps = _mm256_set1_ps(step);                                             \
                                                                                                       \
		if (n >= STREAM) {                                                                     \
			for (; (uintptr_t)(x + i) % 32; i++)                                           \
				x[i] = (float)(int32_t)((uint32_t)lanes[i] - (uint32_t)bias) * step;   \
			for (; i + 8 <= n; i += 8) {                                                   \
				__m256i value = _mm256_sub_epi32(widen(lanes + i), biases);            \
                                                                                                       \
				_mm256_stream_ps(x + i, _mm256_mul_ps(_mm256_cvtepi32_ps(value), steps)); \
			}                                                                              \
			_mm_sfence();                                                                  \
		}                                                                                      \
		for (; i < n; i++)                                                                     \
			x[i] = (float)(int32_t)((uint32_t)lanes[i] - (uint32_t)bias) * step;           \
	}

#define STREAM (1 << 20)
#define WIDEN16(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define WIDEN32(p) _mm256_loadu_si256((const __m256i *)(p))

DEQUANTIZE(dequantize16, uint16_t, WIDEN16)
DEQUANTIZE(dequantize32, uint32_t, WIDEN32)

void lanes_dequantize(const void *lanes, size_t lane_bytes, size_t n, float *x, float step, int32_t bias)
{
	if (lane_bytes == 2)
		dequantize16(lanes, n, x, step, bias);
	else
		dequantize32(lanes, n, x, step, bias);
}
