/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The maps of one rank. Sizes that depend on the group are set before the programs load. */
#pragma once

#include "lib/bpf.h"
#include "shared/ring_abi.h"

const volatile struct ring_config ring_config = {};

/* Quantized lanes, one chunk per element: written by the process, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, RING_BLOCK);
} ring_inputs SEC(".maps");

/* Their sums over all ranks: written here, read by the process. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, RING_BLOCK);
} ring_results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ring_chunk);
} ring_chunks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ring_control);
} ring_control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RING_EARLY_SLOTS);
	__type(key, __u32);
	__type(value, struct ring_early);
} ring_early_frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RING_EARLY_SLOTS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, RING_BLOCK);
} ring_early_data SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RING_SQ_ENTRIES);
	__type(key, __u32);
	__type(value, struct ring_wr);
} ring_sq SEC(".maps");

/* The doorbell's far end, many times: a broadcast to one of these maps multiplies a frame. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, RING_FAN_SMALL);
	__type(key, __u32);
	__type(value, __u32);
} ring_fan_small SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, RING_FAN_LARGE);
	__type(key, __u32);
	__type(value, __u32);
} ring_fan_large SEC(".maps");

/* The program `ring_execute`, for a kick that is not multiplied. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ring_executor SEC(".maps");

/* The link and the doorbell's far end: for a frame that goes on, and its copy, which becomes a
 * nack. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} ring_fan_nack SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ring_nacks);
} ring_nacks SEC(".maps");

/* By CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ring_stream);
} ring_streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RING_MAX_RANKS);
	__type(key, __u32);
	__type(value, struct ring_rank);
} ring_ranks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ring_retransmit);
} ring_retransmit SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, RING_BLOCK);
} ring_retransmit_data SEC(".maps");

/* The other CPUs; each runs the program `ring_remote` on frames that it gets. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} ring_cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[RING_COUNTERS]);
} ring_counters SEC(".maps");

/* Wakes the process when `wake_at` results are stored; the value is the sequence number. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring_events SEC(".maps");
