/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the delay line (testbed/native/delay_line.c) shares with its controller, which sets the
 * first part. */
#pragma once

#include "switch_abi.h"

enum delay_value {
	DELAY_LATE_NS = 500000,
	/* histogram buckets between a power of two and the next: bounds are 12.5 % apart */
	DELAY_STEPS = 8,
	DELAY_BUCKETS = 62 * DELAY_STEPS,
};

struct delay_line {
	__u64 capacity; /* frames */
	__u64 room;	/* bytes per frame, struct delay_header included */
	__u64 link_stride, links;
	__u64 wakeups;		      /* bytes of the ring buffer */
	__u64 port[SWITCH_MAX_PORTS]; /* ifindexes of the switch's ports, 0 after the last */

	__u64 realtime; /* 1: under SCHED_FIFO */
	__u64 received; /* frames received, those dropped as `full` included */
	__u64 sent;	/* copies, like all counters below */
	__u64 late;	/* copies sent more than DELAY_LATE_NS late */
	__u64 full;	/* dropped: the memory was full */
	__u64 refused;	/* dropped: the port refused them */
	__u64 closed;	/* dropped: still waiting at the end */
	__u64 invalid;	/* frames that none of our programs has written */
	__u64 lateness[DELAY_BUCKETS];
};
