// Find the rows of an exchange in the frames that have landed: testbed/exchange/pinch/landings.py.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shared/pinch_native_abi.h"

static uint64_t take(struct pinch_landings *l, const struct pinch_format *f,
		     const struct pinch_landed *frame)
{
	const __u64 *payload = (const __u64 *)(frame + 1);
	const uint32_t *numbers = (const uint32_t *)payload;
	uint32_t first = l->first[frame->sender], count = l->first[frame->sender + 1] - first;
	uint32_t part = f->parts > 1 ? numbers[1] : 0;
	const __u64 *row = payload + (frame->rows + 1) / 2;
	size_t each = (size_t)f->words * 8 / sizeof(float), at = part * each;
	uint64_t found = 0;

	for (uint32_t i = 0; i < frame->rows; i++, row += f->words) {
		int32_t halo = numbers[i] < count ? l->halo_of[first + numbers[i]] : -1;

		if (halo < 0 || at >= f->dim) {
			l->redundant++;
			continue;
		}
		if (l->matrix)
			memcpy(l->matrix + (size_t)halo * f->dim + at, row,
			       (f->dim - at < each ? f->dim - at : each) * sizeof(float));
		else
			l->rows[halo] = (const float *)row;
		found++;
	}
	return found;
}

// Find all rows; `rows` then has the place of each. Returns the number of those that have landed, a
// row in several parts as often.
uint64_t pinch_find_rows(struct pinch_landings *l, const struct pinch_format *f);

uint64_t pinch_find_rows(struct pinch_landings *l, const struct pinch_format *f)
{
	uint64_t found = 0;

	for (uint32_t bank = 0; bank < l->banks; bank++) {
		const char *frame = l->frames + (size_t)bank * l->slots * l->stride;

		for (uint64_t i = 0; i < l->landed[bank]; i++, frame += l->stride)
			found += take(l, f, (const struct pinch_landed *)frame);
	}
	return found;
}
