// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What adding costs, by kind of lane: each program adds an input and a frame's payload.
 * `testbed bench additions` times them by BPF_PROG_TEST_RUN, and subtracts what `add_nothing`
 * takes.
 *
 * The payload is first copied to a buffer of this CPU, so that all kinds read it in the same way.
 * Sums are stored elsewhere, so that each of many runs adds the same numbers.
 */
#include "lib/float32.h"
#include "lib/maps.h"
#include "shared/additions_abi.h"

struct additions_payload {
	__u64 words[ADDITIONS_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct additions_payload);
} payload SEC(".maps");

MAPPED_ARRAY(input, struct additions_payload);
MAPPED_ARRAY(sums, struct additions_payload);

struct additions_work {
	__u64 *sums;
	const __u64 *a; /* the payload */
	const __u64 *b; /* the input */
};

/* Eight words in which lanes lie side by side with room between them: four of 16 bits or two of 32
 * (testbed/protocol/lanes.py). */
static long add_words(__u32 step, struct additions_work *w)
{
	if (step >= ADDITIONS_WORDS / ADDITIONS_STEP)
		return 1;
#pragma unroll
	for (int i = 0; i < ADDITIONS_STEP; i++)
		w->sums[step * ADDITIONS_STEP + i] =
			w->a[step * ADDITIONS_STEP + i] + w->b[step * ADDITIONS_STEP + i];
	return 0;
}

/* The same with one number of 32 bits at a time. */
static long add_integers(__u32 step, struct additions_work *w)
{
	const __u32 *a = (const __u32 *)w->a, *b = (const __u32 *)w->b;
	__u32 *sums = (__u32 *)w->sums;

	if (step >= ADDITIONS_WORDS / ADDITIONS_STEP)
		return 1;
#pragma unroll
	for (int i = 0; i < 2 * ADDITIONS_STEP; i++)
		sums[2 * step * ADDITIONS_STEP + i] =
			a[2 * step * ADDITIONS_STEP + i] + b[2 * step * ADDITIONS_STEP + i];
	return 0;
}

/* Floats, by lib/float32.h: one word at a time, because each addition branches, and the verifier
 * walks through all of them. */
static long add_floats(__u32 word, struct additions_work *w)
{
	__u64 a, b;

	if (word >= ADDITIONS_WORDS)
		return 1;
	a = w->a[word];
	b = w->b[word];
	w->sums[word] = (__u64)float32_add(a >> 32, b >> 32) << 32 | float32_add(a, b);
	return 0;
}

static __always_inline int load(struct xdp_md *ctx, struct additions_work *w)
{
	__u32 zero = 0;
	struct additions_payload *a = bpf_map_lookup_elem(&payload, &zero),
				 *b = bpf_map_lookup_elem(&input, &zero),
				 *to = bpf_map_lookup_elem(&sums, &zero);

	if (!a || !b || !to || bpf_xdp_load_bytes(ctx, ADDITIONS_OFFSET, a, sizeof(*a)))
		return -1;
	w->a = a->words;
	w->b = b->words;
	w->sums = to->words;
	return 0;
}

SEC("xdp")
int add_nothing(struct xdp_md *ctx)
{
	struct additions_work w = {};

	return load(ctx, &w) ? XDP_ABORTED : XDP_TX;
}

SEC("xdp")
int add_packed(struct xdp_md *ctx)
{
	struct additions_work w = {};

	if (load(ctx, &w))
		return XDP_ABORTED;
	bpf_loop(ADDITIONS_WORDS / ADDITIONS_STEP, add_words, &w, 0);
	return XDP_TX;
}

SEC("xdp")
int add_int32(struct xdp_md *ctx)
{
	struct additions_work w = {};

	if (load(ctx, &w))
		return XDP_ABORTED;
	bpf_loop(ADDITIONS_WORDS / ADDITIONS_STEP, add_integers, &w, 0);
	return XDP_TX;
}

SEC("xdp")
int add_float32(struct xdp_md *ctx)
{
	struct additions_work w = {};

	if (load(ctx, &w))
		return XDP_ABORTED;
	bpf_loop(ADDITIONS_WORDS, add_floats, &w, 0);
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
