/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Maps of the fault programs besides rules: counters, limits, log. User space:
 * testbed/faults/attach.py. */
#pragma once

#include <linux/if_ether.h>

#include "fault.h"
#include "lib/frame.h"

/* enough for more than a second at 100,000 records per second */
#define FAULT_LOG_BYTES (1 << 23)

struct fault_flow_key {
	__u8 sender, receiver, protocol, reserved;
	__u32 source, destination;
	__u32 ports;
};

struct fault_flow {
	__u32 number;
	__u32 packets;
};

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
} blocked SEC(".maps"); /* by sender, one bit per receiver that its frames must not reach */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * FATE_MAX_HOSTS);
	__type(key, __u32);
	__type(value, struct fault_limit);
} limits SEC(".maps"); /* index 2 * rank for what a host sends, 2 * rank + 1 for what it receives */

/* Indexed by rule * FAULT_LINKS + link; the loader sets the size from the number of rules. */
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
} wakeups SEC(".maps"); /* shared/delay_header_abi.h */
