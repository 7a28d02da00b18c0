/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the program that captures frames shares with the reader of the copies. */
#pragma once

#include <linux/types.h>

enum capture_size {
	CAPTURE_BYTES = 16384, /* of a frame, at most; a power of two */
	CAPTURE_ROOM = 1 << 25,
};

struct capture_config {
	__u32 end;  /* number of the link's end */
	__u32 snap; /* bytes of a frame to copy, at most CAPTURE_BYTES */
};

/* The start of a record; the copied bytes follow. */
struct captured {
	__u64 time;   /* CLOCK_MONOTONIC, ns */
	__u32 end;    /* number of the link's end at which the frame arrived */
	__u32 length; /* of the frame, bytes */
	__u32 copied; /* of these, in the record */
	__u32 pad;
};
