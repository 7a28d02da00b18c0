/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The maps of one exchange. Sizes that depend on the graph are set before the programs load. */
#pragma once

#include "lib/maps.h"
#include "shared/pinch_abi.h"

const volatile struct pinch_config pinch_config = {};

MAPPED_ARRAY(pinch_control, struct pinch_control);
MAPPED_ARRAY(pinch_frames, struct pinch_frame); /* frames to send, by number */
MAPPED_ARRAY(pinch_flows, struct pinch_flow);
/* numbers of each flow's frames, ascending: `capacity` per flow */
MAPPED_ARRAY(pinch_schedule, __u64);
MAPPED_ARRAY(pinch_sent, struct pinch_sent); /* what was sent, by number: `capacity` per flow */
/* vertices of other ranks, by rank and by number at their owner */
MAPPED_ARRAY(pinch_vertices, struct pinch_vertex);
MAPPED_ARRAY(pinch_edges, struct pinch_edge);
MAPPED_ARRAY(pinch_hubs, struct pinch_hub);
MAPPED_ARRAY(pinch_hub_queue, __u64); /* seq << 32 | slot in `pinch_hubs` */
/* frames to retransmit, as seq << 32 | number: PINCH_SQ_ENTRIES per flow */
MAPPED_ARRAY(pinch_sq, __u64);
/* Bitmaps, as seq << 32 | 32 frames. A word with another sequence number counts as empty, so words
 * do not have to be cleared, and a late frame of an earlier number cannot set bits. */
MAPPED_ARRAY(pinch_seen, __u64);  /* frames that have arrived, by sender */
MAPPED_ARRAY(pinch_acked, __u64); /* frames that peers have acknowledged: `acked_words` per peer */
/* frames that a peer needs, likewise, but without a sequence number */
MAPPED_ARRAY(pinch_wanted, __u64);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RING_MAX_RANKS);
	__type(key, __u32);
	__type(value, struct pinch_peer);
} pinch_peers SEC(".maps");

/* Payloads to send; an element has room for that of a full frame. */
MAPPED_BUFFER(pinch_payloads);

/* Payload rows of hubs, while they are added. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 8);
} pinch_pending SEC(".maps");

/* What has been received so far: `targets` rows per bank, bank after bank. */
MAPPED_BUFFER(pinch_accumulators);

/* Frames whose rows the process adds up: `landing` elements per bank, and how many of them are in
 * use. */
MAPPED_BUFFER(pinch_landing);
MAPPED_ARRAY(pinch_landed, __u64);

struct pinch_scratch {
	__u64 raw[PINCH_MAX_WORDS + PINCH_STEP];
	__u64 wide[2 * PINCH_STEP * PINCH_MAX_STEPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pinch_scratch);
} pinch_scratch SEC(".maps");

/* The doorbell and the link: for an acknowledgement, and its copy, which goes on with a hub. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} pinch_both SEC(".maps");

/* The doorbell, once for each flow: a broadcast makes a kick for each. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pinch_fan SEC(".maps");

/* The CPU that aggregates. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} pinch_cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[PINCH_COUNTERS]);
} pinch_counters SEC(".maps");

/* Wakes the process; the value is the sequence number. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} pinch_events SEC(".maps");
