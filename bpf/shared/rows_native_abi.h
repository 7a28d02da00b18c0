/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Rows of embeddings as they travel, what testbed/native/aggregate.c and rows.h share with Python.
 *
 * A message holds rows of lanes one behind the other, each padded to a multiple of 4 bytes, and
 * then, if rows have steps, a float32 for each row: the value of its lanes' unit, a power of two.
 * Fixed lanes are for programs that add them up: unsigned, in words of 64 bits, with one step for a
 * message. A row of more than TOKEN_WORDS words is padded to a multiple of these.
 */
#pragma once

#include <linux/types.h>

enum row_lanes { ROW_FLOAT32, ROW_BFLOAT16, ROW_INT16, ROW_FIXED16, ROW_FIXED32 };

enum adjacency_sum { ADJACENCY_SUM, ADJACENCY_WEIGHTED, ADJACENCY_MAX };

/* Which sources' rows make up the rows of a result, in CSR of the rows that have any. */
struct adjacency {
	__u64 rows;	      /* rows of the result */
	__u64 targets;	      /* of these, rows with sources */
	const __s64 *numbers; /* their numbers, ascending */
	__u64 dim;	      /* columns */
	const __s64 *indptr;
	const __s32 *indices;
	const float *weights; /* one per index */
	/* where each source's row is; or NULL: one behind the other */
	const float *const *places;
	/* where the row of each index is, in units of 4 bytes; or NULL */
	const __u32 *offsets;
	__u32 lanes;	    /* enum row_lanes; others than float32 need `offsets` */
	__u32 sum;	    /* enum adjacency_sum */
	const float *steps; /* of each source's row; or NULL: all are 1 */
};

/* What a rank sends: rows of its embeddings, or sums (weighted sums, maxima) over them. */
struct row_source {
	__u32 lanes; /* enum row_lanes */
	__u32 dim;
	__u32 row_bytes;
	__u32 summed; /* it sends rows of `sums` */
	float step;   /* of fixed lanes */
	struct adjacency sums;
};

/* Fixed lanes, and sums of them (include/token_add.h), which make up the rows of a result. */
struct lane_sums {
	__u64 rows;	      /* of the result */
	__u64 targets;	      /* of these, rows with summands */
	const __s64 *numbers; /* their numbers, ascending */
	__u64 dim;	      /* columns */
	const __s64 *indptr;  /* portions of each target: none, if it has one summand */
	const __s64 *starts;  /* of each portion: what the sum of nothing would be */
	const __u64 *places;  /* of each target: where its summand is, if it has one */
	const __u32 *senders; /* of each target's summand */
	const __s64 *weights; /* of each target's summand */
	const float *steps;   /* of the lanes of each sender */
	const double *scales; /* of each target: how many weights are 1 */
	__u32 ranks;	      /* number of steps */
	__u32 blocks;	      /* sums of each portion: so many words of lanes have one */
	__u32 words;	      /* of lanes, in a sum */
	__u32 wide;	      /* lanes have 32 bits, not 16 */
	__u32 maximum;
};
