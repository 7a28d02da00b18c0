/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/sage.c shares with Python. */
#pragma once

#include <linux/types.h>

/* Rows by number: `places` are addresses, in the order of `numbers`; or, without them, rows lie
 * side by side from `base` on. */
struct sage_rows {
	const char *base;
	const __u64 *places;
	const __s32 *numbers;
	__u64 row_bytes;
	__u64 dim; /* columns */
};

/* Which rows are summed up for each of `count` results: senders[indptr[i]] to
 * senders[indptr[i + 1]]. */
struct sage_sums {
	const __s64 *indptr;
	const __s32 *senders;
	__u64 count;
};
