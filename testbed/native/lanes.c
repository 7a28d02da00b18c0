/* lanes.h for Python: the same functions, exported under the names that NativeLanes asks for. */
#include "lanes.h"

uint32_t absmax(const float *x, size_t n)
{
	return lanes_absmax(x, n);
}

size_t find_nonfinite(const float *x, size_t n)
{
	return lanes_find_nonfinite(x, n);
}

int32_t exponent_for(const struct lanes *lanes, uint32_t magnitude)
{
	return lanes_exponent_for(lanes, magnitude);
}

uint32_t quantize(const struct lanes *lanes, const float *x, size_t n, void *out, size_t stride,
		  size_t per_chunk, struct ring_chunk *records, int32_t exponent)
{
	return lanes_quantize(lanes, x, n, out, stride, per_chunk, records, exponent);
}

void seal(char *chunk, size_t bytes, struct ring_chunk *record)
{
	lanes_seal(chunk, bytes, record);
}

size_t dequantize(const struct lanes *lanes, const void *sums, size_t n, size_t stride,
		  size_t per_chunk, float *x, int32_t exponent)
{
	return lanes_dequantize(lanes, sums, n, stride, per_chunk, x, exponent, n >= STREAM);
}
