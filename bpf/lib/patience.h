/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* When a rank nacks a frame that it lacks; the ring's programs and its process go by it alike.
 * Reference model: Memory.patience of testbed/protocol/ring/memory.py.
 */
#pragma once

#include <linux/types.h>
#include <stdbool.h>

#include "shared/ring_abi.h"

#define RING_MOST_DOUBLINGS 4 /* of the holdoff between two nacks, while others are answered */
/* Later than that is late: within a poll, XDP sends what it redirects before what it returns. */
#define RING_LEAST_LATE_US 500
#define RING_LATE_DECAY 4 /* a loss shortens the reordering window by this power of two */

/* Frames that arrive this much later than their successor are late, not lost. It is no longer than
 * a round trip takes (RFC 8985): after that, asking is as good as waiting. */
static __always_inline __u32 ring_reorder_window(const struct ring_control *c)
{
	__u32 late = *(volatile const __u32 *)&c->late_us,
	      rto = *(volatile const __u32 *)&c->rto_us;

	return late < rto ? late : rto;
}

/* How long to wait since a frame was found missing, or since it was nacked the last of `tries`
 * times. The time doubles some times, and then up to a quarter of the time for which the previous
 * rank has answered nothing: round trips may have become longer than those that were measured.
 */
static __always_inline __u32 ring_patience(const struct ring_control *c, __u32 tries, __u32 now)
{
	__u64 holdoff = c->nack_holdoff_us, most = holdoff << RING_MOST_DOUBLINGS;
	__u32 unanswered = now - *(volatile const __u32 *)&c->answered_us;

	if (!tries)
		return ring_reorder_window(c);
	holdoff <<= tries <= 16 ? tries - 1 : 15;
	most = most > unanswered / 4 ? most : unanswered / 4;
	holdoff = holdoff < most ? holdoff : most;
	return holdoff < 0x7fffffff ? holdoff : 0x7fffffff;
}

/* Has a frame that this rank lacks been nacked, or found missing, so recently that it is not the
 * time to nack it? */
static __always_inline bool ring_waits(const struct ring_control *c, const struct ring_chunk *chunk,
				       __u32 now)
{
	__u32 nacked = *(volatile const __u32 *)&chunk->nacked_us;

	return nacked && now - nacked < ring_patience(c, chunk->tries, now);
}
