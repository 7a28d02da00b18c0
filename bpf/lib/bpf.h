/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What every program needs from the kernel and the compiler, and the clock. */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef barrier
#define barrier() asm volatile("" ::: "memory")
#endif

static __always_inline __u32 now_us(void)
{
	return bpf_ktime_get_ns() / 1000;
}
