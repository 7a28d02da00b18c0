// SPDX-License-Identifier: GPL-2.0 OR MIT
/* An exchange by tokens (bpf/shared/token_abi.h): rows land in memory that the process has mapped.
 *
 * The process fills its frames into a map and rings the doorbell: the kernel makes empty frames,
 * all in one system call, and the doorbell's program fills each with the next frame, for whichever
 * receiver. Frames too large for that are sent by the process, and each that has landed goes back
 * to its sender, whose program fills it with the next. A frame that does not arrive is asked for by
 * the receiver's process, and the sender's program answers. Reference model:
 * testbed/protocol/token/rank.py.
 */
#include "lib/frame.h"
#include "token_add.h"

/* The frame's pointer, which a helper call invalidates. */
static __always_inline struct token_frame *frame_of(struct xdp_md *ctx)
{
	struct token_frame *t = (void *)(long)ctx->data;

	return (void *)(t + 1) <= (void *)(long)ctx->data_end ? t : NULL;
}

/* Address the frame to another rank, and seal it. `length`: of all that counts behind the header.
 * The packet is as long as the frame, though: a bridge would cut off what is longer (netfilter's
 * br_validate_ipv4), and the frame would have no room any more for what it is filled with next. */
static __always_inline int send_to(struct xdp_md *ctx, struct token_frame *t, __u32 to,
				   __u32 length)
{
	struct ring_frame *f = &t->head;

	frame_address(f, &token_config.peers[token_config.rank % RING_MAX_RANKS],
		      &token_config.peers[to % RING_MAX_RANKS],
		      bpf_xdp_get_buff_len(ctx) - sizeof(*f));
	f->sender = token_config.rank;
	f->receiver = to;
	f->length = length;
	f->checksum = frame_seal(f) + t->check;
	return XDP_TX;
}

/* Fill the frame with one of this rank's; `index`: in token_outs. */
static __always_inline int fill(struct xdp_md *ctx, __u32 index, __u16 attempt)
{
	struct token_out *out = bpf_map_lookup_elem(&token_outs, &index);
	struct token_frame *t;
	const void *from;
	__u32 bytes;

	if (!out)
		return XDP_DROP;
	from = bpf_map_lookup_elem(&token_payloads, &out->payload);
	if (!from)
		return XDP_DROP;
	bytes = out->bytes;
	asm volatile("" : "+r"(bytes)); /* for the verifier, which loses the bounds */
	if (bytes > token_config.room ||
	    bpf_xdp_get_buff_len(ctx) < sizeof(struct token_frame) + bytes)
		return drop(DROP_BAD_LENGTH);
	if (bytes && bpf_xdp_store_bytes(ctx, sizeof(struct token_frame), (void *)from, bytes))
		return drop(DROP_BAD_LENGTH);
	t = frame_of(ctx);
	if (!t)
		return XDP_DROP;
	t->head.version = RING_VERSION;
	t->head.kind = PINCH_EMBED;
	t->head.tag = token_config.tag; /* an ask may be of another format */
	t->head.seq = out->seq;
	t->head.number = out->number;
	t->head.stream = bpf_get_smp_processor_id();
	t->head.flags = out->flags;
	t->head.attempt = attempt;
	t->head.frames = out->frames;
	t->check = out->check;
	count(TOKEN_SENT, 1);
	count(TOKEN_SENT_BYTES, sizeof(struct token_frame) + bytes);
	return send_to(ctx, t, out->receiver, sizeof(t->check) + bytes);
}

/* Take the next frame that is ready: its index in token_outs. Returns a reason why there is none,
 * or -1. */
static __always_inline int take_next(struct token_control *c, __u32 *index)
{
	__u64 next, ready;
	__u64 *frame;
	__u32 place, parity;

	for (int i = 0; i < TOKEN_TRIES; i++) {
		ready = word_read(&c->ready);
		next = word_read(&c->next);
		if (seq_of(next) != seq_of(ready) || next >= ready)
			return TOKEN_ENDS;
		if (__sync_val_compare_and_swap(&c->next, next, next + 1) != next)
			continue;
		parity = seq_of(next) & 1;
		place = parity * token_config.outs + (__u32)next;
		frame = bpf_map_lookup_elem(&token_order, &place);
		if (!frame)
			return DROP_BAD_CHUNK;
		*index = parity * token_config.outs + *frame;
		return -1;
	}
	return DROP_CONTENDED;
}

/* Does any frame fit into this one? */
static __always_inline bool fits(struct xdp_md *ctx)
{
	return bpf_xdp_get_buff_len(ctx) >= sizeof(struct token_frame) + token_config.largest;
}

/* Fill a token that has come back with the next frame. */
static __always_inline int refill(struct xdp_md *ctx, struct token_control *c)
{
	__u32 index;
	int none;

	if (!fits(ctx))
		return drop(DROP_BAD_LENGTH);
	none = take_next(c, &index);
	return none < 0 ? fill(ctx, index, 0) : drop(none);
}

/* Which of this rank's frames another rank's refers to: its index in token_outs. */
static __always_inline bool find_out(const struct ring_frame *f, __u32 *index)
{
	const volatile struct token_pair *pair = &token_config.pairs[f->sender % RING_MAX_RANKS];

	*index = (f->seq & 1) * token_config.outs + pair->out + f->number;
	return f->number < pair->frames_out;
}

/* Tokens have come back, up to a partner's `number`-th: earlier ones that have not are lost,
 * because frames between two ranks keep their order. */
static __always_inline void give_back(struct token_control *c, __u32 sender, __u32 seq,
				      __u32 number)
{
	struct token_peer *peer = bpf_map_lookup_elem(&token_peers, &sender);
	__u64 before, known;

	for (int i = 0; peer && i < TOKEN_TRIES; i++) {
		before = word_read(&peer->tokens);
		known = seq_of(before) == seq ? (__u32)before : 0;
		if (known >= number)
			return;
		if (__sync_val_compare_and_swap(&peer->tokens, before, word_of(seq, number)) !=
		    before)
			continue;
		if (seq_of(word_read(&c->returned)) == seq)
			__sync_fetch_and_add(&c->returned, number - known);
		return;
	}
}

static __always_inline int on_token(struct xdp_md *ctx, struct token_control *c,
				    struct ring_frame *f)
{
	__u32 seq = f->seq, index;
	struct token_out *out;

	if (!find_out(f, &index))
		return drop(DROP_BAD_CHUNK);
	out = bpf_map_lookup_elem(&token_outs, &index);
	if (!out || *(volatile __u32 *)&out->seq != seq)
		return drop(DROP_BAD_SEQ);
	/* Each frame's token is used once, so that duplicates do not multiply. */
	if (__sync_lock_test_and_set(&out->acked, seq) == seq)
		return drop(DROP_DUPLICATE);
	give_back(c, f->sender, seq, out->token);
	if (*(volatile __u32 *)&c->stalled && __sync_lock_test_and_set(&c->stalled, 0))
		wake(seq);
	return refill(ctx, c);
}

/* Say which exchange this rank is in, and which ranks it waits for. */
static __always_inline int answer(struct xdp_md *ctx, struct token_frame *t,
				  struct token_control *c)
{
	struct ring_frame *f = &t->head;
	__u32 gone = c->gone, late = c->late;

	f->kind = PINCH_HANDSHAKE;
	f->flags = 0;
	f->waits = c->waits;
	f->entered = c->entered;
	if (c->ended) {
		f->flags = gone ? PINCH_FLAG_ENDED : PINCH_FLAG_ENDED | PINCH_FLAG_LATE;
		f->gone = gone ? gone : late;
	}
	t->check = 0;
	count(TOKEN_STATUSES, 1);
	return send_to(ctx, t, f->sender, sizeof(t->check));
}

/* A partner lacks a frame. */
static __always_inline int on_ask(struct xdp_md *ctx, struct token_control *c,
				  struct token_frame *t)
{
	struct ring_frame *f = &t->head;
	struct token_out *out;
	__u32 index;

	if (!find_out(f, &index))
		return drop(DROP_BAD_CHUNK);
	out = bpf_map_lookup_elem(&token_outs, &index);
	if (!out)
		return XDP_DROP;
	if (c->ended || *(volatile __u32 *)&out->seq != f->seq)
		return answer(ctx, t, c);
	count(TOKEN_RESENT, 1);
	return fill(ctx, index, f->attempt);
}

static __always_inline int on_status(struct token_control *c, struct ring_frame *f)
{
	__u32 sender = f->sender, gone, late;
	struct token_peer *peer = bpf_map_lookup_elem(&token_peers, &sender);

	if (!peer)
		return XDP_DROP;
	__sync_fetch_and_add(&peer->answers, 1);
	if (!(f->flags & PINCH_FLAG_ENDED)) {
		peer->at = f->entered;
		peer->waits = f->waits;
		return XDP_DROP;
	}
	gone = f->flags & PINCH_FLAG_LATE ? 0 : f->gone;
	late = f->flags & PINCH_FLAG_LATE ? f->late : 0;
	if (!(gone & ~c->gone) && !(late & ~c->late))
		return XDP_DROP;
	__sync_fetch_and_or(&c->gone, gone);
	__sync_fetch_and_or(&c->late, late);
	wake(0);
	return XDP_DROP;
}

/* Claim a slot for a frame. Claims only move forward: a late frame changes nothing. */
static __always_inline int claim(struct token_slot *slot, __u32 seq, __u64 *before)
{
	for (int i = 0; i < TOKEN_TRIES; i++) {
		*before = word_read(&slot->claim);
		if (seq_of(*before) == seq && (__u32)*before != TOKEN_FREE)
			return DROP_DUPLICATE;
		if (*before && seq_is_before(seq, seq_of(*before)))
			return DROP_BAD_SEQ;
		if (__sync_val_compare_and_swap(&slot->claim, *before,
						word_of(seq, TOKEN_CLAIMED)) == *before)
			return -1;
	}
	return DROP_CONTENDED;
}

/* Read the lines of the slot in which the next frame lands, most likely, so that they are on their
 * way from memory before it is written. */
static __always_inline void fetch(__u32 index)
{
	const volatile char *data = bpf_map_lookup_elem(&token_landing, &index);

	for (__u32 at = 0; data && at < token_config.room && at < TOKEN_PAGE; at += TOKEN_LINE)
		data[at];
}

static __always_inline int on_rows(struct xdp_md *ctx, struct token_control *c,
				   struct token_frame *t)
{
	struct ring_frame *f = &t->head;
	__u32 sender = f->sender, seq = f->seq, number = f->number, parity = seq & 1;
	__u32 open = *(volatile __u32 *)&c->open, bytes = f->length - sizeof(t->check);
	__u32 frames = f->frames, flags = f->flags, index;
	const volatile struct token_pair *pair = &token_config.pairs[sender % RING_MAX_RANKS];
	struct token_peer *peer;
	struct token_slot *slot;
	__u64 check = t->check, before;
	void *to;
	int lost;

	if (f->tag != (__u16)token_config.tag) {
		__sync_fetch_and_or(&c->foreign, 1U << sender % RING_MAX_RANKS);
		return drop(DROP_BAD_TENSOR);
	}
	if (number >= frames || frames > pair->frames_in)
		return drop(DROP_BAD_CHUNK);
	if (seq != open && seq != seq_after(open))
		return drop(DROP_BAD_SEQ);
	index = parity * token_config.slots + pair->slot + number;
	slot = bpf_map_lookup_elem(&token_slots, &index);
	to = bpf_map_lookup_elem(&token_landing, &index);
	peer = bpf_map_lookup_elem(&token_peers, &sender);
	if (!slot || !to || !peer)
		return XDP_DROP;
	fetch(index + 1);
	lost = claim(slot, seq, &before);
	if (lost >= 0)
		return drop(lost);
	asm volatile("" : "+r"(bytes)); /* for the verifier, which loses the bounds */
	if (bytes > token_config.room ||
	    (bytes && bpf_xdp_load_bytes(ctx, sizeof(struct token_frame), to, bytes))) {
		__sync_val_compare_and_swap(&slot->claim, word_of(seq, TOKEN_CLAIMED), before);
		return drop(DROP_BAD_LENGTH);
	}
	slot->check = check;
	slot->bytes = bytes;
	slot->flags = flags;
	*(volatile __u64 *)&slot->claim = word_of(seq, TOKEN_LANDED);
	peer->frames[parity] = frames;
	count(TOKEN_RECEIVED, 1);
	__sync_fetch_and_add(&peer->news, 1);
	if (__sync_fetch_and_add(&peer->landed[parity], 1) + 1 == frames &&
	    __sync_fetch_and_add(&c->complete[parity], 1) + 1 == token_config.partners)
		wake(seq);
	if (!(flags & PINCH_FLAG_RETURN))
		return XDP_DROP;
	t = frame_of(ctx);
	if (!t)
		return XDP_DROP;
	t->head.kind = PINCH_ACK;
	t->head.flags = 0;
	t->check = 0;
	count(TOKEN_RETURNED, 1);
	return send_to(ctx, t, sender, sizeof(t->check));
}

/* Does the header belong to this exchange, and is the frame for this rank, from another rank's
 * address? A switch that has lost its table delivers frames for other ranks, too. */
static __always_inline int is_for_me(const struct ring_frame *f)
{
	__u32 sender = f->sender;

	if (f->cookie != token_config.cookie || f->version != RING_VERSION ||
	    f->group != token_config.group)
		return DROP_BAD_COOKIE;
	if (f->receiver != token_config.rank ||
	    f->ip.destination != token_config.peers[token_config.rank % RING_MAX_RANKS].ip)
		return DROP_BAD_RECEIVER;
	if (sender >= token_config.ranks || sender >= RING_MAX_RANKS ||
	    sender == token_config.rank || f->ip.source != token_config.peers[sender].ip)
		return DROP_BAD_RANK;
	return -1;
}

/* A frame of this group has arrived on the link. */
SEC("xdp.frags")
int token_link(struct xdp_md *ctx)
{
	struct ring_frame *f = frame_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	struct token_frame *t = frame_of(ctx);
	struct token_control *c = control_of();
	struct token_peer *peer;
	__u32 sender;
	int lost;

	if (!f || !t || !c)
		return XDP_DROP;
	lost = is_for_me(f);
	if (lost >= 0)
		return drop(lost);
	if (f->length < sizeof(t->check))
		return drop(DROP_BAD_LENGTH);
	if (f->checksum != frame_seal(f) + t->check)
		return drop(DROP_BAD_CHECKSUM);
	sender = f->sender;
	peer = bpf_map_lookup_elem(&token_peers, &sender);
	if (!peer)
		return XDP_DROP;
	__sync_fetch_and_add(&peer->heard, 1);
	switch (f->kind) {
	case PINCH_EMBED:
		return on_rows(ctx, c, t);
	case PINCH_ACK:
		return on_token(ctx, c, f);
	case PINCH_ASK:
		return on_ask(ctx, c, t);
	case PINCH_HANDSHAKE:
		return on_status(c, f);
	}
	return drop(DROP_BAD_KIND);
}

/* The process has rung: fill an empty frame with the next one, if the window is not full. Empty
 * frames hold what they held before, and that may be damaged. */
SEC("xdp.frags")
int token_doorbell(struct xdp_md *ctx)
{
	struct token_frame *t = frame_of(ctx);
	struct token_control *c = control_of();
	struct token_out *out;
	__u64 next, returned;
	__u32 index, length;
	int none;

	if (!t || !c)
		return XDP_DROP;
	if (t->head.cookie != token_config.cookie)
		return drop(DROP_BAD_COOKIE);
	if (!fits(ctx))
		return drop(DROP_BAD_LENGTH);
	next = word_read(&c->next);
	returned = word_read(&c->returned);
	if (seq_of(returned) == seq_of(next) &&
	    (__s32)((__u32)next - (__u32)returned * token_config.stride) >=
		    (__s32)token_config.window)
		return drop(TOKEN_HELD);
	none = take_next(c, &index);
	if (none >= 0)
		return drop(none);
	out = bpf_map_lookup_elem(&token_outs, &index);
	if (!out)
		return XDP_DROP;
	/* What comes back has to have room for any other frame. */
	length = sizeof(*t) + out->bytes;
	if (!(out->flags & PINCH_FLAG_RETURN) && length < bpf_xdp_get_buff_len(ctx))
		bpf_xdp_adjust_tail(ctx, (int)(length - bpf_xdp_get_buff_len(ctx)));
	return fill(ctx, index, 0) == XDP_TX ? bpf_redirect(token_config.link, 0) : XDP_DROP;
}

/* The doorbell's near end, which this exchange does not use. */
SEC("xdp.frags")
int token_execute(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* The process runs it until all sums are there (`token_control.added`). */
SEC("xdp")
int token_add(struct xdp_md *ctx)
{
	struct token_control *c = control_of();

	if (c && token_config.parts)
		token_add_slice(c);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
