/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Frames that land in memory mapped by the process, which adds up their rows.
 *
 * A frame is copied to the first free slot of this CPU's bank and checked there. Only once it is
 * verified and claimed does the slot count as used; otherwise the next frame overwrites it. No
 * other CPU writes to this bank, and programs on one CPU do not interrupt each other.
 */
#pragma once

#include "pinch_work.h"

struct pinch_land_work {
	const __u64 *payload;
	__u64 check; /* so far */
};

static long pinch_land_step(__u32 i, struct pinch_land_work *w)
{
	const __u32 *weight;
	const __u64 *words;
	__u64 check = 0;

	if (i >= pinch_config.steps || i >= PINCH_MAX_STEPS)
		return 1;
	words = &w->payload[i * PINCH_STEP];
	weight = &weights[2 * i * PINCH_STEP];
#pragma unroll
	for (int j = 0; j < PINCH_STEP; j++)
		check += pinch_weigh(words[j], &weight[2 * j]);
	w->check += check;
	return 0;
}

/* Copy a frame to a slot, and check it. NULL: it is damaged, or there is no room, which is the case
 * only if ranks differ in their graphs. */
static __always_inline struct pinch_landed *pinch_land(struct xdp_md *ctx, struct ring_frame *f)
{
	__u64 seal = frame_seal(f), check = f->checksum, *landed;
	__u32 length = f->length, bank = pinch_bank_here(), slot;
	struct pinch_land_work w = {};
	struct pinch_landed *to;
	__u64 *payload;

	if (length < 8 || length > pinch_config.payload || length % 8) {
		pinch_count(DROP_BAD_LENGTH, 1);
		return NULL;
	}
	landed = bpf_map_lookup_elem(&pinch_landed, &bank);
	if (!landed || *landed >= pinch_config.landing) {
		pinch_count(DROP_BAD_CHUNK, 1);
		return NULL;
	}
	slot = bank * pinch_config.landing + *landed;
	to = bpf_map_lookup_elem(&pinch_landing, &slot);
	if (!to)
		return NULL;
	payload = (__u64 *)(to + 1);
	asm volatile("" : "+r"(length)); /* for the verifier, which loses the lower bound */
	if (length < 8)
		return NULL;
	if (bpf_xdp_load_bytes(ctx, sizeof(struct ring_frame), payload, length)) {
		pinch_count(DROP_BAD_LENGTH, 1);
		return NULL;
	}
#pragma unroll
	for (int j = 0; j < PINCH_STEP - 1; j++)
		payload[length / 8 + j] = 0;
	w.payload = payload;
	bpf_loop((length / 8 + PINCH_STEP - 1) / PINCH_STEP, pinch_land_step, &w, 0);
	if (w.check + seal != check) {
		pinch_count(DROP_BAD_CHECKSUM, 1);
		return NULL;
	}
	return to;
}

/* From now on, the slot is in use. */
static __always_inline void pinch_keep(struct pinch_landed *slot, __u32 sender, __u32 rows)
{
	__u32 bank = pinch_bank_here();
	__u64 *landed = bpf_map_lookup_elem(&pinch_landed, &bank);

	slot->sender = sender;
	slot->rows = rows;
	if (landed)
		++*landed;
}
