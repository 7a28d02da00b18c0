/* Statistics of a delay line's lateness. */
#pragma once

#include "shared/delay_abi.h"

/* A copy was sent, `ns` after it was due. Buckets are exact below DELAY_STEPS, then there are
 * DELAY_STEPS per octave. */
static inline void delay_line_sent(struct delay_line *line, __u64 ns)
{
	int shift = 63 - __builtin_clzll(ns | DELAY_STEPS) - __builtin_ctz(DELAY_STEPS);

	line->sent++;
	line->late += ns > DELAY_LATE_NS;
	line->lateness[shift * DELAY_STEPS + (ns >> shift)]++;
}
