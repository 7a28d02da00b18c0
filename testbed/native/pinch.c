/* The process's side of an exchange: embeddings from floats to payloads, aggregates from accumulators to floats.
 * Twin: testbed/exchange/pinch_numbers.py, which says what the numbers mean and is what the tests compare with.
 */
#include <limits.h>
#include <stdbool.h>

#include "lanes.h"

struct pinch_format {
	uint32_t bytes;	 /* of a lane: 2 or 4 */
	uint32_t dim;
	uint32_t words;	 /* of a vertex in a frame */
	uint32_t parts;	 /* frames that an embedding takes */
	uint32_t rows;	 /* vertices in a full frame */
	uint32_t stride; /* bytes from one payload to the next */
	uint32_t maximum; /* accumulators hold maxima, not sums */
	int32_t limit;	 /* largest magnitude of a lane */
};

/* struct pinch_frame of bpf/include/pinch.h */
struct frame {
	uint64_t check;
	uint32_t to, ask;
	uint16_t length;
	uint8_t attempt, copies;
	uint32_t sent_us;
};

static inline int32_t quantize(const struct pinch_format *f, float x, double factor)
{
	double scaled = rint(x * factor);

	return scaled > f->limit ? f->limit : scaled < -f->limit ? -f->limit : (int32_t)scaled;
}

static void quantize_row16(int16_t *restrict out, const float *restrict x, size_t n, float factor, float limit)
{
	for (size_t i = 0; i < n; i++) {
		float scaled = x[i] * factor;

		scaled = scaled < limit ? scaled : limit;
		scaled = scaled > -limit ? scaled : -limit;
		out[i] = (int16_t)(int32_t)rintf(scaled);
	}
}

static void quantize_row32(int32_t *restrict out, const float *restrict x, size_t n, double factor, double limit)
{
	for (size_t i = 0; i < n; i++) {
		double scaled = rint(x[i] * factor);

		scaled = scaled < limit ? scaled : limit;
		scaled = scaled > -limit ? scaled : -limit;
		out[i] = (int32_t)scaled;
	}
}

/* A vertex as its row: its lanes, or with `last`, by how much they have changed since then, which is noted there. */
static void write_row(const struct pinch_format *f, void *out, const float *x, double factor, int32_t *last)
{
	if (!last) {
		if (f->bytes == 2)
			quantize_row16(out, x, f->dim, (float)factor, (float)f->limit);
		else
			quantize_row32(out, x, f->dim, factor, f->limit);
		return;
	}
	for (uint32_t i = 0; i < f->dim; i++) {
		int32_t lane = quantize(f, x[i], factor), change = lane - last[i];

		last[i] = lane;
		if (f->bytes == 2)
			((int16_t *)out)[i] = change;
		else
			((int32_t *)out)[i] = change;
	}
}

/* Write the payloads of frames `from` to `to` and their checks. Bundle b has the vertices order[starts[b]] to order[starts[b + 1] - 1], and
 * takes `parts` frames. `last`: NULL, or dim lanes a position.
 */
void pinch_fill(const struct pinch_format *f, const float *x, const int32_t *order, const int64_t *starts, uint32_t from, uint32_t to,
		char *payloads, struct frame *frames, double factor, int32_t *last)
{
	size_t row_bytes = 8ul * f->words * f->parts;
	char row[row_bytes] __attribute__((aligned(8)));

	memset(row, 0, row_bytes);
	for (uint32_t b = from / f->parts; b * f->parts < to; b++) {
		uint32_t count = starts[b + 1] - starts[b], ids = (count + 1) / 2;

		for (uint32_t part = 0; part < f->parts; part++) {
			struct frame *frame = &frames[b * f->parts + part];
			char *payload = payloads + (size_t)f->stride * (b * f->parts + part);
			uint32_t *numbers = (uint32_t *)payload;

			frame->length = 8 * (ids + count * f->words);
			frame->attempt = 0;
			frame->sent_us = 0;
			numbers[2 * ids - 1] = 0;
			for (uint32_t i = 0; i < count; i++) {
				size_t position = order[starts[b] + i];
				char *out = payload + 8 * (ids + (size_t)i * f->words);

				numbers[i] = position;
				if (!part)
					write_row(f, f->parts > 1 ? row : out, x + position * f->dim, factor,
						  last ? last + position * f->dim : NULL);
				if (f->parts > 1)
					memcpy(out, row + 8ul * part * f->words, 8ul * f->words);
				else if (f->dim * f->bytes % 8)
					memset(out + f->dim * f->bytes, 0, 8ul * f->words - f->dim * f->bytes);
			}
			if (f->parts > 1)
				numbers[1] = part;
			frame->check = weigh((const uint32_t *)payload, frame->length / 4);
		}
	}
}

/* Of `n` positions, those whose lanes differ by more than `bound` from the last that were sent, or that were sent `staleness` exchanges ago.
 * `age`: exchanges since each position was sent, kept here. Returns their number.
 */
uint32_t pinch_changed(const struct pinch_format *f, const float *x, const int32_t *positions, uint32_t n, double factor,
		       const int32_t *last, int64_t bound, uint32_t *age, uint32_t staleness, uint8_t *changed)
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
		age[position]++;
		changed[k] = most > bound || (most && age[position] >= staleness);
		if (changed[k])
			age[position] = 0;
		found += changed[k];
	}
	return found;
}

/* Add up the banks of a target: an accumulator word holds one lane, or two as high * 2^32 + low. */
static inline void collect_sum(const struct pinch_format *f, uint64_t *const *banks, uint32_t count, size_t words, float *out, double step,
			       bool clear)
{
	uint32_t lane = 0;

	for (size_t i = 0; i < words; i++) {
		uint64_t sum = 0;

		for (uint32_t b = 0; b < count; b++) {
			sum += banks[b][i];
			if (clear)
				banks[b][i] = 0;
		}
		if (f->bytes == 4) {
			if (i < f->dim)
				out[i] = (float)((double)(int64_t)sum * step);
		} else {
			int32_t low = (int32_t)sum, high = (int32_t)((sum - (uint64_t)(int64_t)low) >> 32);

			lane = 4 * (i / 2) + i % 2;
			if (lane < f->dim)
				out[lane] = (float)(low * step);
			if (lane + 2 < f->dim)
				out[lane + 2] = (float)(high * step);
		}
	}
}

static inline float maximum_of(int64_t value, int64_t none, double step)
{
	return value == none ? -INFINITY : (float)((double)value * step);
}

static inline void collect_maximum(const struct pinch_format *f, uint64_t *const *banks, uint32_t count, size_t words, float *out,
				   double step)
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

/* What `targets` accumulators have come to, as floats: out has dim a target. Sums stay as they are unless `clear`; maxima start anew. */
void pinch_collect(const struct pinch_format *f, uint64_t *accumulators, uint32_t targets, uint32_t banks, float *out, double step, bool clear)
{
	size_t words = 2ul * f->words * f->parts;
	uint64_t *rows[banks];

	for (uint32_t t = 0; t < targets; t++) {
		for (uint32_t b = 0; b < banks; b++)
			rows[b] = accumulators + ((size_t)b * targets + t) * words;
		if (f->maximum)
			collect_maximum(f, rows, banks, words, out + (size_t)t * f->dim, step);
		else
			collect_sum(f, rows, banks, words, out + (size_t)t * f->dim, step, clear);
	}
}

/* The largest magnitude as the bits of a float; see lanes_absmax. */
uint32_t pinch_absmax(const float *x, size_t n)
{
	return lanes_absmax(x, n);
}

/* The weights of the check, by the place of a half word. */
const uint32_t *pinch_weights(void)
{
	return weights;
}
