/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What fault programs share with user space besides rules: counters, limits, log. User space: testbed/faults/attach.py. */
#pragma once

#include "fault.h"
#include "held.h"
#include "lib/frame.h"

#define FAULT_FOREIGN 0x80 /* kinds of frames that are none of the ring's: this and the IPv4 protocol */
#define FAULT_LINKS (FATE_MAX_HOSTS * FATE_MAX_HOSTS)
#define FAULT_LOG_BYTES (1 << 23) /* a second and more at 100,000 records a second */

/* Counters of a link, by sender * FATE_MAX_HOSTS + receiver. Two CPUs may count at once: atomic adds. */
struct fault_link {
	struct held_link held; /* the delay line's; first */
	__u64 frames;	       /* that had an identity */
	__u64 blocked;
	__u64 limited;
	__u64 lost;  /* frames of which the log lacks records */
	__u64 flows; /* of frames that are none of the ring's */
	__u64 unplaced; /* frames that should have waited, or come again, but could not */
};

struct fault_flow_key {
	__u8 sender, receiver, protocol, reserved;
	__u32 source, destination;
	__u32 ports;
};

struct fault_flow {
	__u32 number;
	__u32 packets;
};

/* A rate that a host sends (or is sent) at most: the virtual scheduling algorithm (ITU-T I.371, annex A), which is a token
 * bucket whose only state is the time at which it would be full.
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

_Static_assert(sizeof(struct fault_record) == 40, "twin: testbed/faults/log.py");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FATE_MAX_HOSTS);
	__uint(key_size, ETH_ALEN);
	__type(value, __u32);
} hosts SEC(".maps"); /* ranks by MAC */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FAULT_LINKS);
	__type(key, __u32);
	__type(value, struct fault_link);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FATE_MAX_HOSTS);
	__type(key, __u32);
	__type(value, __u64);
} blocked SEC(".maps"); /* by sender, a bit a receiver that its frames do not reach */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * FATE_MAX_HOSTS);
	__type(key, __u32);
	__type(value, struct fault_limit);
} limits SEC(".maps"); /* 2 * rank of what a host sends, and 1 more of what it is sent */

/* Elements by rule * FAULT_LINKS + link; the loader knows how many rules there are. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FAULT_LINKS);
	__type(key, __u32);
	__type(value, __u64);
} fired SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct fault_flow_key);
	__type(value, struct fault_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fault_verdict);
} verdicts SEC(".maps"); /* too large for the stack */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FAULT_LOG_BYTES);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} wakeups SEC(".maps"); /* held.h */
