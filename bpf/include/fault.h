/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The rules in force, as maps. */
#pragma once

#include "lib/bpf.h"
#include "shared/fault_abi.h"

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
