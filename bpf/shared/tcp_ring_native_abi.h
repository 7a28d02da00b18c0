/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/tcp_ring.c shares with Python. */
#pragma once

#include <linux/types.h>

enum tcp_ring_outcome {
	TCP_RING_DONE,
	TCP_RING_LEFT_FAILED,
	TCP_RING_RIGHT_FAILED,
	TCP_RING_LEFT_SILENT,
	TCP_RING_RIGHT_SILENT,
	TCP_RING_DECLINED, /* nothing has been sent: Python says why */
};

struct tcp_ring {
	/* connected sockets, blocking, with SO_RCVTIMEO and SO_SNDTIMEO of timeout_ms */
	__s32 left, right;
	__s32 rank, ranks;
	__s32 timeout_ms;
	__s32 slots;   /* blocks in scratch */
	__u64 block;   /* maximum number of bytes in a block, a multiple of 8 */
	__u64 segment; /* maximum number of bytes read from the socket at once, as well */
	char *scratch; /* slots * block + segment bytes */
	__u64 wait_ns; /* time in which neither stream moved, cumulative */
	__u32 root;    /* of a broadcast */
	__u32 pad;
	__u64 spin_ns;	/* how long to keep yielding the CPU before sleeping */
	__u64 capacity; /* maximum number of float32 elements in an all-reduce */
	__u64 total_ns; /* time spent in all-reduces, waits included */
};

/* What a rank does with its values and those that it receives. */
enum tcp_ring_op {
	TCP_RING_SUM,
	TCP_RING_MIN,
	TCP_RING_MAX,
};

/* Types of values. */
enum tcp_ring_type {
	TCP_RING_FLOAT32,
	TCP_RING_FLOAT64,
	TCP_RING_INT32,
	TCP_RING_INT64,
};

/* What a call does: the steps of the ring that it takes. */
enum tcp_ring_operation {
	TCP_RING_ALL_REDUCE,
	TCP_RING_REDUCE_SCATTER, /* the first ranks - 1 */
	TCP_RING_ALL_GATHER,	 /* the others */
	TCP_RING_BROADCAST,	 /* the others, with a block of the root alone */
};
