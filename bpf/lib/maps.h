/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Arrays that the process maps into its memory. Their sizes are set before they are created. */
#pragma once

#include "lib/bpf.h"

#define MAPPED_ARRAY(name, record)                 \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__type(key, __u32);                \
		__type(value, record);             \
	} name SEC(".maps")

/* The same with elements of a size that the loader sets. */
#define MAPPED_BUFFER(name)                        \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__uint(key_size, sizeof(__u32));   \
		__uint(value_size, 8);             \
	} name SEC(".maps")
