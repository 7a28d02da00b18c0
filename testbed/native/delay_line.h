/* What the delay line shares with the side that controls it, which sets the first part. Twin: testbed/faults/delay_counters.py. */
#pragma once

#include <stdint.h>

#define LATE_NS 500000
#define STEPS 8 /* histogram buckets between a power of two and the next: bounds are 12.5 % apart */
#define BUCKETS (62 * STEPS)
#define PORTS 64 /* SWITCH_MAX_PORTS of bpf/include/forward.h */

struct delay_line {
	uint64_t capacity; /* frames */
	uint64_t room;	   /* bytes a frame, struct held included */
	uint64_t link_stride, links;
	uint64_t wakeups; /* bytes of the ring buffer */
	uint64_t port[PORTS]; /* indices of the switch's ports, 0 behind the last */

	uint64_t realtime; /* 1: under SCHED_FIFO */
	uint64_t received; /* frames taken in, full ones too */
	uint64_t sent;	   /* copies, as all that follow */
	uint64_t late;	   /* of those sent, by more than LATE_NS */
	uint64_t full;	   /* dropped: no room */
	uint64_t refused;  /* dropped: the port did not take them */
	uint64_t closed;   /* dropped: still held at the end */
	uint64_t invalid;  /* frames that no program of ours has written */
	uint64_t lateness[BUCKETS];
};

/* A copy was sent, `ns` after it was due. Buckets grow with the number: exact below STEPS, then STEPS to an octave. */
static inline void delay_line_sent(struct delay_line *line, uint64_t ns)
{
	int shift = 63 - __builtin_clzll(ns | STEPS) - __builtin_ctz(STEPS);

	line->sent++;
	line->late += ns > LATE_NS;
	line->lateness[shift * STEPS + (ns >> shift)]++;
}
