/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Faults as data: who a frame is, rules about frames, what they decide. Twins: testbed/faults/packet.py, table.py, fate.py. */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define FATE_MAX_HOSTS 32
#define FATE_MAX_RULES 64
#define FATE_MAX_COPIES 7  /* besides the frame itself */
#define FATE_MAX_BITS 64   /* flipped in one frame, by all rules together */
#define FATE_FIRST_BYTE 42 /* that may be corrupted: behind Ethernet, IPv4, and UDP's header or 8 bytes of TCP's */
#define FATE_LOOKBACK 1024 /* frames of a stream that are looked at for its state */
#define FATE_QUANTILES 1024

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
	__u32 generation; /* or number of the flow between these hosts */
	__u32 chunk;	  /* or index of the packet in its flow */
};

struct fault_range {
	__u32 first;
	__u32 last;
};

struct fault_rule {
	__u64 p;	   /* probability that it fires, times 2^63; likewise the next three */
	__u64 enter;	   /* burst: below this, a draw makes any stream bad */
	__u64 stay;	   /* burst: from this on, it makes any stream good */
	__u64 stationary;  /* burst: share of bad frames in a long stream */
	__u64 within;	   /* reorder: ns that the frame waits at most */
	__u32 action;	   /* enum fault_action */
	__u32 count;	   /* copies, bits, or frames to be behind */
	__u32 quantiles;   /* delay: index of its table */
	__u32 reserved;
	struct fault_range group, generation, chunk, hop, attempt;
	__u32 kinds[8];			   /* a bit a kind */
	__u32 receivers[FATE_MAX_HOSTS]; /* by sender, a bit a receiver */
};

struct fault_rules {
	__u64 seed;
	__u32 count;
	__u32 trace; /* log frames that no rule met, too */
	struct fault_rule rules[FATE_MAX_RULES];
};

/* A delay's inverse distribution function at 0, 1/1024 .. 1, ns, ascending, less than 2^40 apart. */
struct fault_quantiles {
	__u64 at[FATE_QUANTILES + 1];
};

struct fault_fired {
	__u64 argument; /* copies, first bit flipped, delay of the first copy, frames to be behind; else 0 */
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
	__u64 delays[FATE_MAX_COPIES + 1]; /* ns, the frame's own first; only copies + 1 of them count */
	__u32 flips[FATE_MAX_BITS];	   /* bits from the frame's start */
	struct fault_fired firings[FATE_MAX_RULES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fault_rules);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* the loader knows how many */
	__type(key, __u32);
	__type(value, struct fault_quantiles);
} quantiles SEC(".maps");
