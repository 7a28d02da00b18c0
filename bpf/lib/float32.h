/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Addition of float32 in integer arithmetic, because BPF has no floating point: exactly IEEE 754's,
 * rounding to nearest, ties to even, with subnormal numbers. Numbers are their bit patterns.
 *
 * NaN: the first operand that is NaN, made quiet; infinities of opposite signs give x86's default
 * NaN. IEEE 754 leaves both choices open.
 */
#pragma once

#include <linux/types.h>

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define FLOAT32_SIGN 0x80000000u
#define FLOAT32_INFINITY 0x7f800000u
#define FLOAT32_QUIET 0x00400000u

/* One of the operands at least is infinite or NaN. */
static __always_inline __u32 float32_add_special(__u32 a, __u32 b)
{
	__u32 a_size = a & ~FLOAT32_SIGN, b_size = b & ~FLOAT32_SIGN;

	if (a_size > FLOAT32_INFINITY)
		return a | FLOAT32_QUIET;
	if (b_size > FLOAT32_INFINITY)
		return b | FLOAT32_QUIET;
	if (a_size != FLOAT32_INFINITY)
		return b;
	if (b_size == FLOAT32_INFINITY && a != b)
		return FLOAT32_SIGN | FLOAT32_INFINITY | FLOAT32_QUIET;
	return a;
}

/* 25 less the number of the highest bit, which is below 23. clang 14 cannot compile __builtin_clz
 * for BPF: it reports an error in its backend, or never ends. */
static __always_inline __u32 float32_zeros(__u32 x)
{
	__u32 zeros = 3;

	if (!(x & 0x7fff80)) {
		x <<= 16;
		zeros += 16;
	}
	if (!(x & 0x7f8000)) {
		x <<= 8;
		zeros += 8;
	}
	if (!(x & 0x780000)) {
		x <<= 4;
		zeros += 4;
	}
	if (!(x & 0x600000)) {
		x <<= 2;
		zeros += 2;
	}
	return zeros + !(x & 0x400000);
}

static __always_inline __u32 float32_add(__u32 a, __u32 b)
{
	__u32 great = a, small = b, exponent, exponent_small, hidden, distance, top, up, result;
	__u64 sum, less;

	if (great << 1 < small << 1) {
		great = b;
		small = a;
	}
	exponent = great >> 23 & 255;
	if (exponent == 255)
		return float32_add_special(a, b);
	exponent_small = small >> 23 & 255;
	/* 1 for a normal number, which has a bit in front of its fraction. Others have the same
	 * exponent as the smallest normal ones. */
	hidden = (exponent + 255) >> 8;
	sum = (__u64)((great & 0x7fffff) | hidden << 23) << 27;
	exponent += 1 - hidden;
	hidden = (exponent_small + 255) >> 8;
	less = (__u64)((small & 0x7fffff) | hidden << 23) << 27;
	exponent_small += 1 - hidden;
	/* Beyond 27 places the smaller number is less than half a unit of any sum, even at 27, so
	 * no bit that matters is ever shifted out. */
	distance = exponent - exponent_small;
	less >>= distance < 27 ? distance : 27;
	if ((great ^ small) & FLOAT32_SIGN)
		sum -= less;
	else
		sum += less;
	if (!sum)
		return a & b & FLOAT32_SIGN;
	/* Shift the highest bit to bit 51, or as far as the exponent allows. Where it is below bit
	 * 49, the numbers were at most one place apart, so bits 26 and up hold the whole sum. */
	top = sum >> 26;
	up = top >> 23 ? 0x0012 >> 4 * (top >> 24) & 3 : float32_zeros(top);
	up = up < exponent ? up : exponent;
	sum <<= up;
	sum += (1u << 27) - 1 + (sum >> 28 & 1);
	/* Bit 51 is added to the exponent, as is the carry of rounding up. */
	result = ((exponent - up) << 23) + (__u32)(sum >> 28);
	if (result > FLOAT32_INFINITY)
		result = FLOAT32_INFINITY;
	return (great & FLOAT32_SIGN) | result;
}
