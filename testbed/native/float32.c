// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The programs' addition of float32 (bpf/lib/float32.h) for user space, to compare it with the
 * CPU's. */
#include "lib/float32.h"

#include <stddef.h>

void float32_add_each(const __u32 *a, const __u32 *b, __u32 *sums, size_t count);

/* `sums` = `a` + `b`, element by element. */
void float32_add_each(const __u32 *a, const __u32 *b, __u32 *sums, size_t count)
{
	for (size_t i = 0; i < count; i++)
		sums[i] = float32_add(a[i], b[i]);
}
