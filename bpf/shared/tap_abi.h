/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the program that copies frames shares with the reader of the copies. */
#pragma once

#include <linux/types.h>

enum tap_size {
	/* room for the largest frame in one piece: 14 bytes of Ethernet and 3506 of IP */
	TAP_BYTES = 3584,
	TAP_ROOM = 1 << 18, /* size of the ring buffer, for 72 frames */
};

struct tapped {
	__u32 length; /* length of the frame in bytes; 0: it could not be copied */
	__u32 pad;
	__u8 data[TAP_BYTES];
};
