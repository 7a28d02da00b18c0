// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Broadcast in TC (after PINCH, MLArchSys 2024): a bell becomes frames of embeddings, each cloned to exactly the ranks that need it.
 *
 * A bell comes from the process, or is a frame that has just opened the window: an acknowledgement, or the last hello that was missing. It
 * is filled from the map, addressed, and cloned to the link, frame after frame and rank after rank; what was the bell is dropped in the end.
 * First come frames that the process has ordered anew, then holes in what a peer has acknowledged, then new frames as far as the window goes.
 */
#include "pinch_hello.h"

#include <linux/pkt_cls.h>

#define PINCH_HOLE_WORDS 3 /* of a peer's bitmap that are searched, before the word of the frame that asked */

struct send_work {
	struct __sk_buff *skb;
	struct pinch_control *control;
	struct pinch_flow *flow;
	__u32 here;  /* its number */
	__u32 homes; /* its ranks */
	__u32 generation;
	__u32 peer; /* who may have holes */
	__u32 word; /* of its bitmap, where to look */
	__u32 before; /* frames before this one */
};

struct copy_work {
	struct ring_frame head;
	struct __sk_buff *skb;
	__u64 check; /* the payload's */
	__u32 to;
	__u32 ask;
	__u32 length;
};

/* Clone the frame in hand to a rank. */
static long send_copy(__u32 rank, struct copy_work *w)
{
	if (!(w->to >> rank & 1))
		return 0;
	w->head.flags = w->ask >> rank & 1;
	address(&w->head, rank, w->length);
	w->head.checksum = w->check + frame_seal(&w->head);
	if (bpf_skb_store_bytes(w->skb, 0, &w->head, sizeof(w->head), 0))
		return 1;
	bpf_clone_redirect(w->skb, config.uplink, 0);
	return 0;
}

/* Send frame `number` to the ranks in `to`. */
static __always_inline bool send_frame(struct send_work *w, __u32 number, struct pinch_frame *frame, __u32 to)
{
	struct copy_work copy = { .skb = w->skb, .to = to, .ask = frame->attempt ? to : frame->ask, .length = frame->length };
	void *payload = bpf_map_lookup_elem(&payloads, &number);
	__u32 length = frame->length, copies = popcount(to), size = sizeof(copy.head) + length;

	if (!payload || length < 8 || length > config.payload)
		return false;
	size = size < PINCH_LEAST_BYTES ? PINCH_LEAST_BYTES : size;
	if (bpf_skb_change_tail(w->skb, size, 0) ||
	    bpf_skb_store_bytes(w->skb, sizeof(copy.head), payload, length, 0))
		return false;
	write_head(&copy.head, PINCH_EMBED, w->generation, number, frame->attempt, w->control->tag);
	copy.check = frame->check;
	frame->sent_us = now_us();
	bpf_loop(config.ranks, send_copy, &copy, 0);
	count(PINCH_SENT, copies);
	count(PINCH_SENT_BYTES, copies * size);
	if (frame->attempt)
		count(PINCH_RESENT, copies);
	return true;
}

static __always_inline bool is_acked(__u32 generation, __u32 number, __u32 rank)
{
	__u32 index = rank * config.acked_words + number / 32;
	__u64 *word = bpf_map_lookup_elem(&acked, &index);

	return word && bits_of(*word, generation) >> number % 32 & 1;
}

struct lack_work {
	__u32 number;
	__u32 generation;
	__u32 to;
	__u32 lacking;
};

static long find_lacking(__u32 rank, struct lack_work *w)
{
	__u32 number = flow_to(rank);
	struct pinch_flow *flow = bpf_map_lookup_elem(&flows, &number);

	/* What has not been sent yet is not sent again. */
	if (flow && w->number < next_of(number, flow, *(volatile __u32 *)&flow->next) && w->to >> rank & 1 && !is_acked(w->generation, w->number, rank))
		w->lacking |= 1u << rank % 32;
	return 0;
}

/* Send a frame again, to those that lack it. */
static __always_inline void send_again(struct send_work *w, __u32 number)
{
	struct pinch_frame *frame = bpf_map_lookup_elem(&frames, &number);
	struct lack_work lack = { .number = number, .generation = w->generation };

	if (!frame || number >= (__u32)w->control->progress)
		return;
	lack.to = frame->to;
	bpf_loop(config.ranks, find_lacking, &lack, 0);
	if (!lack.lacking)
		return;
	frame->attempt++;
	send_frame(w, number, frame, lack.lacking);
}

/* What the process has ordered. */
static long send_ordered(__u32 i, struct send_work *w)
{
	__u32 taken = *(volatile __u32 *)&w->control->taken, slot = taken % PINCH_ORDERS;
	__u64 *order = bpf_map_lookup_elem(&orders, &slot);

	__u64 entry;

	if (!order || taken == *(volatile __u32 *)&w->control->ordered)
		return 1;
	entry = *(volatile __u64 *)order;
	if (__sync_val_compare_and_swap(&w->control->taken, taken, taken + 1) == taken && generation_of(entry) == w->generation)
		send_again(w, entry);
	return 0;
}

/* What later frames have overtaken: bit `i` of the words from `word` on. */
static long send_hole(__u32 i, struct send_work *w)
{
	__u32 number = w->word * 32 + i, index = w->peer * config.acked_words + number / 32;
	__u64 *due = bpf_map_lookup_elem(&wanted, &index);
	struct pinch_frame *frame;

	if (number >= w->before)
		return 1;
	if (!due || !(*due >> number % 32 & 1) || is_acked(w->generation, number, w->peer))
		return 0;
	frame = bpf_map_lookup_elem(&frames, &number);
	if (!frame || !frame->sent_us || now_us() - frame->sent_us < w->control->quench_us)
		return 0;
	frame->attempt++;
	if (send_frame(w, number, frame, 1u << w->peer % RING_MAX_RANKS))
		count(PINCH_GAPS, 1);
	return 0;
}

/* New frames, as far as the window goes. */
static long send_new(__u32 i, struct send_work *w)
{
	__u32 next = *(volatile __u32 *)&w->flow->next, flying = *(volatile __u32 *)&w->flow->flying, to, copies;
	__u32 number = next_of(w->here, w->flow, next);
	struct pinch_frame *frame = bpf_map_lookup_elem(&frames, &number);
	__u64 progress = *(volatile __u64 *)&w->control->progress;

	if (!frame || generation_of(progress) != w->generation || number >= (__u32)progress ||
	    generation_of(*(volatile __u64 *)&w->control->met) != w->generation)
		return 1;
	to = frame->to & w->homes;
	copies = popcount(to);
	if (flying && flying + copies > w->control->window)
		return 1;
	if (__sync_val_compare_and_swap(&w->flow->next, next, next + 1) != next)
		return 0;
	__sync_fetch_and_add(&w->flow->flying, copies);
	send_frame(w, number, frame, to);
	return 0;
}

struct greet_work {
	struct pinch_hello hello;
	struct __sk_buff *skb;
	__u32 generation;
	__u32 partners;
	__u16 tag;
	__u8 attempt;
};

/* Say hello to a rank, the first time or if nothing has come from it. Whose hello is here asks for this rank's by itself. */
static long send_hello(__u32 rank, struct greet_work *w)
{
	struct pinch_peer *peer = bpf_map_lookup_elem(&peers, &rank);
	__u64 word = peer ? word_of(peer->ours, w->generation) : 0;

	if (rank == config.rank || !(w->partners >> rank & 1) || !word || (w->attempt && word_of(peer->theirs, w->generation)))
		return 0;
	write_hello(&w->hello, rank, word, w->tag, w->attempt, w->attempt);
	if (bpf_skb_store_bytes(w->skb, 0, &w->hello, sizeof(w->hello), 0))
		return 1;
	bpf_clone_redirect(w->skb, config.uplink, 0);
	count(PINCH_HELLOS, 1);
	return 0;
}

/* A bell for each flow. */
static __always_inline void ring_all(struct __sk_buff *skb, struct ring_frame *bell)
{
	bell->flags = BELL_FOR_ALL;
	make_own(bell, PINCH_BELL);
	if (bpf_skb_store_bytes(skb, 0, bell, sizeof(*bell), 0))
		return;
	for (__u32 i = 0; i < PINCH_MAX_FLOWS && i < config.fan; i++)
		bpf_clone_redirect(skb, config.bell, 0);
}

static __always_inline void greet_all(struct __sk_buff *skb, struct pinch_control *c, struct ring_frame *bell)
{
	struct greet_work w = { .skb = skb, .generation = generation_of(c->progress), .partners = c->partners, .tag = c->tag };

	w.attempt = bell->attempt;
	if (!bpf_skb_change_tail(skb, PINCH_LEAST_BYTES, 0))
		bpf_loop(config.ranks, send_hello, &w, 0);
	/* The process may have looked for the last hello before, and have left frames to whoever finds it. */
	if (meet(c, w.generation) && (__u32)(*(volatile __u64 *)&c->progress))
		ring_all(skb, bell);
}

/* What a bell rings for. */
static __always_inline void send_all(struct send_work *w, const struct ring_frame *bell)
{
	w->generation = generation_of(*(volatile __u64 *)&w->control->progress);
	if (w->control->taken != w->control->ordered)
		bpf_loop(PINCH_BATCH, send_ordered, w, 0);
	w->peer = bell->sender;
	if (w->peer != config.rank && w->peer < config.ranks && bell->generation == w->generation && bell->chunk > config.gap) {
		w->before = bell->chunk - config.gap;
		w->word = w->before / 32 > PINCH_HOLE_WORDS ? w->before / 32 - PINCH_HOLE_WORDS : 0;
		bpf_loop(32 * (PINCH_HOLE_WORDS + 1), send_hole, w, 0);
	}
	bpf_loop(PINCH_BATCH, send_new, w, 0);
}

/* Is it a bell of this host's, as it was made? */
static __always_inline bool is_bell(const struct ring_frame *bell)
{
	if (is_foreign(bell))
		return false;
	if (bell->receiver != config.rank) {
		count(PINCH_NOT_MINE, 1);
		return false;
	}
	if (bell->kind != PINCH_BELL && bell->kind != PINCH_GREET) {
		count(PINCH_BAD_KIND, 1);
		return false;
	}
	if (bell->checksum != frame_seal(bell)) {
		count(PINCH_BAD_CHECKSUM, 1);
		return false;
	}
	return true;
}

SEC("tc")
int pinch_send(struct __sk_buff *skb)
{
	struct send_work w = { .skb = skb, .control = control_of() };
	struct ring_frame bell;
	__u32 here = flow_here();

	w.flow = bpf_map_lookup_elem(&flows, &here);
	if (!w.control || !w.flow || bpf_skb_load_bytes(skb, 0, &bell, sizeof(bell)) || !is_bell(&bell))
		return TC_ACT_SHOT;
	skb->queue_mapping = bpf_get_smp_processor_id() + 1; /* so that clones stay on this CPU: see netdev_pick_tx */
	if (bell.kind == PINCH_GREET) {
		greet_all(skb, w.control, &bell);
		return TC_ACT_SHOT;
	}
	w.here = here;
	w.homes = config.homes[here % PINCH_MAX_FLOWS];
	__sync_fetch_and_add(&w.control->sending, 1);
	send_all(&w, &bell);
	__sync_fetch_and_add(&w.control->sending, -1);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
