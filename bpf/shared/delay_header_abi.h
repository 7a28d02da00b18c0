/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What a switch's programs prepend to a frame that is to leave later, and redirect into `delay0`.
 *
 * testbed/native/delay_line.c reads it at `delay1`, the other end of the pair, and sends what
 * follows the struct out of `ifindex`, and while the switch has lost its forwarding table
 * (switch_abi.h) out of all other ports, too, but the one that it came in by. Numbers are in host
 * order, but for the ethertype. Times are of CLOCK_MONOTONIC, as bpf_ktime_get_ns() gives them.
 */
#pragma once

#include "net_abi.h"

enum delay_header_value {
	/* IEEE 802: local experimental 2; nothing else in a switch's namespace sends it */
	DELAY_ETHERTYPE = 0x88b6,
	DELAY_COPIES = 8,
};

struct delay_header {
	/* addresses 0, type = htons(DELAY_ETHERTYPE): to the stack, a frame like any other */
	struct net_eth eth;
	__u16 copies;  /* how often the frame is sent, 1..DELAY_COPIES */
	__u32 ifindex; /* the port that it leaves by */
	__u32 link;    /* index in the map `links`; counts where `release` is not 0 */
	__u32 ingress; /* the port that it came in by */
	__u32 reserved;
	/* Reordering: the frame goes when the link's `passed` has reached this, or at `latest`. 0:
	 * it waits for no other frame. Who prepends it has added 1 to the link's `holding` (once a
	 * frame, whatever the copies); the delay line takes it off again.
	 */
	__u64 release;
	__u64 latest;		 /* ns; counts where `release` is not 0 */
	__u64 due[DELAY_COPIES]; /* ns, each copy's: it leaves no sooner; 0 is at once */
};

/* How every element of the map `links` begins: a BPF_MAP_TYPE_ARRAY with BPF_F_MMAPABLE, by sender
 * * 32 + receiver. A program that counts a passing frame while `holding` is not 0 puts a record, of
 * whatever content, into the ring buffer `wakeups`; a full one loses nothing, since the delay line
 * looks at all links that have holdings each time that it wakes up.
 */
struct delay_link {
	__u64 passed;  /* frames of the link that were forwarded, not delayed */
	__u64 holding; /* frames that wait for `passed` to grow; changed by atomic adds only */
};
