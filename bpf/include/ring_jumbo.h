/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Payloads of frames with fragments (multi-buffer XDP), read and added to in place.
 *
 * veth lays a frame out in a linear part of RING_LINEAR_FRAME bytes and whole pages. A slice of a
 * dynptr is a pointer into one of them; its length has to be a constant, so a payload is taken in
 * slices of a page, then in smaller ones. There is a global function for each length, so that the
 * verifier walks its loop once, and not for each path that leads there.
 */
#pragma once

#include "lib/frame.h"
#include "ring_maps.h"

#define RING_BLOCK_WORDS (RING_BLOCK / 8)
#define RING_PART 512 /* bytes of a slice where less than a page is left */

extern int bpf_dynptr_from_xdp(struct xdp_md *ctx, __u64 flags,
			       struct bpf_dynptr *frame) __ksym __weak;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *frame, __u32 offset, void *buffer,
				   __u32 buffer__szk) __ksym __weak;

/* Is a payload of this length one that needs fragments? */
static __always_inline bool ring_is_jumbo(__u32 length)
{
	return ring_config.chunk_bytes > RING_LINEAR_BYTES && length > RING_LINEAR_BYTES;
}

/* Where a payload of this length begins in its frame. */
static __always_inline __u32 ring_payload_offset(__u32 length)
{
	return ring_is_jumbo(length) ? RING_JUMBO_OFFSET : sizeof(struct ring_frame);
}

static __always_inline bool ring_has_fragments(struct xdp_md *ctx)
{
	return ring_config.chunk_bytes > RING_LINEAR_BYTES &&
	       bpf_xdp_get_buff_len(ctx) > RING_LINEAR_FRAME;
}

/* The sum of a block's words. */
static __always_inline __u64 ring_block_sum(const __u64 *words)
{
	__u64 total = 0;

#pragma unroll
	for (int i = 0; i < RING_BLOCK_WORDS; i++)
		total += words[i];
	return total;
}

/* The same, after `input` has been added to them. */
static __always_inline __u64 ring_block_add(__u64 *words, const __u64 *input)
{
	__u64 total = 0;

#pragma unroll
	for (int i = 0; i < RING_BLOCK_WORDS; i++) {
		__u64 word = words[i] + input[i];

		words[i] = word;
		total += word;
	}
	return total;
}

/* The words of a slice, `size` bytes; its sum is returned. */
static __always_inline __u64 ring_slice_sum(const __u64 *words, const __u32 size)
{
	__u64 total = 0;

	for (__u32 block = 0; block < size / RING_BLOCK; block++) {
		total += ring_block_sum(words);
		words += RING_BLOCK_WORDS;
	}
	return total;
}

/* The same, after `input` has been added to them. */
static __always_inline __u64 ring_slice_add(__u64 *words, const __u64 *input, const __u32 size)
{
	__u64 total = 0;

	for (__u32 block = 0; block < size / RING_BLOCK; block++) {
		total += ring_block_add(words, input);
		words += RING_BLOCK_WORDS;
		input += RING_BLOCK_WORDS;
	}
	return total;
}

/* Add the slice of `size` bytes at `place` of a payload to *sum. `index`: the chunk whose input is
 * added to it first, or RING_NOTHING. */
static __always_inline int ring_slice(struct xdp_md *ctx, __u32 index, __u32 place,
				      const __u32 size, __u64 *sum)
{
	const void *input;
	struct bpf_dynptr frame;
	__u64 *words;

	/* the first term spares the verifier what a kernel without these functions would refuse */
	if (ring_config.chunk_bytes <= RING_LINEAR_BYTES || !sum ||
	    size > ring_config.chunk_bytes || place > ring_config.chunk_bytes - size ||
	    bpf_dynptr_from_xdp(ctx, 0, &frame))
		return -1;
	words = bpf_dynptr_slice_rdwr(&frame, RING_JUMBO_OFFSET + place, NULL, size);
	if (!words)
		return -1;
	if (index == RING_NOTHING) {
		*sum += ring_slice_sum(words, size);
		return 0;
	}
	input = bpf_map_lookup_elem(&ring_inputs, &index);
	if (!input)
		return -1;
	*sum += ring_slice_add(words, input + place, size);
	return 0;
}

#define RING_SLICE(name, size)                                                        \
	__noinline int name(struct xdp_md *ctx, __u32 index, __u32 place, __u64 *sum) \
	{                                                                             \
		return ring_slice(ctx, index, place, size, sum);                      \
	}

RING_SLICE(ring_slice_head, RING_LINEAR_BYTES)
RING_SLICE(ring_slice_page, RING_PAGE)
RING_SLICE(ring_slice_part, RING_PART)
RING_SLICE(ring_slice_block, RING_BLOCK)

/* *sum = the words' sum. `index`: as of ring_slice. Global, too, as it has many callers. */
__noinline int ring_jumbo(struct xdp_md *ctx, __u32 index, __u32 length, __u64 *sum)
{
	__u32 place = RING_LINEAR_BYTES;
	__u64 total = 0;

	/* the first term spares the verifier of Linux 6.1 loops that it finds too complex */
	if (ring_config.chunk_bytes <= RING_LINEAR_BYTES || !sum ||
	    length > ring_config.chunk_bytes || ring_slice_head(ctx, index, 0, &total))
		return -1;
	for (; place + RING_PAGE <= length; place += RING_PAGE)
		if (ring_slice_page(ctx, index, place, &total))
			return -1;
	for (; place + RING_PART <= length; place += RING_PART)
		if (ring_slice_part(ctx, index, place, &total))
			return -1;
	for (; place + RING_BLOCK <= length; place += RING_BLOCK)
		if (ring_slice_block(ctx, index, place, &total))
			return -1;
	*sum = total;
	return 0;
}
