/* Loops of sage.c for one type of rows: included once for each, with
 *	IN		what rows consist of
 *	OUT		what results do
 *	SUM		what sums are formed in
 *	NAME(x)		what this type's function is called
 *	IN_SUM(x)	IN to SUM; OUT_SUM(x) and SUM_OUT(x) likewise
 */

/* One row's sum in some columns, whose number is a constant. */
ALWAYS void NAME(sum_columns)(const struct sage_rows *rows, const struct sage_sums *sums,
			      const SUM *factors, const OUT *first, uint64_t row, uint64_t column,
			      const uint64_t columns, OUT *to)
{
	SUM sum[COLUMNS] = {}, share = 1;
	__s64 end = sums->indptr[row + 1];

	for (__s64 i = sums->indptr[row]; i < end; i++) {
		const IN *from = (const IN *)row_of(rows, sums->senders[i]) + column;
		const char *next = row_of(rows, sums->senders[i + AHEAD < end ? i + AHEAD : i]);

		for (uint64_t at = 0; at < columns * sizeof(IN); at += 64)
			__builtin_prefetch(next + column * sizeof(IN) + at);
		if (factors)
			for (uint64_t j = 0; j < columns; j++)
				sum[j] += IN_SUM(from[j]) * factors[sums->senders[i]];
		else
			for (uint64_t j = 0; j < columns; j++)
				sum[j] += IN_SUM(from[j]);
	}
	if (!factors && end > sums->indptr[row])
		share = (SUM)1 / (SUM)(end - sums->indptr[row]);
	for (uint64_t j = 0; j < columns; j++)
		to[j] = SUM_OUT(sum[j] * share + (first ? OUT_SUM(first[j]) : 0));
}

ALWAYS void NAME(sum_row)(const struct sage_rows *rows, const struct sage_sums *sums,
			  const SUM *factors, const OUT *first, uint64_t row, OUT *to)
{
	uint64_t column = 0;

	for (; column + COLUMNS <= rows->dim; column += COLUMNS)
		NAME(sum_columns)(rows, sums, factors, first ? first + column : NULL, row, column,
				  COLUMNS, to + column);
	for (; column + 16 <= rows->dim; column += 16)
		NAME(sum_columns)(rows, sums, factors, first ? first + column : NULL, row, column,
				  16, to + column);
	for (; column < rows->dim; column++)
		NAME(sum_columns)(rows, sums, factors, first ? first + column : NULL, row, column,
				  1, to + column);
}

void NAME(sum)(const struct sage_rows *rows, const struct sage_sums *sums, const SUM *factors,
	       const OUT *first, uint64_t firsts, OUT *to);

/* Sum up rows: the mean of each row's senders or, with factors, the sum of each sender times its
 * own; and, for the `firsts` rows at the beginning, a row of `first`. */
void NAME(sum)(const struct sage_rows *rows, const struct sage_sums *sums, const SUM *factors,
	       const OUT *first, uint64_t firsts, OUT *to)
{
	uint64_t dim = rows->dim;

	for (uint64_t row = 0; row < sums->count; row++, to += dim) {
		const OUT *mine = row < firsts ? first + row * dim : NULL;

		if (factors)
			NAME(sum_row)(rows, sums, factors, mine, row, to);
		else
			NAME(sum_row)(rows, sums, NULL, mine, row, to);
	}
}

void NAME(copy)(const struct sage_rows *rows, uint64_t n, OUT *to);

/* Copy the first rows. */
void NAME(copy)(const struct sage_rows *rows, uint64_t n, OUT *to)
{
	for (uint64_t row = 0; row < n; row++, to += rows->dim) {
		const IN *from = (const IN *)row_of(rows, row);

		for (uint64_t j = 0; j < rows->dim; j++)
			to[j] = SUM_OUT(IN_SUM(from[j]));
	}
}

void NAME(activate)(OUT *x, const uint32_t *keys, uint64_t n, uint64_t dim, uint32_t dropped,
		    double scale);

/* ReLU and inverted dropout, in place. `keys` decide about rows; elements for which less than
 * `dropped` is drawn become 0, as do negative ones; others are scaled. */
void NAME(activate)(OUT *x, const uint32_t *keys, uint64_t n, uint64_t dim, uint32_t dropped,
		    double scale)
{
	for (uint64_t row = 0; row < n; row++, x += dim)
		for (uint64_t j = 0; j < dim; j++) {
			bool kept = drawn(keys[row], j) >= dropped && !(OUT_SUM(x[j]) <= 0);

			x[j] = kept ? SUM_OUT(OUT_SUM(x[j]) * (SUM)scale) : 0;
		}
}

void NAME(deactivate)(const OUT *x, const OUT *gradient, uint64_t count, double scale, OUT *to);

/* The gradient of what has been activated: `x` tells what is left of it. */
void NAME(deactivate)(const OUT *x, const OUT *gradient, uint64_t count, double scale, OUT *to)
{
	for (uint64_t i = 0; i < count; i++)
		to[i] = OUT_SUM(x[i]) > 0 ? SUM_OUT(OUT_SUM(gradient[i]) * (SUM)scale) : 0;
}
