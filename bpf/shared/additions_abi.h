/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Sizes of what bpf/additions.bpf.c adds. */
#pragma once

enum additions_size {
	ADDITIONS_WORDS = 128, /* 64-bit words of a payload */
	ADDITIONS_STEP = 8,    /* words per iteration of integers */
	ADDITIONS_OFFSET = 16, /* bytes of a frame before its payload, which is aligned to 8 */
};
