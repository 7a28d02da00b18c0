// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Broadcast in TC (after PINCH, MLArchSys 2024): a kick becomes frames of embeddings, each cloned
 * to exactly the ranks that need it.
 *
 * A kick comes from the process, or is a frame that has just opened the window: an acknowledgement,
 * or the last missing handshake. For each frame and each rank, the kick's buffer is filled from the
 * map, addressed, and cloned to the link; in the end the kick is dropped. The process's work
 * requests come first, then frames that an acknowledgement shows to be lost, then new frames as far
 * as the window allows.
 */
#include "pinch_handshake.h"

#include <linux/pkt_cls.h>

struct send_work {
	struct __sk_buff *skb;
	struct pinch_control *control;
	struct pinch_flow *flow;
	__u32 here;  /* number of the flow that this CPU sends */
	__u32 homes; /* ranks of that flow */
	__u32 seq;
	/* The acknowledgement being processed: the peer that sent it, and the frame, and its
	 * transmission, that arrived there. */
	__u32 peer;
	__u32 number;
	__u32 serial;
	__u32 stream;
	__u32 word; /* word of the peer's bitmap in which to look for holes */
};

struct copy_work {
	struct ring_frame head;
	struct __sk_buff *skb;
	__u64 check; /* the payload's */
	__u32 to;
	__u32 ask;
	__u32 length;
};

/* Clone the frame to a rank. */
static long send_copy(__u32 rank, struct copy_work *w)
{
	if (!(w->to >> rank & 1))
		return 0;
	w->head.flags = w->ask >> rank & 1 ? PINCH_FLAG_ASK : 0;
	pinch_address(&w->head, rank, w->length);
	w->head.checksum = w->check + frame_seal(&w->head);
	if (bpf_skb_store_bytes(w->skb, 0, &w->head, sizeof(w->head), 0))
		return 1;
	bpf_clone_redirect(w->skb, pinch_config.uplink, 0);
	return 0;
}

static __always_inline struct pinch_sent *sent_of(struct send_work *w, __u32 number)
{
	__u32 index = w->here * pinch_config.capacity + number;

	return bpf_map_lookup_elem(&pinch_sent, &index);
}

/* Send frame `number` to the ranks in `to`. */
static __always_inline bool send_frame(struct send_work *w, __u32 number, struct pinch_frame *frame,
				       __u32 to)
{
	struct copy_work copy = { .skb = w->skb,
				  .check = frame->check,
				  .to = to,
				  .ask = frame->ask,
				  .length = frame->length };
	__u32 length = frame->length, copies = bitmap_count(to), size = sizeof(copy.head) + length;
	__u8 attempt = 0;
	bool again;
	void *payload = bpf_map_lookup_elem(&pinch_payloads, &number);
	struct pinch_sent *last = sent_of(w, number);

	if (!payload || !last || length < 8 || length > pinch_config.payload)
		return false;
	size = size < PINCH_LEAST_BYTES ? PINCH_LEAST_BYTES : size;
	if (bpf_skb_change_tail(w->skb, size, 0) ||
	    bpf_skb_store_bytes(w->skb, sizeof(copy.head), payload, length, 0))
		return false;
	again = last->seq == w->seq;
	if (again) {
		attempt = last->attempt + 1;
		copy.ask = to;
	}
	pinch_write_head(&copy.head, PINCH_EMBED, w->seq, attempt, w->control->tag);
	copy.head.number = number;
	copy.head.serial = pinch_next_serial();
	*last = (struct pinch_sent){ w->seq,	       copy.head.serial, now_us(),
				     copy.head.stream, attempt,		 0 };
	bpf_loop(pinch_config.ranks, send_copy, &copy, 0);
	pinch_count(PINCH_SENT, copies);
	pinch_count(PINCH_SENT_BYTES, copies * size);
	if (again)
		pinch_count(PINCH_RESENT, copies);
	return true;
}

/* Ask the ranks in `to` whether frame `number` has arrived. */
static __always_inline void ask_for(struct send_work *w, __u32 number, struct pinch_sent *last,
				    __u32 to)
{
	struct copy_work copy = { .skb = w->skb, .to = to };

	if (bpf_skb_change_tail(w->skb, PINCH_LEAST_BYTES, 0))
		return;
	pinch_write_head(&copy.head, PINCH_ASK, w->seq, ++last->attempt, w->control->tag);
	copy.head.number = number;
	copy.head.serial = pinch_next_serial();
	bpf_loop(pinch_config.ranks, send_copy, &copy, 0);
	pinch_count(PINCH_ASKS, bitmap_count(to));
}

static __always_inline bool is_acked(__u32 seq, __u32 number, __u32 rank)
{
	__u32 index = rank * pinch_config.acked_words + number / 32;
	__u64 *word = bpf_map_lookup_elem(&pinch_acked, &index);

	return word && bitmap_bits(*word, seq) >> number % 32 & 1;
}

struct lack_work {
	__u32 number;
	__u32 seq;
	__u32 to;
	__u32 lacking;
};

static long find_lacking(__u32 rank, struct lack_work *w)
{
	if (w->to >> rank & 1 && !is_acked(w->seq, w->number, rank))
		w->lacking |= 1u << rank % 32;
	return 0;
}

/* Retransmit a frame to the flow's ranks that lack it, or ask them about it. Do nothing if the
 * frame has not been sent yet. */
static __always_inline void send_again(struct send_work *w, __u32 number, bool ask)
{
	struct pinch_frame *frame = bpf_map_lookup_elem(&pinch_frames, &number);
	struct lack_work lack = { .number = number, .seq = w->seq };
	struct pinch_sent *last = sent_of(w, number);

	if (!frame || !last || number >= (__u32)w->control->progress || last->seq != w->seq)
		return;
	lack.to = frame->to & w->homes;
	bpf_loop(pinch_config.ranks, find_lacking, &lack, 0);
	if (!lack.lacking)
		return;
	if (ask)
		ask_for(w, number, last, lack.lacking);
	else
		send_frame(w, number, frame, lack.lacking);
}

/* The work requests of this flow. */
static long send_requested(__u32 i, struct send_work *w)
{
	__u32 taken = *(volatile __u32 *)&w->flow->sq_head,
	      slot = w->here * PINCH_SQ_ENTRIES + taken % PINCH_SQ_ENTRIES;
	__u64 *wr = bpf_map_lookup_elem(&pinch_sq, &slot), entry;

	if (!wr || taken == *(volatile __u32 *)&w->flow->sq_tail)
		return 1;
	entry = *(volatile __u64 *)wr;
	if (__sync_val_compare_and_swap(&w->flow->sq_head, taken, taken + 1) == taken &&
	    seq_of(entry) == w->seq)
		send_again(w, entry & ~PINCH_WR_ASK, entry & PINCH_WR_ASK);
	return 0;
}

/* Retransmit frame `i` of a bitmap's word if it is lost: it was sent before a frame that has
 * arrived, on the same stream. */
static long send_hole(__u32 i, struct send_work *w)
{
	__u32 number = w->word * 32 + i;
	struct pinch_sent *last = sent_of(w, number);
	struct pinch_frame *frame;

	if (number > w->number)
		return 1;
	if (is_acked(w->seq, number, w->peer) || !last || last->seq != w->seq ||
	    last->stream != w->stream || (__s32)(last->serial - w->serial) >= 0)
		return 0;
	frame = bpf_map_lookup_elem(&pinch_frames, &number);
	if (frame && frame->to >> w->peer & 1 &&
	    send_frame(w, number, frame, 1u << w->peer % RING_MAX_RANKS))
		pinch_count(PINCH_GAPS, 1);
	return 0;
}

static long send_holes(__u32 i, struct send_work *w)
{
	__u32 index;
	__u64 *due, *have;

	w->word = pinch_ack_first(w->number) + i;
	index = w->peer * pinch_config.acked_words + w->word;
	due = bpf_map_lookup_elem(&pinch_wanted, &index);
	have = bpf_map_lookup_elem(&pinch_acked, &index);
	if (w->word > w->number / 32 || !due || !have)
		return 1;
	if (*due & ~bitmap_bits(*have, w->seq))
		bpf_loop(32, send_hole, w, 0);
	return 0;
}

/* Send new frames, as far as the window allows. */
static long send_new(__u32 i, struct send_work *w)
{
	__u32 next = *(volatile __u32 *)&w->flow->next,
	      in_flight = *(volatile __u32 *)&w->flow->in_flight, to, copies;
	__u32 number = pinch_next_of(w->here, w->flow, next);
	struct pinch_frame *frame = bpf_map_lookup_elem(&pinch_frames, &number);
	__u64 progress = *(volatile __u64 *)&w->control->progress;

	if (!frame || seq_of(progress) != w->seq || number >= (__u32)progress ||
	    seq_of(*(volatile __u64 *)&w->control->met) != w->seq)
		return 1;
	to = frame->to & w->homes;
	copies = bitmap_count(to);
	if (in_flight && in_flight + copies > w->control->window)
		return 1;
	if (__sync_val_compare_and_swap(&w->flow->next, next, next + 1) != next)
		return 0;
	__sync_fetch_and_add(&w->flow->in_flight, copies);
	send_frame(w, number, frame, to);
	return 0;
}

struct handshakes_work {
	struct pinch_handshake handshake;
	struct __sk_buff *skb;
	struct pinch_control *control;
	struct pinch_status say;
};

/* Send a handshake to a rank for the first time, or again if something from that rank is still
 * missing here. A rank whose frames have all arrived asks on its own if it needs anything. The end
 * of exchanges is repeated until the rank has acknowledged it.
 */
static long send_handshake(__u32 rank, struct handshakes_work *w)
{
	struct pinch_peer *peer = bpf_map_lookup_elem(&pinch_peers, &rank);
	__u64 word = peer ? pinch_word_in(peer->ours, w->say.seq) : 0;

	if (rank == pinch_config.rank)
		return 0;
	if (pinch_has_ended(w->control)) {
		if (w->control->end_acked >> rank & 1)
			return 0;
		word = word_of(w->say.seq, 0);
	} else if (!(w->control->partners >> rank & 1) || !word ||
		   (w->say.attempt && !pinch_is_behind(peer, w->say.seq))) {
		return 0;
	}
	pinch_write_handshake(&w->handshake, w->control, rank, word, &w->say);
	if (bpf_skb_store_bytes(w->skb, 0, &w->handshake, sizeof(w->handshake), 0))
		return 1;
	bpf_clone_redirect(w->skb, pinch_config.uplink, 0);
	return 0;
}

/* Kick each flow. */
static __always_inline void kick_all(struct __sk_buff *skb, struct ring_frame *kick)
{
	kick->flags = PINCH_FLAG_ALL;
	pinch_make_own(kick, PINCH_DOORBELL);
	if (bpf_skb_store_bytes(skb, 0, kick, sizeof(*kick), 0))
		return;
	for (__u32 i = 0; i < PINCH_MAX_FLOWS && i < pinch_config.fan; i++)
		bpf_clone_redirect(skb, pinch_config.doorbell, 0);
}

/* This is a separate function, because its variables do not fit on the stack together with the
 * program's. */
static __noinline int send_handshakes(struct __sk_buff *skb, struct pinch_control *c,
				      struct ring_frame *kick)
{
	struct handshakes_work w = { .skb = skb, .control = c };

	w.say.seq = seq_of(c->progress);
	w.say.attempt = kick->attempt;
	w.say.ask = kick->attempt || pinch_has_ended(c);
	if (kick->attempt)
		w.say.waits = pinch_waits_of(c, w.say.seq);
	if (!bpf_skb_change_tail(skb, PINCH_LEAST_BYTES, 0))
		bpf_loop(pinch_config.ranks, send_handshake, &w, 0);
	/* The process may have checked before the last handshake arrived, and have left its frames
	 * to this program. */
	if (pinch_meet(c, w.say.seq) && (__u32)(*(volatile __u64 *)&c->progress))
		kick_all(skb, kick);
	return TC_ACT_SHOT;
}

/* Send everything that is due. */
static __always_inline void send_all(struct send_work *w, const struct ring_frame *kick)
{
	w->seq = seq_of(*(volatile __u64 *)&w->control->progress);
	if (w->flow->sq_head != w->flow->sq_tail)
		bpf_loop(PINCH_BATCH, send_requested, w, 0);
	w->peer = kick->sender;
	if (w->peer != pinch_config.rank && w->peer < pinch_config.ranks && kick->seq == w->seq) {
		w->number = kick->number;
		w->serial = kick->serial;
		w->stream = kick->stream;
		bpf_loop(PINCH_ACK_BEHIND + 1, send_holes, w, 0);
	}
	bpf_loop(PINCH_BATCH, send_new, w, 0);
}

/* Is it an intact kick of this host? */
static __always_inline bool is_kick(const struct ring_frame *kick)
{
	if (pinch_is_foreign(kick))
		return false;
	if (kick->receiver != pinch_config.rank) {
		pinch_count(DROP_BAD_RECEIVER, 1);
		return false;
	}
	if (kick->kind != PINCH_DOORBELL && kick->kind != PINCH_SEND_HANDSHAKES) {
		pinch_count(DROP_BAD_KIND, 1);
		return false;
	}
	if (kick->checksum != frame_seal(kick)) {
		pinch_count(DROP_BAD_CHECKSUM, 1);
		return false;
	}
	return true;
}

SEC("tc")
int pinch_send(struct __sk_buff *skb)
{
	struct send_work w = { .skb = skb, .control = pinch_control_of() };
	struct ring_frame kick;
	__u32 here = pinch_flow_here();

	w.flow = bpf_map_lookup_elem(&pinch_flows, &here);
	if (!w.control || !w.flow || bpf_skb_load_bytes(skb, 0, &kick, sizeof(kick)) ||
	    !is_kick(&kick))
		return TC_ACT_SHOT;
	/* keeps clones on this CPU: see netdev_pick_tx */
	skb->queue_mapping = bpf_get_smp_processor_id() + 1;
	if (kick.kind == PINCH_SEND_HANDSHAKES)
		return send_handshakes(skb, w.control, &kick);
	w.here = here;
	w.homes = pinch_config.homes[here % PINCH_MAX_FLOWS];
	__sync_fetch_and_add(&w.control->sending, 1);
	send_all(&w, &kick);
	__sync_fetch_and_add(&w.control->sending, -1);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
