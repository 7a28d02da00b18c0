/* Convert embeddings from floats to payloads, and aggregates from accumulators to floats. Reference
 * model: testbed/exchange/pinch/fixed_point.py, which explains the numbers.
 */
#pragma once

#include <float.h>
#include <limits.h>
#include <stdbool.h>

#include "lanes.h"
#include "shared/pinch_native_abi.h"

static inline int32_t quantize(const struct pinch_format *f, float x, double factor)
{
	double scaled = rint(x * factor);

	return scaled > f->limit ? f->limit : scaled < -f->limit ? -f->limit : (int32_t)scaled;
}

static void quantize_row16(int16_t *restrict out, const float *restrict x, size_t n, float factor,
			   float limit)
{
	for (size_t i = 0; i < n; i++) {
		float scaled = x[i] * factor;

		scaled = scaled < limit ? scaled : limit;
		scaled = scaled > -limit ? scaled : -limit;
		out[i] = (int16_t)(int32_t)rintf(scaled);
	}
}

static void quantize_row32(int32_t *restrict out, const float *restrict x, size_t n, double factor,
			   double limit)
{
	for (size_t i = 0; i < n; i++) {
		double scaled = rint(x[i] * factor);

		scaled = scaled < limit ? scaled : limit;
		scaled = scaled > -limit ? scaled : -limit;
		out[i] = (int32_t)scaled;
	}
}

/* Write the row of a vertex: its lanes, or with `last` the differences from the lanes there, which
 * are updated. */
static void write_row(const struct pinch_format *f, void *out, const float *x, double factor,
		      int32_t *last)
{
	if (f->plain) {
		memcpy(out, x, f->dim * sizeof(*x));
		return;
	}
	if (!last && f->bytes == 4) {
		quantize_row32(out, x, f->dim, factor, f->limit);
		return;
	}
	if (!last && factor <= FLT_MAX) {
		quantize_row16(out, x, f->dim, (float)factor, (float)f->limit);
		return;
	}
	for (uint32_t i = 0; i < f->dim; i++) {
		int32_t lane = quantize(f, x[i], factor), change = last ? lane - last[i] : lane;

		if (last)
			last[i] = lane;
		if (f->bytes == 2)
			((int16_t *)out)[i] = change;
		else
			((int32_t *)out)[i] = change;
	}
}

/* Write the payloads of frames `from` to `to` and their checks. Bundle b has the vertices
 * order[starts[b]] to order[starts[b + 1] - 1], and takes `parts` frames. `last`: NULL, or dim
 * lanes per position.
 */
void pinch_fill(const struct pinch_format *f, const float *x, const int32_t *order,
		const int64_t *starts, uint32_t from, uint32_t to, char *payloads,
		struct pinch_frame *frames, double factor, int32_t *last)
{
	size_t row_bytes = 8ul * f->words * f->parts;
	char row[row_bytes] __attribute__((aligned(8)));

	memset(row, 0, row_bytes);
	for (uint32_t b = from / f->parts; b * f->parts < to; b++) {
		uint32_t count = starts[b + 1] - starts[b], ids = (count + 1) / 2;

		for (uint32_t part = 0; part < f->parts; part++) {
			struct pinch_frame *frame = &frames[b * f->parts + part];
			char *payload = payloads + (size_t)f->stride * (b * f->parts + part);
			uint32_t *numbers = (uint32_t *)payload;

			frame->length = 8 * (ids + count * f->words);
			numbers[2 * ids - 1] = 0;
			for (uint32_t i = 0; i < count; i++) {
				size_t position = order[starts[b] + i];
				char *out = payload + 8 * (ids + (size_t)i * f->words);

				numbers[i] = position;
				if (!part)
					write_row(f, f->parts > 1 ? row : out,
						  x + position * f->dim, factor,
						  last ? last + position * f->dim : NULL);
				if (f->parts > 1)
					memcpy(out, row + 8ul * part * f->words, 8ul * f->words);
				else if (f->dim * f->bytes % 8)
					memset(out + f->dim * f->bytes, 0,
					       8ul * f->words - f->dim * f->bytes);
			}
			if (f->parts > 1)
				numbers[1] = part;
			frame->check =
				sums_of((const uint64_t *)payload, frame->length / 8).weighed;
		}
	}
}

/* Select those of `n` positions whose lanes differ by more than `bound` from those last sent, or
 * differ at all if they were left out `staleness` - 1 times in a row, as counted by `age`. Returns
 * their number.
 */
uint32_t pinch_changed(const struct pinch_format *f, const float *x, const int32_t *positions,
		       uint32_t n, double factor, const int32_t *last, int64_t bound,
		       const uint32_t *age, uint32_t staleness, uint8_t *changed)
{
	uint32_t found = 0;

	for (uint32_t k = 0; k < n; k++) {
		size_t position = positions[k];
		const float *row = x + position * f->dim;
		const int32_t *before = last + position * f->dim;
		int64_t most = 0;

		for (uint32_t i = 0; i < f->dim; i++) {
			int64_t change = llabs((int64_t)quantize(f, row[i], factor) - before[i]);

			most = change > most ? change : most;
		}
		changed[k] = most > bound || (most && age[position] + 1 >= staleness);
		found += changed[k];
	}
	return found;
}

/* Words of two 32-bit lanes as high * 2^32 + low: the upper half is short of the high lane by what
 * the low one has borrowed. So are words 2i and 2i + 1 the lanes 4i, 4i + 2 and 4i + 1, 4i + 3.
 */
static inline __m256 lanes_of(__m256i words, __m256 step)
{
	__m256i borrowed = _mm256_slli_epi64(_mm256_srli_epi32(words, 31), 32);
	__m256i lanes = _mm256_add_epi32(words, borrowed);

	return _mm256_mul_ps(
		_mm256_cvtepi32_ps(_mm256_shuffle_epi32(lanes, _MM_SHUFFLE(3, 1, 2, 0))), step);
}

static inline void store_lanes(float *out, uint32_t lane, uint32_t dim, __m256 values)
{
	float rest[8];

	if (lane + 8 <= dim) {
		_mm256_storeu_ps(out + lane, values);
		return;
	}
	_mm256_storeu_ps(rest, values);
	for (uint32_t i = lane; i < dim; i++)
		out[i] = rest[i - lane];
}

/* Add up the banks of a target. */
static inline void collect_sum16(uint64_t *const *banks, uint32_t count, size_t words, float *out,
				 uint32_t dim, float step, bool clear)
{
	size_t i = 0;

	for (; i < words; i += 4) {
		/* Words come in pairs: if the last pair is alone, the other half does not belong to
		 * this row. */
		const __m256i mask = words - i >= 4 ? _mm256_set1_epi64x(-1)
						    : _mm256_set_epi64x(0, 0, -1, -1);
		__m256i sum = _mm256_setzero_si256();

		for (uint32_t b = 0; b < count; b++) {
			sum = _mm256_add_epi64(
				sum,
				_mm256_maskload_epi64((const long long *)(banks[b] + i), mask));
			if (clear)
				_mm256_maskstore_epi64((long long *)(banks[b] + i), mask,
						       _mm256_setzero_si256());
		}
		store_lanes(out, 2 * i, dim, lanes_of(sum, _mm256_set1_ps(step)));
	}
}

static inline void collect_sum32(uint64_t *const *banks, uint32_t count, size_t words, float *out,
				 uint32_t dim, double step, bool clear)
{
	for (size_t i = 0; i < words; i++) {
		int64_t sum = 0;

		for (uint32_t b = 0; b < count; b++) {
			sum += banks[b][i];
			if (clear)
				banks[b][i] = 0;
		}
		if (i < dim)
			out[i] = (float)((double)sum * step);
	}
}

/* The same for one accumulator whose words are sums of two lanes each, 2i and 2i + 1. */
static inline void collect_pairs(uint64_t *accumulator, size_t words, float *out, uint32_t dim,
				 double step, bool clear)
{
	const __m256d steps = _mm256_set1_pd(step);

	for (size_t i = 0; i < words; i += 4) {
		const __m256i mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(words - i),
							_mm256_setr_epi64x(0, 1, 2, 3));
		long long *at = (long long *)(accumulator + i);
		__m256i pairs = _mm256_maskload_epi64(at, mask);
		__m256i lanes = _mm256_add_epi32(
			pairs, _mm256_slli_epi64(_mm256_srli_epi32(pairs, 31), 32));
		__m128 low = _mm256_cvtpd_ps(
			_mm256_mul_pd(_mm256_cvtepi32_pd(_mm256_castsi256_si128(lanes)), steps));
		__m128 high = _mm256_cvtpd_ps(_mm256_mul_pd(
			_mm256_cvtepi32_pd(_mm256_extracti128_si256(lanes, 1)), steps));

		if (clear)
			_mm256_maskstore_epi64(at, mask, _mm256_setzero_si256());
		if (2 * i < dim)
			store_lanes(out, 2 * i, dim, _mm256_set_m128(high, low));
	}
}

/* Add up the banks of a target's accumulators, whose words are sums of two lanes each: `count`
 * accumulators in a row, and as many in each bank, `bank` words after those before. */
static inline void collect_packed(uint64_t *accumulators, uint32_t count, uint32_t banks,
				  size_t bank, size_t words, float *out, uint32_t dim, double step,
				  bool clear)
{
	if (count == 1 && banks == 1) {
		collect_pairs(accumulators, words, out, dim, step, clear);
		return;
	}
	for (size_t i = 0; i < words; i++) {
		int64_t low = 0, high = 0;

		for (uint32_t b = 0; b < banks; b++) {
			for (uint32_t k = 0; k < count; k++) {
				uint64_t *word = &accumulators[b * bank + k * words + i];
				int32_t lower = (int32_t)*word;

				low += lower;
				high += (int64_t)(*word - (uint64_t)(int64_t)lower) >> 32;
				if (clear)
					*word = 0;
			}
		}
		if (2 * i < dim)
			out[2 * i] = (float)((double)low * step);
		if (2 * i + 1 < dim)
			out[2 * i + 1] = (float)((double)high * step);
	}
}

static inline float maximum_of(int64_t value, int64_t none, double step)
{
	return value == none ? -INFINITY : (float)((double)value * step);
}

static inline void collect_maximum(const struct pinch_format *f, uint64_t *const *banks,
				   uint32_t count, size_t words, float *out, double step)
{
	for (size_t i = 0; i < words; i++) {
		int64_t most = INT64_MIN;
		int32_t low = INT32_MIN, high = INT32_MIN;
		uint32_t lane = 4 * (i / 2) + i % 2;

		for (uint32_t b = 0; b < count; b++) {
			int64_t word = banks[b][i];

			most = word > most ? word : most;
			low = (int32_t)word > low ? (int32_t)word : low;
			high = (int32_t)(word >> 32) > high ? (int32_t)(word >> 32) : high;
			banks[b][i] = f->bytes == 4 ? (uint64_t)INT64_MIN : 0x8000000080000000ull;
		}
		if (f->bytes == 4) {
			if (i < f->dim)
				out[i] = maximum_of(most, INT64_MIN, step);
			continue;
		}
		if (lane < f->dim)
			out[lane] = maximum_of(low, INT32_MIN, step);
		if (lane + 2 < f->dim)
			out[lane + 2] = maximum_of(high, INT32_MIN, step);
	}
}

/* The contents of `count` accumulators as floats: row targets[i] of out, with dim values, is that
 * of accumulator i. If sums are packed, it is that of all accumulators with this target, which
 * follow each other. Sums stay as they are unless `clear`; maxima are reset.
 */
void pinch_collect(const struct pinch_format *f, uint64_t *accumulators, const int32_t *targets,
		   uint32_t count, uint32_t banks, float *out, double step, bool clear)
{
	size_t words = 2ul * f->words * f->parts;
	uint64_t *rows[banks];

	if (f->packed) {
		words /= 2;
		for (uint32_t i = 0, end; i < count; i = end) {
			for (end = i + 1; end < count && targets[end] == targets[i]; end++)
				;
			collect_packed(accumulators + i * words, end - i, banks, count * words,
				       words, out + (size_t)targets[i] * f->dim, f->dim, step,
				       clear);
		}
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		float *row = out + (size_t)targets[i] * f->dim;

		for (uint32_t b = 0; b < banks; b++)
			rows[b] = accumulators + ((size_t)b * count + i) * words;
		if (f->maximum)
			collect_maximum(f, rows, banks, words, row, step);
		else if (f->bytes == 4)
			collect_sum32(rows, banks, words, row, f->dim, step, clear);
		else
			collect_sum16(rows, banks, words, row, f->dim, (float)step, clear);
	}
}

/* The largest magnitude in `n` rows, as the bits of a float; see lanes_absmax. */
uint32_t pinch_absmax(const struct pinch_format *f, const float *x, const int32_t *positions,
		      uint32_t n)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t row = lanes_absmax(x + (size_t)positions[i] * f->dim, f->dim);

		most = row > most ? row : most;
	}
	return most;
}
