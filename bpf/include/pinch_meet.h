/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Hellos on their way in. */
#pragma once

#include "pinch_hello.h"

enum pinch_met {
	MET_DONE = 0,
	MET_ANSWER = 1, /* the frame is now the answer */
	MET_ALL = 2,	/* frames may be sent */
};

/* Is it what it says? */
static __always_inline bool is_hello(struct pinch_control *c, struct pinch_hello *hello, void *end)
{
	struct ring_frame *f = &hello->head;

	if (f->tag != (__u16)c->tag) {
		count(PINCH_BAD_TENSOR, 1);
		return false;
	}
	if ((void *)(hello + 1) > end || f->length != sizeof(hello->word)) {
		count(PINCH_BAD_LENGTH, 1);
		return false;
	}
	if (f->generation != generation_of(hello->word) || f->chunk || f->checksum != hello_check(hello)) {
		count(PINCH_BAD_CHECKSUM, 1);
		return false;
	}
	return true;
}

/* What this rank has to say to one that lacks its hello: that of the generation asked for, or if it has not entered it yet, its latest. */
static __always_inline __u64 answer_of(struct pinch_peer *peer, __u32 generation, __u32 mine)
{
	__u64 word = word_of(peer->ours, generation);

	/* Who has no partner in somebody may be any number of generations ahead of it. */
	if (generation == PINCH_FIRST && mine > PINCH_FIRST && !word)
		return (__u64)PINCH_FIRST << 32;
	return word ? word : *(volatile __u64 *)&peer->ours[~generation & 1];
}

/* Returns one of enum pinch_met. */
static __always_inline __u32 on_hello(struct xdp_md *ctx, struct pinch_control *c)
{
	struct pinch_hello *hello = (void *)(long)ctx->data;
	__u32 sender, generation, mine = generation_of(*(volatile __u64 *)&c->progress);
	__u64 word, before, answer;
	struct pinch_peer *peer;
	__u64 *place;
	bool ask;

	if ((void *)(&hello->head + 1) > (void *)(long)ctx->data_end || !is_hello(c, hello, (void *)(long)ctx->data_end))
		return MET_DONE;
	sender = hello->head.sender;
	word = hello->word;
	generation = generation_of(word);
	ask = hello->head.flags & 1;
	peer = bpf_map_lookup_elem(&peers, &sender);
	if (!peer)
		return MET_DONE;
	place = &peer->theirs[generation & 1];
	before = *(volatile __u64 *)place;
	if (generation == mine || generation == generation_after(mine)) {
		if (before && (__s32)(generation - generation_of(before)) <= 0) {
			count(PINCH_DUPLICATE, 1);
		} else if (__sync_val_compare_and_swap(place, before, word) == before) {
			__sync_fetch_and_add(&peer->heard, 1);
			if (generation == mine && meet(c, generation))
				return MET_ALL;
		}
	} else if (generation_after(generation) == mine) {
		__sync_fetch_and_add(&peer->alive, 1);
	} else if (generation != PINCH_FIRST || !ask) {
		count(PINCH_BAD_GENERATION, 1);
		return MET_DONE;
	}
	if (!ask)
		return MET_DONE;
	answer = answer_of(peer, generation, mine);
	hello = (void *)(long)ctx->data;
	if (!answer || (void *)(hello + 1) > (void *)(long)ctx->data_end)
		return MET_DONE;
	write_hello(hello, sender, answer, c->tag, hello->head.attempt, false);
	count(PINCH_HELLOS, 1);
	return MET_ANSWER;
}
