/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What a switch's programs prepend to a frame to be sent later, which they redirect into `delay0`.
 *
 * testbed/native/delay_line.c reads it at `delay1`, the other end of the pair, and sends the frame
 * behind the struct out of `ifindex`. While the switch has lost its forwarding table
 * (switch_abi.h), it also sends the frame out of all other ports except the ingress port. Numbers
 * are in host order, except for the ethertype. Times are those of CLOCK_MONOTONIC, as returned by
 * bpf_ktime_get_ns().
 */
#pragma once

#include "net_abi.h"

enum delay_header_value {
	/* IEEE 802: local experimental 2; nothing else in a switch's namespace uses it */
	DELAY_ETHERTYPE = 0x88b6,
	DELAY_COPIES = 8,
};

struct delay_header {
	/* addresses 0, type = htons(DELAY_ETHERTYPE), so the stack sees an ordinary frame */
	struct net_eth eth;
	__u16 copies;  /* how often the frame is sent, 1..DELAY_COPIES */
	__u32 ifindex; /* egress port */
	__u32 link;    /* index in the map `links`; valid if `release` is not 0 */
	__u32 ingress; /* ingress port */
	__u32 reserved;
	/* Reordering: the frame leaves when the link's `passed` has reached this, or at `latest`.
	 * 0: it waits for no other frame. The program that prepends the header adds 1 to the link's
	 * `holding` (once per frame, however many copies there are), and the delay line subtracts
	 * it again.
	 */
	__u64 release;
	__u64 latest;		 /* ns; valid if `release` is not 0 */
	__u64 due[DELAY_COPIES]; /* ns, earliest departure of each copy; 0: at once */
};

/* The start of each element of the map `links`, a BPF_MAP_TYPE_ARRAY with BPF_F_MMAPABLE indexed by
 * sender * 32 + receiver. A program that counts a passing frame while `holding` is not 0 puts a
 * record of any content into the ring buffer `wakeups`. If the buffer is full, nothing is lost,
 * because the delay line looks at all links that hold frames each time it wakes up.
 */
struct delay_link {
	__u64 passed;  /* frames of the link that were forwarded, not delayed */
	__u64 holding; /* frames that wait for `passed` to grow; changed by atomic adds only */
};
