/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What a switch's programs share with its worker. */
#pragma once

#include <linux/types.h>

enum switch_value {
	SWITCH_TO_BRIDGE = 0,  /* index of the counter for frames passed to the bridge */
	SWITCH_MAX_PORTS = 64, /* ports are numbered from 1 */
	/* Bytes of a frame that veth keeps in one piece. XDP cannot copy a longer one: the kernel's
	 * xdpf_clone copies the first piece alone. */
	SWITCH_LINEAR = 3520,
};

struct switch_destination {
	__u32 port;
	__u32 ifindex;
};

struct switch_counters {
	__u64 frames;
	__u64 bytes;
};
