/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The maps of an exchange by tokens, and what all of its programs do with them. */
#pragma once

#include "lib/maps.h"
#include "lib/word.h"
#include "shared/token_abi.h"

const volatile struct token_config token_config = {};

MAPPED_ARRAY(token_control, struct token_control);
MAPPED_ARRAY(token_outs, struct token_out);   /* `outs` of each parity */
MAPPED_ARRAY(token_order, __u64);	      /* frames as they are sent, `outs` of each parity */
MAPPED_ARRAY(token_slots, struct token_slot); /* `slots` of each parity */
MAPPED_BUFFER(token_payloads);		      /* data to send, by frame */
MAPPED_BUFFER(token_landing);		      /* data that has landed, by slot */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RING_MAX_RANKS);
	__type(key, __u32);
	__type(value, struct token_peer);
} token_peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[TOKEN_COUNTERS]);
} token_counters SEC(".maps");

/* Wakes the process; the value is a sequence number. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} token_events SEC(".maps");

static __always_inline void count(__u32 counter, __u64 by)
{
	__u32 zero = 0;
	__u64 *table = bpf_map_lookup_elem(&token_counters, &zero);

	if (table)
		table[counter] += by;
}

static __always_inline int drop(__u32 reason)
{
	count(reason, 1);
	return XDP_DROP;
}

static __always_inline struct token_control *control_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&token_control, &zero);
}

static __always_inline void wake(__u64 seq)
{
	bpf_ringbuf_output(&token_events, &seq, sizeof(seq), BPF_RB_FORCE_WAKEUP);
}
