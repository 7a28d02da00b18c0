/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Work on whole payloads: 64-bit words whose lanes never carry into each other
 * (testbed/protocol/lanes.py).
 *
 * Lengths are whole blocks, so one bounds check serves eight words. Pointers advance by constants,
 * because the verifier tracks the range of a packet pointer then, and loses it with a variable
 * offset. Every function returns 0, or -1 when the frame is too short.
 * Payloads that do not fit the linear part of a frame are in ring_jumbo.h.
 */
#pragma once

#include "ring_jumbo.h"

#define RING_FOR_EACH_BLOCK(blocks) \
	for (__u32 block = 0; block < RING_LINEAR_BLOCKS && block < (blocks); block++)

/* Whole blocks in a payload. The bound tells the verifier that map values are long enough. */
static __always_inline __u32 ring_blocks_of(__u32 length)
{
	__u32 blocks = length / RING_BLOCK, most = ring_config.chunk_bytes / RING_BLOCK;

	return blocks > most ? most : blocks;
}

/* Prefetch a payload's cache lines, with loads that nothing waits for. Frames arrive in bursts,
 * chunk after chunk of one owner, and the inputs and results of a large tensor are in memory, not
 * in a cache.
 */
static __always_inline void ring_payload_touch(const void *payload)
{
	if (!payload)
		return;
	for (__u32 line = 0;
	     line < RING_LINEAR_BLOCKS && line < ring_config.chunk_bytes / RING_BLOCK; line++)
		(void)*(volatile const __u64 *)(payload + line * RING_BLOCK);
}

/* input or result -> frame. The helper is a memcpy with the CPU's own string instructions. */
static __always_inline int ring_payload_fill(struct xdp_md *ctx, void *from, __u32 length)
{
	if (length < RING_BLOCK || length > ring_config.chunk_bytes)
		return -1;
	return bpf_xdp_store_bytes(ctx, ring_payload_offset(length), from, length);
}

/* frame -> result, retransmit buffer or early-frame buffer. */
static __always_inline int ring_payload_take(struct xdp_md *ctx, void *to, __u32 length)
{
	/* for the verifier: clang may test a copy of the length, whose bounds do not count here */
	barrier_var(length);
	if (length < RING_BLOCK || length > ring_config.chunk_bytes)
		return -1;
	return bpf_xdp_load_bytes(ctx, ring_payload_offset(length), to, length);
}

/* *sum = the words' sum */
__noinline int ring_payload_sum(struct xdp_md *ctx, __u32 length, __u64 *sum)
{
	void *data_end = (void *)(long)ctx->data_end;
	__u32 blocks = ring_blocks_of(length);
	const __u64 *words = (void *)(long)ctx->data + sizeof(struct ring_frame);
	__u64 total = 0;

	if (!sum) /* for the verifier */
		return -1;
	if (ring_is_jumbo(length))
		return ring_jumbo(ctx, RING_NOTHING, length, sum);
	RING_FOR_EACH_BLOCK(blocks)
	{
		/* clang would compare with data_end + 1, which the verifier does not allow */
		barrier_var(data_end);
		if ((void *)(words + RING_BLOCK_WORDS) > data_end)
			return -1;
		total += ring_block_sum(words);
		words += RING_BLOCK_WORDS;
	}
	*sum = total;
	return 0;
}

/* frame += input of the chunk; *sum = the words' sum */
__noinline int ring_payload_add(struct xdp_md *ctx, __u32 index, __u32 length, __u64 *sum)
{
	const __u64 *input = bpf_map_lookup_elem(&ring_inputs, &index);
	void *data_end = (void *)(long)ctx->data_end;
	__u32 blocks = ring_blocks_of(length);
	__u64 *words = (void *)(long)ctx->data + sizeof(struct ring_frame);
	__u64 total = 0;

	if (ring_is_jumbo(length))
		return ring_jumbo(ctx, index, length, sum);
	if (!input || !sum) /* the latter for the verifier */
		return -1;
	RING_FOR_EACH_BLOCK(blocks)
	{
		if ((void *)(words + RING_BLOCK_WORDS) > data_end)
			return -1;
		total += ring_block_add(words, input);
		words += RING_BLOCK_WORDS;
		input += RING_BLOCK_WORDS;
	}
	*sum = total;
	return 0;
}
