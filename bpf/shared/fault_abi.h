/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Faults as data: who a frame is, rules about frames, what they decide, what is counted and logged.
 */
#pragma once

#include "delay_header_abi.h"

enum fate_size {
	FATE_MAX_HOSTS = 32,
	FATE_MAX_RULES = 64,
	FATE_MAX_COPIES = 7, /* besides the frame itself */
	FATE_MAX_BITS = 64,  /* flipped in one frame, by all rules together */
	/* that may be corrupted: behind Ethernet, IPv4, and UDP's header or 8 bytes of TCP's */
	FATE_FIRST_BYTE = 42,
	FATE_LOOKBACK = 1024, /* frames of a stream that are looked at for its state */
	FATE_QUANTILES = 1024,
	FAULT_LINKS = FATE_MAX_HOSTS * FATE_MAX_HOSTS,
	/* kinds of frames that are none of the ring's: this and the IPv4 protocol */
	FAULT_FOREIGN = 0x80,
};

/* Draws of one rule about one frame. */
enum fault_draw {
	DRAW_MEETS = 0,	     /* whether the rule fires */
	DRAW_STATE = 1,	     /* of a burst: the stream's next state */
	DRAW_STATIONARY = 2, /* of a burst: the state that a stream begins in */
	DRAW_VALUES = 3,     /* and on: bits to flip, delays of copies */
};

enum fault_action {
	FAULT_PASS = 0, /* in the log only */
	FAULT_DROP = 1,
	FAULT_DUPLICATE = 2,
	FAULT_CORRUPT = 3,
	FAULT_DELAY = 4,
	FAULT_REORDER = 5,
	FAULT_BURST = 6,
};

struct fault_packet {
	__u8 sender; /* hosts' ranks */
	__u8 receiver;
	__u8 kind; /* enum ring_kind, or 0x80 and the IPv4 protocol */
	__u8 hop;
	__u16 attempt;
	__u16 group;
	__u32 seq;   /* or number of the flow between these hosts */
	__u32 chunk; /* or index of the packet in its flow */
};

struct fault_range {
	__u32 first;
	__u32 last;
};

struct fault_rule {
	__u64 p;	  /* probability that it fires, times 2^63; likewise the next three */
	__u64 enter;	  /* burst: below this, a draw makes any stream bad */
	__u64 stay;	  /* burst: from this on, it makes any stream good */
	__u64 stationary; /* burst: share of bad frames in a long stream */
	__u64 within;	  /* reorder: ns that the frame waits at most */
	__u32 action;	  /* enum fault_action */
	__u32 count;	  /* copies, bits, or frames to be behind */
	__u32 quantiles;  /* delay: index of its table */
	__u32 reserved;
	struct fault_range group, seq, chunk, hop, attempt;
	__u32 kinds[8];			 /* a bit a kind */
	__u32 receivers[FATE_MAX_HOSTS]; /* by sender, a bit a receiver */
};

struct fault_rules {
	__u64 seed;
	__u32 count;
	__u32 trace; /* log frames that no rule met, too */
	struct fault_rule rules[FATE_MAX_RULES];
};

/* A delay's inverse distribution function at 0, 1/1024 .. 1, ns, ascending, less than 2^40 apart.
 */
struct fault_quantiles {
	__u64 at[FATE_QUANTILES + 1];
};

struct fault_fired {
	/* copies, first bit flipped, delay of the first copy, frames to be behind; else 0 */
	__u64 argument;
	__u32 rule;
	__u32 action;
};

struct fault_verdict {
	__u32 drop;
	__u32 copies; /* besides the frame itself */
	__u32 behind; /* frames that go first; 0: none */
	__u32 bits;
	__u32 fired;
	__u32 delayed; /* whether any of `delays` is not 0 */
	__u64 within;  /* ns, of `behind` */
	/* ns, the frame's own first; only copies + 1 of them count */
	__u64 delays[FATE_MAX_COPIES + 1];
	__u32 flips[FATE_MAX_BITS]; /* bits from the frame's start */
	struct fault_fired firings[FATE_MAX_RULES];
};

/* Counters of a link, by sender * FATE_MAX_HOSTS + receiver. Two CPUs may count at once: atomic
 * adds. */
struct fault_link {
	struct delay_link delay; /* the delay line's; first */
	__u64 frames;		 /* that had an identity */
	__u64 blocked;
	__u64 limited;
	__u64 lost;	/* frames of which the log lacks records */
	__u64 flows;	/* of frames that are none of the ring's */
	__u64 unplaced; /* frames that should have waited, or come again, but could not */
};

/* A rate that a host sends (or is sent) at most: the virtual scheduling algorithm (ITU-T I.371,
 * annex A), which is a token bucket whose only state is the time at which it would be full.
 */
struct fault_limit {
	__u64 rate;  /* bits a second; 0: no limit */
	__u64 burst; /* ns, that a full bucket lasts at this rate */
	__u64 full;  /* ns, CLOCK_MONOTONIC */
};

/* One rule that one frame has met. */
struct fault_record {
	__u64 time; /* ns, CLOCK_MONOTONIC */
	struct fault_packet packet;
	__u64 argument; /* as of struct fault_fired */
	__u16 length;	/* of the frame */
	__u8 rule;
	__u8 action; /* enum fault_action */
	__u8 order;  /* 0 of the first rule that the frame met .. */
	__u8 fired;  /* .. of so many; 0 of a frame that none met */
	__u16 reserved;
};
