/* How punctual a delay line is. */
#pragma once

#include "shared/delay_abi.h"

/* A copy was sent, `ns` after it was due. Buckets grow with the number: exact below DELAY_STEPS,
 * then DELAY_STEPS to an octave. */
static inline void delay_line_sent(struct delay_line *line, __u64 ns)
{
	int shift = 63 - __builtin_clzll(ns | DELAY_STEPS) - __builtin_ctz(DELAY_STEPS);

	line->sent++;
	line->late += ns > DELAY_LATE_NS;
	line->lateness[shift * DELAY_STEPS + (ns >> shift)]++;
}
