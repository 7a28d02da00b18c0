/* The phases of the ring by themselves: reduce-scatter, and all-gather or broadcast.
 *
 * Both have a status that is all-reduced, which is also a barrier. In a reduce-scatter, a rank adds
 * its status when all it has to do is done: no rank needs its input any more once the sum is here.
 * In an all-gather, a rank sends its block once the sum is here: then all have entered, so none
 * needs results of the collective before.
 */
#pragma once

#include "ring.h"

/* The values of the block that a chunk is part of: from where in the tensor, and how many bytes of
 * them. `each`: bytes in a whole chunk. */
static uint64_t part_of(const struct ring *r, const struct ring_layout *l, uint32_t chunk,
			uint64_t each, uint64_t *at)
{
	uint32_t blocks = l->root ? 1 : r->ranks,
		 first = l->scattered ? (chunk + r->ranks - 1) % r->ranks : chunk % blocks;
	uint64_t begin = (chunk - l->gathered) / blocks * each;

	*at = first * l->stride + begin;
	return MIN(each, l->share - begin);
}

/* Fill and seal the rest of a chunk; its first `used` bytes are in place. */
static void pad_chunk(struct ring *r, const struct ring_layout *l, uint32_t chunk, uint64_t used)
{
	char *to = r->inputs + (uint64_t)chunk * r->chunk_bytes;

	memset(to + used, 0, l->length - RING_CHECK_BYTES - used);
	lanes_seal(to, l->length, &r->records[chunk]);
}

/* Publish this rank's status, unless one of its values is not finite, and wait for all. */
static int conclude(struct ring *r, const struct ring_layout *l, float *out, int32_t exponent)
{
	uint32_t seq = seq_of(r->control->progress);
	int stored;

	if (r->magnitude >= 0x7f800000)
		return RING_NONFINITE;
	r->error = publish_status(r, l, seq);
	if (r->error)
		return RING_FAILED;
	stored = ring_wait(r, l->total, r->timeout_ns);
	if (stored > 0)
		return ring_complete(r, l, out, exponent);
	r->error = -stored;
	return stored ? RING_FAILED : RING_LATE;
}

/* All scattered chunks may be done at this rank: verify its sums, so that they stay as they are. */
int ring_end_scatter(struct ring *r, const struct ring_layout *l)
{
	uint32_t seq = seq_of(r->control->progress);
	bool all = true;

	for (uint32_t chunk = 0; chunk < l->scattered; chunk++)
		if (!ring_is_done(r, chunk, seq))
			return RING_APART;
	for (uint32_t chunk = (r->rank + 1) % r->ranks; chunk < l->scattered; chunk += r->ranks) {
		__u64 *result = &r->records[chunk].result, word = read_word(result);

		if ((uint8_t)word == RING_RESULT_VERIFIED)
			continue;
		if (!lanes_verify(r->results + (uint64_t)chunk * r->chunk_bytes, l->length)) {
			ring_refuse(r, chunk);
			all = false;
		} else {
			all = __atomic_compare_exchange_n(
				      result, &word, word - RING_RESULT_DONE + RING_RESULT_VERIFIED,
				      false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
			      all;
		}
	}
	if (all)
		return RING_DONE;
	r->error = ring_flush(r);
	return r->error ? RING_FAILED : RING_APART;
}

/* All ranks may have entered the all-gather: then this rank's block can go out. */
static int end_meeting(struct ring *r, const struct ring_layout *l, char *out)
{
	uint32_t seq = seq_of(r->control->progress);
	int stored;

	for (uint32_t chunk = 0; chunk < l->gathered; chunk++)
		if (!ring_is_done(r, chunk, seq))
			return RING_APART;
	r->error = ring_publish(r, seq, l->total);
	if (r->error)
		return RING_FAILED;
	stored = ring_wait(r, l->total, r->timeout_ns);
	if (stored > 0)
		return ring_complete(r, l, (float *)out, 0);
	r->error = -stored;
	return stored ? RING_FAILED : RING_LATE;
}

/* Go on with a collective whose outcome was "apart". */
int ring_go_on(struct ring *r, const struct ring_layout *l, void *out, int32_t exponent)
{
	int outcome;

	if (l->gathered)
		return end_meeting(r, l, out);
	outcome = ring_end_scatter(r, l);
	return outcome == RING_DONE ? conclude(r, l, out, exponent) : outcome;
}

/* Wait for the first part of a collective, and go on with it. */
static int go_on_after(struct ring *r, const struct ring_layout *l, uint32_t target, void *out,
		       int32_t exponent)
{
	int stored = ring_wait(r, target, r->timeout_ns);

	r->error = stored < 0 ? -stored : 0;
	if (stored < 0)
		return RING_FAILED;
	return stored ? ring_go_on(r, l, out, exponent) : RING_APART;
}

/* Reduce-scatter: `x` has a block for each rank, `out` gets the sum of this rank's. */
int ring_scatter(struct ring *r, const struct ring_layout *l, uint32_t seq, uint16_t tag,
		 const char *x, float *out, int32_t exponent)
{
	uint32_t per_chunk = (l->length - RING_CHECK_BYTES) / r->lanes.bytes;
	uint64_t mark = now_ns(), now;

	enter(r, l, seq, tag);
	r->magnitude = 0;
	for (uint32_t chunk = 0; chunk < l->scattered;) {
		uint64_t at,
			n = part_of(r, l, chunk, per_chunk * sizeof(float), &at) / sizeof(float);
		uint32_t magnitude = lanes_quantize(&r->lanes, (const float *)(x + at), n,
						    r->inputs + (uint64_t)chunk * r->chunk_bytes,
						    r->chunk_bytes, per_chunk, r->records + chunk,
						    exponent);

		r->magnitude = MAX(magnitude, r->magnitude);
		if (n < per_chunk)
			pad_chunk(r, l, chunk, n * r->lanes.bytes);
		if (++chunk % l->block && chunk < l->scattered)
			continue;
		now = now_ns();
		r->quantize_ns += now - mark;
		r->error = ring_publish(r, seq, chunk);
		if (r->error)
			return RING_FAILED;
		mark = now_ns();
		r->communicate_ns += mark - now;
	}
	return go_on_after(r, l, l->scattered, out, exponent);
}

/* All-gather, or broadcast: `x` is this rank's block, or at the root of a broadcast the tensor;
 * `out` gets the blocks of all ranks, or the tensor, byte by byte. */
int ring_gather(struct ring *r, const struct ring_layout *l, uint32_t seq, uint16_t tag,
		const char *x, char *out)
{
	uint64_t usable = l->length - RING_CHECK_BYTES, mark = now_ns(), at;
	enter(r, l, seq, tag);
	r->magnitude = 0;
	for (uint32_t chunk = l->gathered; chunk < l->total; chunk++) {
		uint64_t bytes = part_of(r, l, chunk, usable, &at);

		if (!ring_is_mine(r, chunk))
			continue;
		memcpy(r->inputs + (uint64_t)chunk * r->chunk_bytes,
		       x + at - (l->root ? 0 : r->rank * l->stride), bytes);
		pad_chunk(r, l, chunk, bytes);
	}
	r->quantize_ns += now_ns() - mark;
	r->error = publish_status(r, l, seq);
	if (r->error)
		return RING_FAILED;
	return go_on_after(r, l, l->gathered, out, 0);
}
