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
};

struct tcp_ring {
	/* connected sockets, blocking, with SO_RCVTIMEO and SO_SNDTIMEO of timeout_ms */
	__s32 left, right;
	__s32 rank, ranks;
	__s32 timeout_ms;
	__s32 slots;	/* blocks in scratch */
	__u64 block;	/* maximum number of elements in a block */
	__u64 segment;	/* maximum number of elements read from the socket at once */
	float *scratch; /* slots * block elements */
	__u64 wait_ns;	/* time in which neither stream moved, cumulative */
	__u64 spin_ns;	/* how long to keep yielding the CPU before sleeping */
};
