/* The bits of a float32. */
#pragma once

#include <stdint.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, 4);
	return bits;
}

ALWAYS float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, 4);
	return x;
}
