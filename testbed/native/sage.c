// GraphSAGE's layer on a sampled block: testbed/gnn/native_sage.py.

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bits.h"
#include "shared/sage_native_abi.h"

#define AHEAD 8	   // senders whose rows are being fetched
#define COLUMNS 64 // whose sums stay in registers

ALWAYS const char *row_of(const struct sage_rows *rows, uint64_t row)
{
	return rows->places ? (const char *)rows->places[rows->numbers[row]]
			    : rows->base + row * rows->row_bytes;
}

// What is drawn for an element: as testbed/gnn/full/dropout.py.
ALWAYS uint32_t drawn(uint32_t key, uint32_t column)
{
	uint32_t x = key ^ (column + 1) * 0x9E3779B9u;

	x = (x ^ x >> 16) * 0x85EBCA6Bu;
	x = (x ^ x >> 13) * 0xC2B2AE35u;
	return x ^ x >> 16;
}

ALWAYS float widen(uint16_t half)
{
	return float_of((uint32_t)half << 16);
}

// The nearest bfloat16, ties to even; NaN stays one.
ALWAYS uint16_t narrow(float x)
{
	uint32_t bits = bits_of(x);

	return x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#define SAME(x) (x)

#define IN float
#define OUT float
#define SUM float
#define NAME(x) sage_##x##_float32_float32
#define IN_SUM SAME
#define OUT_SUM SAME
#define SUM_OUT SAME
#include "sage_rows.h"
#undef IN
#undef IN_SUM
#undef NAME

#define IN uint16_t
#define IN_SUM widen
#define NAME(x) sage_##x##_bfloat16_float32
#include "sage_rows.h"
#undef OUT
#undef OUT_SUM
#undef SUM_OUT
#undef NAME

#define OUT uint16_t
#define OUT_SUM widen
#define SUM_OUT narrow
#define NAME(x) sage_##x##_bfloat16_bfloat16
#include "sage_rows.h"
#undef IN
#undef IN_SUM
#undef OUT
#undef OUT_SUM
#undef SUM_OUT
#undef SUM
#undef NAME

#define IN double
#define OUT double
#define SUM double
#define NAME(x) sage_##x##_float64_float64
#define IN_SUM SAME
#define OUT_SUM SAME
#define SUM_OUT SAME
#include "sage_rows.h"

void sage_transpose(const struct sage_sums *sums, uint64_t sources, __s64 *starts,
		    int32_t *receivers);

// The receivers of each source, in their order. `starts` has two numbers more than there are
// sources; those of source i are from starts[i] to starts[i + 1].
void sage_transpose(const struct sage_sums *sums, uint64_t sources, __s64 *starts,
		    int32_t *receivers)
{
	memset(starts, 0, (sources + 2) * sizeof(*starts));
	for (__s64 i = 0; i < sums->indptr[sums->count]; i++)
		starts[sums->senders[i] + 2]++;
	for (uint64_t i = 2; i < sources + 2; i++)
		starts[i] += starts[i - 1];
	for (uint64_t target = 0; target < sums->count; target++)
		for (__s64 i = sums->indptr[target]; i < sums->indptr[target + 1]; i++)
			receivers[starts[sums->senders[i] + 1]++] = target;
}
