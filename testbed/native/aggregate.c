// Aggregation of rows over an adjacency in CSR: testbed/exchange/adjacency.py.
//
// Sums of a row stay in registers while its neighbours pass by: a block of columns at a time, whose
// width the compiler knows.

#include "rows.h"

// Where a result is being written. Most results have many rows without sources, which are filled.
struct filling {
	uint64_t next; // row
	float *to;
};

static inline void fill_up_to(struct filling *f, const struct adjacency *a, uint64_t row)
{
	uint64_t count = (row - f->next) * a->dim, i = 0;
	float value = a->sum == ADJACENCY_MAX ? -INFINITY : 0;
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
	struct filling f = { 0, to };

	for (uint64_t target = 0; target < a.targets; target++) {
		fill_up_to(&f, &a, a.numbers[target]);
		aggregate_row(&a, lanes, stepped, how, target, from, f.to);
		f.to += a.dim;
		f.next++;
	}
	fill_up_to(&f, &a, a.rows);
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
	struct filling f = { 0, to };

	for (uint64_t target = 0; target < a->targets; target++) {
		double sum[ROW_MOST];

		fill_up_to(&f, a, a->numbers[target]);
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
	fill_up_to(&f, a, a->rows);
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

uint32_t pack(const struct row_source *s, const float *x, const __s64 *rows, uint64_t count,
	      char *to, float *steps);

// As pack_rows, for tests.
uint32_t pack(const struct row_source *s, const float *x, const __s64 *rows, uint64_t count,
	      char *to, float *steps)
{
	return pack_rows(s, x, rows, count, count, to, steps);
}
