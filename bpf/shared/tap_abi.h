/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the program that copies frames shares with who reads the copies. */
#pragma once

#include <linux/types.h>

enum tap_size {
	/* of the largest frame: 3506 bytes of IP (MAX_XDP_MTU) behind Ethernet's 14 */
	TAP_BYTES = 3584,
	TAP_ROOM = 1 << 18, /* of the ring buffer: for 72 frames */
};

struct tapped {
	__u32 length; /* of the frame, bytes; 0: it could not be copied */
	__u32 pad;
	__u8 data[TAP_BYTES];
};
