// Aggregation of rows over an adjacency in CSR: testbed/exchange/adjacency.py.
//
// Sums of a row stay in registers while its neighbours pass by: a block of columns at a time, whose
// width the compiler knows.

#include "rows.h"

// Where a result is being written. Most results have many rows without sources, which are filled.
struct filling {
	uint64_t next; // row
	float *to;
	uint64_t dim;
	float value; // of rows without sources
};

static inline struct filling filling_of(float *to, uint64_t dim, bool maximum)
{
	return (struct filling){ 0, to, dim, maximum ? -INFINITY : 0 };
}

static inline void fill_up_to(struct filling *f, uint64_t row)
{
	uint64_t count = (row - f->next) * f->dim, i = 0;
	float value = f->value;
	floats line = (floats){} + value;

	for (; i + LINE <= count; i += LINE)
		memcpy(f->to + i, &line, sizeof(line));
	for (; i < count; i++)
		f->to[i] = value;
	f->to += count;
	f->next = row;
}

ALWAYS void aggregate_all(const struct adjacency *adjacency, enum row_lanes lanes, bool stepped,
			  enum adjacency_sum how, const char *from, float *to)
{
	const struct adjacency a = *adjacency; // which `to` does not overlap
	struct filling f = filling_of(to, adjacency->dim, how == ADJACENCY_MAX);

	for (uint64_t target = 0; target < a.targets; target++) {
		fill_up_to(&f, a.numbers[target]);
		aggregate_row(&a, lanes, stepped, how, target, from, f.to);
		f.to += a.dim;
		f.next++;
	}
	fill_up_to(&f, a.rows);
}

ALWAYS void aggregate_lanes(const struct adjacency *a, enum row_lanes lanes, bool stepped,
			    const char *from, float *to)
{
	if (a->sum == ADJACENCY_SUM)
		aggregate_all(a, lanes, stepped, ADJACENCY_SUM, from, to);
	else if (a->sum == ADJACENCY_WEIGHTED)
		aggregate_all(a, lanes, stepped, ADJACENCY_WEIGHTED, from, to);
	else
		aggregate_all(a, lanes, stepped, ADJACENCY_MAX, from, to);
}

// Rows are so large that float32 sums might pass through infinity: doubles do not.
static void aggregate_large(const struct adjacency *a, const char *from, float *to)
{
	struct filling f = filling_of(to, a->dim, a->sum == ADJACENCY_MAX);

	for (uint64_t target = 0; target < a->targets; target++) {
		double sum[ROW_MOST];

		fill_up_to(&f, a->numbers[target]);
		for (uint64_t j = 0; j < a->dim; j++)
			sum[j] = a->sum == ADJACENCY_MAX ? -INFINITY : 0;
		for (int64_t i = a->indptr[target]; i < a->indptr[target + 1]; i++) {
			const char *other = row_at(a, from, i);
			double factor = a->steps ? a->steps[a->indices[i]] : 1;

			if (a->sum == ADJACENCY_WEIGHTED)
				factor *= a->weights[i];
			for (uint64_t j = 0; j < a->dim; j++) {
				double value = factor * lane_at((enum row_lanes)a->lanes, other, j);

				if (a->sum != ADJACENCY_MAX)
					sum[j] += value;
				else
					sum[j] = value > sum[j] ? value : sum[j];
			}
		}
		for (uint64_t j = 0; j < a->dim; j++)
			f.to[j] = (float)sum[j];
		f.to += a->dim;
		f.next++;
	}
	fill_up_to(&f, a->rows);
}

void aggregate(const struct adjacency *a, bool large, const char *from, float *to);

// Aggregate rows of lanes into the rows of a result, dense and with `dim` columns. With neither
// `from` nor `offsets`, rows are at `places`. `large`: some row has magnitudes of 2^LARGE or more.
void aggregate(const struct adjacency *a, bool large, const char *from, float *to)
{
	if (large)
		aggregate_large(a, from, to);
	else if (a->lanes == ROW_INT16)
		aggregate_lanes(a, ROW_INT16, true, from, to);
	else if (a->lanes == ROW_BFLOAT16 && a->steps)
		aggregate_lanes(a, ROW_BFLOAT16, true, from, to);
	else if (a->lanes == ROW_BFLOAT16)
		aggregate_lanes(a, ROW_BFLOAT16, false, from, to);
	else if (a->steps)
		aggregate_lanes(a, ROW_FLOAT32, true, from, to);
	else
		aggregate_lanes(a, ROW_FLOAT32, false, from, to);
}

// Where a lane is among those of its sum, in which every other one of a word comes first.
ALWAYS uint64_t place_of(uint64_t lane, bool wide)
{
	return wide ? lane : (lane & ~3ull) | (lane & 1) << 1 | (lane >> 1 & 1);
}

// A portion's sum of 16-bit lanes, which is all that a row has.
static void take_narrow(const uint32_t *sums, uint32_t start, float step, uint64_t dim, float *to)
{
	uint64_t i = 0;

	for (; i + LINE <= dim; i += LINE) {
		uint32s line;
		floats values;

		memcpy(&line, sums + i, sizeof(line));
		line = __builtin_shufflevector(line - start, line, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9,
					       11, 12, 14, 13, 15);
		values = __builtin_convertvector((int32s)line, floats) * step;
		memcpy(to + i, &values, sizeof(values));
	}
	for (; i < dim; i++)
		to[i] = (float)(int32_t)(sums[place_of(i, false)] - start) * step;
}

// What a row's portions add up to, as upper and lower halves: with weights it may exceed 64 bits.
struct total {
	int64_t upper[ROW_MOST];
	uint64_t lower[ROW_MOST];
};

ALWAYS void take_portion(const struct lane_sums *s, bool wide, const char *sums, uint64_t portion,
			 struct total *total)
{
	uint64_t lanes = s->words * (wide ? 2 : 4), start = s->starts[portion];

	for (uint64_t done = 0; done < s->dim; done += lanes, sums += 16 * s->words) {
		uint64_t count = s->dim - done < lanes ? s->dim - done : lanes;

		for (uint64_t i = 0; i < count; i++) {
			uint64_t place = place_of(i, wide);
			int64_t lane = wide ? (int64_t)(((const uint64_t *)sums)[place] - start)
					    : (int32_t)(((const uint32_t *)sums)[place] - start);
			int64_t *upper = &total->upper[done + i];

			if (s->maximum) {
				*upper = lane > *upper ? lane : *upper;
			} else {
				*upper += lane >> 32;
				total->lower[done + i] += (uint32_t)lane;
			}
		}
	}
}

// The sum, or the largest, of a row's portions.
static void take_portions(const struct lane_sums *s, const char *sums, uint64_t target, float step,
			  float *to)
{
	double unit = s->maximum ? 1 : 0x1p32;
	struct total total;

	for (uint64_t i = 0; i < s->dim; i++) {
		total.upper[i] = s->maximum ? INT64_MIN : 0;
		total.lower[i] = 0;
	}
	for (int64_t k = s->indptr[target]; k < s->indptr[target + 1]; k++) {
		const char *from = sums + k * s->blocks * s->words * 16;

		if (s->wide)
			take_portion(s, true, from, k, &total);
		else
			take_portion(s, false, from, k, &total);
	}
	for (uint64_t i = 0; i < s->dim; i++)
		to[i] = (float)((double)total.upper[i] * unit + (double)total.lower[i]) * step;
}

// The only summand of a row.
static void take_one(const struct lane_sums *s, const char *row, int64_t weight, float step,
		     float *to)
{
	const uint16_t *narrow = (const uint16_t *)row;
	const uint32_t *wide = (const uint32_t *)row;
	const int32_t half = 1 << (TOKEN_BITS - 1), wide_half = 1 << (TOKEN_WIDE_BITS - 1);

	if (!s->wide && weight == 1)
		for (uint64_t i = 0; i < s->dim; i++)
			to[i] = (float)(narrow[i] - half) * step;
	else if (!s->wide)
		for (uint64_t i = 0; i < s->dim; i++)
			to[i] = (float)((double)(narrow[i] - half) * weight) * step;
	else
		for (uint64_t i = 0; i < s->dim; i++)
			to[i] = (float)((double)(int32_t)(wide[i] - wide_half) * weight) * step;
}

void take_sums(const struct lane_sums *s, const char *landed, const char *sums, float *to);

// Make a result of the lanes that have landed, and of the sums of these that programs have formed.
void take_sums(const struct lane_sums *s, const char *landed, const char *sums, float *to)
{
	struct filling f = filling_of(to, s->dim, s->maximum);
	uint64_t part_bytes = 16 * s->words;
	float most = 0;

	for (uint32_t i = 0; i < s->ranks; i++)
		most = s->steps[i] > most ? s->steps[i] : most;
	for (uint64_t target = 0; target < s->targets; target++) {
		int64_t first = s->indptr[target], count = s->indptr[target + 1] - first;
		float step = count ? most : s->steps[s->senders[target]];

		step = (float)(step / s->scales[target]);
		fill_up_to(&f, s->numbers[target]);
		if (!count)
			take_one(s, landed + s->places[target], s->weights[target], step, f.to);
		else if (!s->wide && count == 1)
			take_narrow((const uint32_t *)(sums + first * s->blocks * part_bytes),
				    s->starts[first], step, s->dim, f.to);
		else
			take_portions(s, sums, target, step, f.to);
		f.to += s->dim;
		f.next++;
	}
	fill_up_to(&f, s->rows);
}

uint32_t pack(const struct row_source *s, const float *x, const __s64 *rows, uint64_t count,
	      char *to, float *steps);

// As pack_rows, for tests.
uint32_t pack(const struct row_source *s, const float *x, const __s64 *rows, uint64_t count,
	      char *to, float *steps)
{
	return pack_rows(s, x, rows, count, count, to, steps);
}
