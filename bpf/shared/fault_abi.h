/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Faults as data: the identity of a frame, rules, their verdicts, counters, and log records.
 */
#pragma once

#include "delay_header_abi.h"

enum fate_size {
	FATE_MAX_HOSTS = 32,
	FATE_MAX_RULES = 64,
	FATE_MAX_COPIES = 7, /* in addition to the frame itself */
	FATE_MAX_BITS = 64,  /* flipped in one frame, by all rules together */
	/* first byte that may be corrupted: after Ethernet, IPv4, and UDP or 8 bytes of TCP */
	FATE_FIRST_BYTE = 42,
	FATE_LOOKBACK = 1024, /* number of frames to search for the state of a stream */
	FATE_QUANTILES = 1024,
	FAULT_LINKS = FATE_MAX_HOSTS * FATE_MAX_HOSTS,
	/* kinds of frames other than the ring's: this | the IPv4 protocol */
	FAULT_FOREIGN = 0x80,
};

/* The draws of one rule for one frame. */
enum fault_draw {
	DRAW_MEETS = 0,	     /* whether the rule fires */
	DRAW_STATE = 1,	     /* burst: the stream's next state */
	DRAW_STATIONARY = 2, /* burst: the initial state of a stream */
	DRAW_VALUES = 3,     /* from here on: bits to flip, delays of copies */
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
	__u8 sender; /* ranks of the hosts */
	__u8 receiver;
	__u8 kind; /* enum ring_kind, or FAULT_FOREIGN | the IPv4 protocol */
	__u8 hop;
	__u16 attempt;
	__u16 group;
	__u32 seq;   /* or the number of the flow between these hosts */
	__u32 chunk; /* or the index of the packet in its flow */
};

struct fault_range {
	__u32 first;
	__u32 last;
};

struct fault_rule {
	__u64 p;	  /* probability that it fires, times 2^63; likewise the next three */
	__u64 enter;	  /* burst: a draw below this makes any stream bad */
	__u64 stay;	  /* burst: a draw of at least this makes any stream good */
	__u64 stationary; /* burst: share of bad frames in a long stream */
	__u64 within;	  /* reorder: maximum time that the frame waits, ns */
	__u32 action;	  /* enum fault_action */
	__u32 count;	  /* copies, bits, or number of frames to wait for */
	__u32 quantiles;  /* delay: index of its table */
	__u32 reserved;
	struct fault_range group, seq, chunk, hop, attempt;
	__u32 kinds[8];			 /* one bit per kind */
	__u32 receivers[FATE_MAX_HOSTS]; /* by sender, one bit per receiver */
};

struct fault_rules {
	__u64 seed;
	__u32 count;
	__u32 trace; /* also log frames that met no rule */
	struct fault_rule rules[FATE_MAX_RULES];
};

/* The inverse distribution function of a delay at 0, 1/1024 .. 1, in ns: ascending, less than 2^40
 * apart.
 */
struct fault_quantiles {
	__u64 at[FATE_QUANTILES + 1];
};

struct fault_fired {
	/* copies, first bit flipped, delay of the first copy, frames to wait for; else 0
	 */
	__u64 argument;
	__u32 rule;
	__u32 action;
};

struct fault_verdict {
	__u32 drop;
	__u32 copies; /* in addition to the frame itself */
	__u32 behind; /* number of frames to wait for; 0: none */
	__u32 bits;
	__u32 fired;
	__u32 delayed; /* whether any of `delays` is not 0 */
	__u64 within;  /* ns, the limit for `behind` */
	/* ns, the frame's own first; only the first copies + 1 are valid */
	__u64 delays[FATE_MAX_COPIES + 1];
	__u32 flips[FATE_MAX_BITS]; /* bit offsets from the start of the frame */
	struct fault_fired firings[FATE_MAX_RULES];
};

/* Counters of a link, by sender * FATE_MAX_HOSTS + receiver. Two CPUs may count at once: atomic
 * adds. */
struct fault_link {
	struct delay_link delay; /* the delay line's part; must be first */
	__u64 frames;		 /* frames that had an identity */
	__u64 blocked;
	__u64 limited;
	__u64 lost;	/* frames whose records the log lacks */
	__u64 flows;	/* flows of frames other than the ring's */
	__u64 unplaced; /* frames that could not be delayed or duplicated */
};

/* The maximum rate at which a host sends (or receives): the virtual scheduling algorithm (ITU-T
 * I.371, annex A), a token bucket whose only state is the time at which it would be full.
 */
struct fault_limit {
	__u64 rate;  /* bits per second; 0: no limit */
	__u64 burst; /* ns, time that a full bucket lasts at this rate */
	__u64 full;  /* ns, CLOCK_MONOTONIC */
};

/* One rule that one frame has met. */
struct fault_record {
	__u64 time; /* ns, CLOCK_MONOTONIC */
	struct fault_packet packet;
	__u64 argument; /* as in struct fault_fired */
	__u16 length;	/* length of the frame */
	__u8 rule;
	__u8 action; /* enum fault_action */
	__u8 order;  /* index among the rules that the frame met .. */
	__u8 fired;  /* .. and their number; 0 if it met none */
	__u16 reserved;
};
