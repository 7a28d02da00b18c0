/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/aggregate.c shares with Python. */
#pragma once

#include <linux/types.h>

enum adjacency_sum { ADJACENCY_SUM, ADJACENCY_WEIGHTED, ADJACENCY_MAX };

struct adjacency {
	__u64 rows; /* rows of the result */
	__u64 dim;  /* columns */
	const __s64 *indptr;
	const __s32 *indices;
	const float *weights; /* one per index */
	/* where each row is, instead of one after the other; or NULL */
	const float *const *places;
};
