/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Acknowledgements. Each carries the bitmap of the frames around the one that it answers. So it
 * covers many frames, and repeats the content of acknowledgements that were lost. */
#pragma once

#include "pinch_receive.h"

struct pinch_ack_work {
	__u64 words[PINCH_ACK_WORDS];
	__u64 check; /* check of the words */
	__u32 seq;
	__u32 first;  /* first of the words */
	__u32 end;    /* end of the bitmap */
	__u32 offset; /* offset of the bitmap in its map */
	__u32 number; /* the frame that asked */
	__u32 news;   /* frames that no earlier acknowledgement has covered */
	__u32 holes;
};

static long pinch_read_seen(__u32 i, struct pinch_ack_work *w)
{
	__u32 index = w->offset + w->first + i, bits = 0;
	__u64 *word = bpf_map_lookup_elem(&pinch_seen, &index);

	if (i >= PINCH_ACK_WORDS)
		return 1;
	if (word && w->first + i < w->end)
		bits = bitmap_bits(*word, w->seq);
	w->words[i] = bits;
	w->check += pinch_weigh(bits, &weights[2 * i]);
	return 0;
}

/* The words for an exchange that is over: all frames have arrived. */
static long pinch_fill_seen(__u32 i, struct pinch_ack_work *w)
{
	if (i >= PINCH_ACK_WORDS)
		return 1;
	w->words[i] = 0xffffffff;
	w->check += pinch_weigh(0xffffffff, &weights[2 * i]);
	return 0;
}

/* May this frame have overtaken others of its stream? If it arrived on the CPU that aggregates, it
 * may have overtaken frames that arrived on another CPU and are still being handed over. Frames
 * that are handed over keep their order among themselves.
 */
static __always_inline bool pinch_may_overtake(struct pinch_control *c, bool by_link)
{
	return by_link && (__s32)(*(volatile __u32 *)&c->handed - *(volatile __u32 *)&c->taken) > 0;
}

/* Turn the frame into an acknowledgement to its sender. */
static __always_inline bool pinch_acknowledge(struct xdp_md *ctx, struct pinch_control *c,
					      bool by_link)
{
	const int want = sizeof(struct pinch_ack);
	int have = bpf_xdp_get_buff_len(ctx);
	const volatile struct pinch_source *source;
	struct pinch_ack_work w = {};
	struct pinch_ack *ack;
	__u32 sender;

	if (have != want && bpf_xdp_adjust_tail(ctx, want - have))
		return false;
	ack = (void *)(long)ctx->data;
	if ((void *)(ack + 1) > (void *)(long)ctx->data_end)
		return false;
	sender = ack->head.sender % RING_MAX_RANKS;
	source = &pinch_config.sources[sender];
	w.seq = ack->head.seq;
	w.first = pinch_ack_first(ack->head.number);
	w.offset = source->seen;
	w.end = (source->frames + 31) / 32;
	if (w.seq == seq_of(c->progress))
		bpf_loop(PINCH_ACK_WORDS, pinch_read_seen, &w, 0);
	else
		bpf_loop(PINCH_ACK_WORDS, pinch_fill_seen, &w, 0);
	ack = (void *)(long)ctx->data;
	if ((void *)(ack + 1) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(ack->words, w.words, sizeof(w.words));
	ack->head.kind = PINCH_ACK;
	ack->head.sender = pinch_config.rank;
	ack->head.flags = 0;
	if (pinch_may_overtake(c, by_link))
		ack->head.stream = PINCH_NO_STREAM;
	pinch_address(&ack->head, sender, sizeof(w.words));
	ack->head.checksum = w.check + frame_seal(&ack->head);
	pinch_count(PINCH_ACKS, 1);
	return true;
}

static long pinch_weigh_ack(__u32 i, struct pinch_ack_work *w)
{
	if (i >= PINCH_ACK_WORDS)
		return 1;
	w->check += pinch_weigh(w->words[i], &weights[2 * i]);
	return 0;
}

/* The bits for frames up to `number` in a word of a bitmap. */
static __always_inline __u32 pinch_up_to(__u32 number, __u32 word)
{
	return word < number / 32   ? 0xffffffff
	       : word > number / 32 ? 0
				    : 0xffffffff >> (31 - number % 32);
}

static long pinch_note_acked(__u32 i, struct pinch_ack_work *w)
{
	__u32 word = w->first + i, index = w->offset + word, fresh;
	__u64 *due = bpf_map_lookup_elem(&pinch_wanted, &index);

	if (!due || word >= w->end || i >= PINCH_ACK_WORDS)
		return 1;
	bitmap_add(&pinch_acked, index, w->seq, *due & w->words[i], &fresh);
	w->news += bitmap_count(fresh);
	w->holes |= *due & ~w->words[i] & pinch_up_to(w->number, word);
	return 0;
}

/* Is the acknowledgement intact? Its words are copied to the stack. */
static __always_inline bool pinch_load_ack(struct xdp_md *ctx, struct pinch_control *c,
					   struct ring_frame *f, struct pinch_ack_work *w)
{
	struct pinch_ack *ack = (void *)(long)ctx->data;
	__u64 check = f->checksum, seal = frame_seal(f);

	if (f->seq != seq_of(c->progress)) {
		pinch_count(DROP_BAD_SEQ, 1);
		return false;
	}
	if (f->number >= (__u32)c->progress) {
		pinch_count(DROP_BAD_CHUNK, 1);
		return false;
	}
	if ((void *)(ack + 1) > (void *)(long)ctx->data_end || f->length != sizeof(ack->words)) {
		pinch_count(DROP_BAD_LENGTH, 1);
		return false;
	}
	__builtin_memcpy(w->words, ack->words, sizeof(w->words));
	bpf_loop(PINCH_ACK_WORDS, pinch_weigh_ack, w, 0);
	if (w->check + seal == check)
		return true;
	pinch_count(DROP_BAD_CHECKSUM, 1);
	return false;
}

/* Sample the round trip, if the acknowledgement answers the frame's latest transmission. */
static __always_inline void pinch_measure(struct pinch_control *c, const struct ring_frame *f,
					  const struct pinch_sent *frame)
{
	__u32 rtt = now_us() - frame->sent_us;

	if (frame->seq != f->seq || frame->stream != f->stream || frame->serial != f->serial ||
	    rtt >> 30)
		return;
	__sync_fetch_and_add(&c->rtt_samples, 1);
	__sync_fetch_and_add(&c->rtt_sum_us, rtt);
	if (rtt > c->rtt_max_us)
		c->rtt_max_us = rtt;
}

/* Record what a peer has received. Is there anything to send now? */
static __always_inline bool pinch_on_ack(struct xdp_md *ctx, struct pinch_control *c,
					 struct ring_frame *f)
{
	__u32 peer = f->sender, seq = f->seq, number = f->number, to = pinch_flow_to(peer);
	struct pinch_ack_work w = { .seq = seq,
				    .first = pinch_ack_first(number),
				    .end = pinch_config.acked_words,
				    .number = number };
	__u32 index = to * pinch_config.capacity + number;
	struct pinch_sent *frame;
	struct pinch_flow *flow;
	struct pinch_peer *p;

	if (!pinch_load_ack(ctx, c, f, &w))
		return false;
	frame = bpf_map_lookup_elem(&pinch_sent, &index);
	p = bpf_map_lookup_elem(&pinch_peers, &peer);
	flow = bpf_map_lookup_elem(&pinch_flows, &to);
	if (!frame || !p || !flow)
		return false;
	w.offset = peer * pinch_config.acked_words;
	bpf_loop(PINCH_ACK_WORDS, pinch_note_acked, &w, 0);
	__sync_fetch_and_add(&p->heard, 1);
	__sync_fetch_and_add(&p->answers, 1);
	if (w.news) {
		__sync_fetch_and_add(&p->news, 1);
		__sync_fetch_and_add(&p->acked, w.news);
		__sync_fetch_and_add(&flow->in_flight, -w.news);
		__sync_fetch_and_add(&c->acked, w.news);
		pinch_check_complete(c, seq);
		f = pinch_frame_of(ctx);
		if (f)
			pinch_measure(c, f, frame);
	}
	return w.holes ||
	       pinch_next_of(to, flow, *(volatile __u32 *)&flow->next) < (__u32)c->progress;
}
