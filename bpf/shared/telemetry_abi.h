/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the telemetry program (bpf/telemetry.bcc.c) shares with the process that reads its maps. */
#pragma once

#include <linux/types.h>

enum telemetry_size {
	TELEMETRY_KERNEL_FRAMES = 64, /* of a stack, innermost first; outer ones are cut off */
	TELEMETRY_USER_FRAMES = 16,
	TELEMETRY_PAGES = 4096, /* of the ring buffer of samples: 16 MiB, 15 s of two busy CPUs */
	TELEMETRY_POLL_PAGES = 64,
	TELEMETRY_TASKS = 8192, /* threads whose waits are followed */
	TELEMETRY_COUNTS = 16384,
	TELEMETRY_NODES = 256,
};

/* `detail` of TELEMETRY_OFF_CPU that is no system call's number */
enum telemetry_wait {
	TELEMETRY_PREEMPTED = 1 << 20,
	TELEMETRY_NO_SYSCALL, /* for example a page fault */
};

enum telemetry_kind {
	TELEMETRY_SYSCALL,    /* detail: number; sum: positive return values */
	TELEMETRY_OFF_CPU,    /* detail: system call or enum telemetry_wait; sum: ns */
	TELEMETRY_WAKEUP,     /* detail: log2 of the latency in ns; sum: ns */
	TELEMETRY_DROP,	      /* detail: enum skb_drop_reason */
	TELEMETRY_RETRANSMIT, /* TCP segments */
	TELEMETRY_TRANSMIT,   /* skbs given to a device; sum: bytes */
	TELEMETRY_RECEIVE,    /* skbs received from a device; sum: bytes */
	TELEMETRY_SOFTIRQ,    /* detail: vector; sum: ns */
};

/* What a CPU did at one tick of its clock. */
struct telemetry_sample {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 pid;
	__u32 tid;
	__u32 task_netns;   /* inode of the task's network namespace */
	__u32 device_netns; /* that of the device of the last skb, if a poll is under way; or 0 */
	__u32 poll;	    /* names the telemetry_poll that tells for whom the next poll was */
	__u16 cpu;
	__u8 kernel_frames;
	__u8 user_frames;
	__u64 kernel[TELEMETRY_KERNEL_FRAMES];
	__u64 user[TELEMETRY_USER_FRAMES];
};

/* For whom a CPU polled a device after it was sampled. */
struct telemetry_poll {
	__u32 cpu;
	__u32 poll;
	__u32 netns;
	__u32 pad;
};

struct telemetry_key {
	__u32 netns;
	__u32 kind; /* enum telemetry_kind */
	__u32 detail;
};

struct telemetry_count {
	__u64 count;
	__u64 sum;
};
