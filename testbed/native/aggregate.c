// Aggregation of rows over an adjacency in CSR: testbed/exchange/adjacency.py.
//
// Sums of a row stay in registers while its neighbours pass by: a block of columns at a time, whose
// width the compiler knows.

#include "rows.h"

#define AHEAD 16 // neighbours whose rows are being fetched

// Where the row of a neighbour is.
ALWAYS const char *row_at(const struct adjacency *a, const char *from, int64_t i)
{
	if (a->offsets)
		return from + 4 * (size_t)a->offsets[i];
	return from ? from + 4 * a->indices[i] * a->dim : (const char *)a->places[a->indices[i]];
}

ALWAYS float lane_at(enum row_lanes lanes, const char *row, uint64_t column)
{
	if (lanes == ROW_INT16)
		return ((const int16_t *)row)[column];
	if (lanes == ROW_BFLOAT16)
		return float_of((uint32_t)((const uint16_t *)row)[column] << 16);
	return ((const float *)row)[column];
}

// A line of lanes.
ALWAYS floats line_at(enum row_lanes lanes, const char *row, uint64_t column)
{
	uint64_t at = column * (lanes == ROW_FLOAT32 ? 4 : 2);
	uint16s wide;
	int16s narrow;
	floats line;

	if (lanes == ROW_INT16) {
		memcpy(&narrow, row + at, sizeof(narrow));
		return __builtin_convertvector(narrow, floats);
	}
	if (lanes == ROW_BFLOAT16) {
		memcpy(&wide, row + at, sizeof(wide));
		return (floats)(__builtin_convertvector(wide, uint32s) << 16);
	}
	memcpy(&line, row + at, sizeof(line));
	return line;
}

// What the rows of a neighbour are multiplied by.
ALWAYS float factor_of(const struct adjacency *a, bool stepped, enum adjacency_sum how, int64_t i)
{
	float factor = stepped ? a->steps[a->indices[i]] : 1;

	return how == ADJACENCY_WEIGHTED ? factor * a->weights[i] : factor;
}

// All but `a`, `row`, `from`, `column` and `to` are constants: there is one such function for each,
// without their branches, and with sums in registers.
ALWAYS void aggregate_lines(const struct adjacency *a, enum row_lanes lanes, bool stepped,
			    enum adjacency_sum how, uint64_t row, const char *from, uint64_t column,
			    float *to, const uint64_t lines)
{
	int64_t end = a->indptr[row + 1], last = a->indptr[a->targets] - 1;
	uint64_t bytes = (lanes == ROW_FLOAT32 ? 4 : 2) * lines * LINE;
	floats sum[BLOCK / LINE];

#pragma unroll
	for (uint64_t j = 0; j < lines; j++)
		sum[j] = (floats){} + (how == ADJACENCY_MAX ? -INFINITY : 0.0f);
	for (int64_t i = a->indptr[row]; i < end; i++) {
		const char *next = row_at(a, from, i + AHEAD < last ? i + AHEAD : last);
		const char *other = row_at(a, from, i);
		float factor = factor_of(a, stepped, how, i);

		for (uint64_t j = 0; j < bytes; j += 64)
			__builtin_prefetch(next + column * bytes / (lines * LINE) + j);
#pragma unroll
		for (uint64_t j = 0; j < lines; j++) {
			floats line = line_at(lanes, other, column + j * LINE);

			if (how == ADJACENCY_MAX)
				sum[j] = larger(stepped ? line * factor : line, sum[j]);
			else if (stepped || how == ADJACENCY_WEIGHTED)
				sum[j] += line * factor;
			else
				sum[j] += line;
		}
	}
#pragma unroll
	for (uint64_t j = 0; j < lines; j++)
		memcpy(to + j * LINE, &sum[j], sizeof(floats));
}

// The columns that fill no line.
ALWAYS void aggregate_rest(const struct adjacency *a, enum row_lanes lanes, bool stepped,
			   enum adjacency_sum how, uint64_t row, const char *from, uint64_t first,
			   float *to)
{
	for (uint64_t column = first; column < a->dim; column++) {
		float sum = how == ADJACENCY_MAX ? -INFINITY : 0;

		for (int64_t i = a->indptr[row]; i < a->indptr[row + 1]; i++) {
			float value = lane_at(lanes, row_at(a, from, i), column);
			float factor = factor_of(a, stepped, how, i);

			if (how == ADJACENCY_MAX)
				sum = value * factor > sum ? value * factor : sum;
			else
				sum += value * factor;
		}
		to[column] = sum;
	}
}

// The rows of a result: those without sources, of which most results have many, are filled.
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
		uint64_t first = 0;

		fill_up_to(&f, &a, a.numbers[target]);
		for (; first + BLOCK <= a.dim; first += BLOCK)
			aggregate_lines(&a, lanes, stepped, how, target, from, first, f.to + first,
					BLOCK / LINE);
		for (; first + LINE <= a.dim; first += LINE)
			aggregate_lines(&a, lanes, stepped, how, target, from, first, f.to + first,
					1);
		aggregate_rest(&a, lanes, stepped, how, target, from, first, f.to);
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
