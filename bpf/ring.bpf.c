// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Ring all-reduce in XDP: one rank of one group. Twin: testbed/protocol/ring.py, compared frame by frame by the tests.
 *
 * Chunk c belongs to rank c % ranks, its owner. Lap one: each rank adds its input to the payload. The last rank of lap one has
 * the sum, stores it, and sends it on; lap two: each rank stores it. Where lap two ends, the frame is at liberty: it becomes
 * the next chunk of the rank that it has reached. So the number of frames under way stays what the ranks rang for at the
 * start, no acknowledgement is sent, and no process runs.
 *
 * Partial sums live in the frame and inputs are never written here, so doing a lap again gives the same sum. A rank that holds a
 * result answers from it. Two CPUs may work on a frame and its duplicate at once: storing begins with an atomic claim, and
 * whoever reads memory that the next collective may overwrite looks afterwards whether it has begun.
 */
#include "ring.h"
#include "ring_maps.h"
#include "ring_payload.h"

/* Verdicts of this file: the frame is ready to leave by the uplink, or it is done with. */
enum outcome { GONE, SEND };

struct work {
	struct xdp_md *ctx;
	struct ring_frame *frame;
	struct ring_control *control;
	struct ring_chunk *chunk;
	__u64 *counters;
	__u64 progress; /* as it was when work on this frame began */
	__u32 index;	/* of the chunk */
	__u32 length;	/* of the payload of frames in this generation */
};

static __always_inline void count(struct work *w, enum ring_counter counter)
{
	w->counters[counter] += 1;
}

static __always_inline enum outcome drop(struct work *w, enum ring_counter reason)
{
	count(w, reason);
	return GONE;
}

static __always_inline __u32 generation_of(__u64 progress)
{
	return progress >> 32;
}

/* 0 means "none", so it is left out when the number wraps, and 1 with it: neighbours differ in their lowest bit. */
static __always_inline __u32 generation_after(__u32 generation)
{
	return generation == 0xffffffff ? 2 : generation + 1;
}

static __always_inline struct ring_tensor *tensor_of(struct work *w, __u32 generation)
{
	return &w->control->tensors[generation & 1];
}

static __always_inline __u32 rank_after(__u32 rank)
{
	return rank + 1 >= config.ranks ? 0 : rank + 1;
}

static __always_inline __u32 rank_before(__u32 rank)
{
	return rank ? rank - 1 : config.ranks - 1;
}

static __always_inline __u32 now_us(void)
{
	return bpf_ktime_get_ns() / 1000;
}

/* Has the process begun another collective since this frame's work began? Then what was read may be torn. */
static __always_inline bool overtaken(struct work *w)
{
	barrier();
	return generation_of(*(volatile __u64 *)&w->control->progress) != generation_of(w->progress);
}

/* Make the frame as long as its headers and `length` bytes of payload. Its pointers must be looked up again afterwards. */
static __always_inline bool resize(struct work *w, __u32 length)
{
	int have = w->ctx->data_end - w->ctx->data;
	int want = sizeof(struct ring_frame) + length;

	if (have != want && bpf_xdp_adjust_tail(w->ctx, want - have))
		return false;
	w->frame = (void *)(long)w->ctx->data;
	return (void *)(w->frame + 1) <= (void *)(long)w->ctx->data_end;
}

/* Address the frame; its kind and payload are in place. */
static __always_inline enum outcome send(struct work *w, __u32 to, __u32 length)
{
	const volatile struct ring_peer *peer, *self = &config.peers[config.rank];
	struct ring_frame *f = w->frame;
	__u16 total = bpf_htons(sizeof(*f) - sizeof(f->eth) + length);
	__u32 sum;

	if (to >= RING_MAX_RANKS)
		return GONE;
	peer = &config.peers[to];
	*(__u16 *)&f->eth.h_dest[0] = *(const volatile __u16 *)&peer->mac[0];
	*(__u16 *)&f->eth.h_dest[2] = *(const volatile __u16 *)&peer->mac[2];
	*(__u16 *)&f->eth.h_dest[4] = *(const volatile __u16 *)&peer->mac[4];
	*(__u16 *)&f->eth.h_source[0] = *(const volatile __u16 *)&self->mac[0];
	*(__u16 *)&f->eth.h_source[2] = *(const volatile __u16 *)&self->mac[2];
	*(__u16 *)&f->eth.h_source[4] = *(const volatile __u16 *)&self->mac[4];
	f->eth.h_proto = bpf_htons(ETH_P_IP);
	*(__u16 *)&f->ip = bpf_htons(0x4500);
	f->ip.tot_len = total;
	f->ip.id = 0;
	f->ip.frag_off = bpf_htons(0x4000);
	f->ip.ttl = 64;
	f->ip.protocol = IPPROTO_UDP;
	sum = peer->ip_sum + total;
	sum = (sum & 0xffff) + (sum >> 16);
	f->ip.check = ~((sum & 0xffff) + (sum >> 16));
	f->ip.saddr = self->ip;
	f->ip.daddr = peer->ip;
	f->udp.source = bpf_htons(RING_PORT);
	f->udp.dest = bpf_htons(RING_PORT);
	f->udp.len = bpf_htons(sizeof(*f) - sizeof(f->eth) - sizeof(f->ip) + length);
	f->udp.check = 0;
	f->length = length;
	count(w, RING_SENT);
	w->counters[RING_SENT_BYTES] += sizeof(*f) + length;
	return SEND;
}

/* The frame becomes this rank's own chunk `index` on its first lap. */
static __always_inline enum outcome launch(struct work *w, __u32 index, __u8 attempt)
{
	struct ring_chunk *chunk = bpf_map_lookup_elem(&chunks, &index);
	void *input = bpf_map_lookup_elem(&inputs, &index);
	struct ring_tensor *tensor = tensor_of(w, generation_of(w->progress));
	__u32 length = tensor->length;
	__u64 sum;

	if (!chunk || !input || !resize(w, length))
		return GONE;
	if (payload_fill(w->ctx, input, length))
		return drop(w, RING_BAD_LENGTH);
	sum = chunk->input_sum;
	if (overtaken(w))
		return drop(w, RING_OVERTAKEN);
	chunk->sent_us = now_us();
	chunk->attempt = attempt;
	w->frame = (void *)(long)w->ctx->data;
	if ((void *)(w->frame + 1) > (void *)(long)w->ctx->data_end)
		return GONE;
	w->frame->kind = RING_REDUCE;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = index;
	w->frame->attempt = attempt;
	w->frame->hop = 1;
	w->frame->last = 0;
	w->frame->flags = 0;
	w->frame->tag = tensor->tag;
	w->frame->checksum = sum;
	return send(w, rank_after(config.rank), length);
}

/* The frame is at liberty: it carries on as this rank's next chunk, if there is one. A slot beyond what is ready is left to the
 * process, which launches it when it has moved `progress` (it reads `next` after that; both sides are fenced).
 */
static __always_inline enum outcome launch_next(struct work *w)
{
	__u64 next = __sync_fetch_and_add(&w->control->next, 1);
	__u64 progress = *(volatile __u64 *)&w->control->progress;
	__u32 index = config.rank + config.ranks * (__u32)next;

	if (generation_of(next) != generation_of(progress) || index >= (__u32)progress)
		return GONE;
	w->progress = progress;
	return launch(w, index, 0);
}

/* Turn the frame into lap two of a result that this rank holds: it visits every other rank. */
static __always_inline enum outcome answer(struct work *w)
{
	void *result = bpf_map_lookup_elem(&results, &w->index);
	__u32 length = w->length;
	__u64 sum;

	if (!result || !resize(w, length))
		return GONE;
	if (payload_fill(w->ctx, result, length))
		return drop(w, RING_BAD_LENGTH);
	sum = w->chunk->result_sum;
	w->frame = (void *)(long)w->ctx->data;
	if ((void *)(w->frame + 1) > (void *)(long)w->ctx->data_end)
		return GONE;
	barrier();
	if (*(volatile __u32 *)&w->chunk->claimed != w->frame->generation)
		return drop(w, RING_OVERTAKEN);
	w->frame->kind = RING_RESULT;
	w->frame->hop = 1;
	w->frame->last = rank_before(config.rank);
	w->frame->flags = 0;
	w->frame->checksum = sum;
	count(w, RING_ANSWERED);
	return send(w, rank_after(config.rank), length);
}

/* A result is in place: make it count, once. */
static __always_inline void stored(struct work *w, __u64 sum)
{
	__u32 generation = generation_of(w->progress);

	w->chunk->result_sum = sum;
	__sync_lock_test_and_set(&w->chunk->done, generation);
	count(w, RING_STORED);
	if (w->index % config.ranks == config.rank && !w->frame->attempt && !w->chunk->attempt) {
		__u32 rtt = now_us() - w->chunk->sent_us;

		__sync_fetch_and_add(&w->control->rtt_samples, 1);
		__sync_fetch_and_add(&w->control->rtt_sum_us, rtt);
		/* Two CPUs may race here; the greatest round trip is a hint, not a sum. */
		if (rtt > w->control->rtt_max_us)
			w->control->rtt_max_us = rtt;
	}
	if (__sync_fetch_and_add(&w->control->stored, 1) + 1 == *(volatile __u32 *)&w->control->wake_at) {
		struct ring_event event = { .kind = RING_EVENT_STORED, .generation = generation };

		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
}

/* One CPU alone may write a result. */
static __always_inline bool claim(struct work *w)
{
	__u32 generation = generation_of(w->progress);
	__u32 seen = *(volatile __u32 *)&w->chunk->claimed;

	return seen != generation && __sync_val_compare_and_swap(&w->chunk->claimed, seen, generation) == seen;
}

static __always_inline void unclaim(struct work *w)
{
	__sync_lock_test_and_set(&w->chunk->claimed, 0);
}

/* Keep the frame's data until the process has its gradient ready and rings. */
static __always_inline enum outcome park(struct work *w, bool *ready)
{
	__u32 slot = __sync_fetch_and_add(&w->control->park, 1) % RING_PARKING;
	struct ring_parked *parked = bpf_map_lookup_elem(&parking, &slot);
	void *data = bpf_map_lookup_elem(&parking_data, &slot);
	__u32 length = w->frame->length;
	__u64 progress;

	if (!parked || !data || length > config.chunk_bytes || length < RING_BLOCK)
		return GONE;
	if (__sync_val_compare_and_swap(&parked->state, PARKING_FREE, PARKING_FILLING) != PARKING_FREE)
		return drop(w, RING_PARKING_FULL);
	parked->generation = w->frame->generation;
	parked->chunk = w->frame->chunk;
	parked->attempt = w->frame->attempt;
	parked->hop = w->frame->hop;
	parked->checksum = w->frame->checksum;
	parked->length = length;
	parked->tag = w->frame->tag;
	if (bpf_xdp_load_bytes(w->ctx, sizeof(struct ring_frame), data, length)) {
		__sync_lock_test_and_set(&parked->state, PARKING_FREE);
		return drop(w, RING_BAD_LENGTH);
	}
	__sync_lock_test_and_set(&parked->state, PARKING_PARKED);
	/* The process may have become ready between the look at `progress` and the line above, and seen nothing parked. */
	progress = *(volatile __u64 *)&w->control->progress;
	if (generation_of(progress) == w->frame->generation && w->frame->chunk < (__u32)progress &&
	    __sync_val_compare_and_swap(&parked->state, PARKING_PARKED, PARKING_FREE) == PARKING_PARKED) {
		w->progress = progress;
		*ready = true;
		return GONE;
	}
	return drop(w, RING_PARKED);
}

/* Lap one, input ready: add it; the last rank of the lap has the sum. */
static __always_inline enum outcome reduce(struct work *w)
{
	void *input = bpf_map_lookup_elem(&inputs, &w->index);
	void *result = bpf_map_lookup_elem(&results, &w->index);
	__u64 sum, expected;
	int error;

	if (!input || !result)
		return GONE;
	if (w->frame->hop + 1 < config.ranks) {
		if (payload_add(w->ctx, input, w->length))
			return drop(w, RING_BAD_LENGTH);
		expected = w->frame->checksum + w->chunk->input_sum;
		if (overtaken(w))
			return drop(w, RING_OVERTAKEN);
		w->frame->checksum = expected;
		w->frame->hop += 1;
		return send(w, rank_after(config.rank), w->length);
	}
	if (!claim(w))
		return drop(w, RING_DUPLICATE);
	expected = w->frame->checksum + w->chunk->input_sum;
	error = payload_add_store(w->ctx, input, result, w->length, &sum);
	if (error || sum != expected) {
		unclaim(w);
		return drop(w, error ? RING_BAD_LENGTH : RING_BAD_CHECKSUM);
	}
	stored(w, sum);
	w->frame->kind = RING_RESULT;
	w->frame->hop = 1;
	w->frame->last = rank_before(config.rank);
	w->frame->flags = RING_FLAG_USEFUL;
	w->frame->checksum = sum;
	return send(w, rank_after(config.rank), w->length);
}

/* Is the frame, which is of this rank's generation, one of this rank's tensor? */
static __always_inline bool fits(struct work *w)
{
	struct ring_tensor *tensor = tensor_of(w, w->frame->generation);

	if (w->index >= tensor->total)
		count(w, RING_BAD_CHUNK);
	else if (w->frame->length != tensor->length)
		count(w, RING_BAD_LENGTH);
	else if (w->frame->tag != tensor->tag)
		count(w, RING_BAD_TENSOR);
	else
		return true;
	return false;
}

/* Look up the chunk that the frame names; refuse the frame if its payload cannot be one. */
static __always_inline bool find_chunk(struct work *w)
{
	w->chunk = bpf_map_lookup_elem(&chunks, &w->index);
	if (!w->chunk || w->index >= config.chunks) {
		count(w, RING_BAD_CHUNK);
		return false;
	}
	w->length = w->frame->length;
	if (w->length > config.chunk_bytes || w->length < RING_BLOCK || w->length % RING_BLOCK) {
		count(w, RING_BAD_LENGTH);
		return false;
	}
	/* Other generations: an earlier one is answered as it asks, what the next one will be is not known yet. */
	return w->frame->generation != generation_of(w->progress) || fits(w);
}

static __always_inline enum outcome on_reduce(struct work *w)
{
	__u32 generation = w->frame->generation, mine = generation_of(w->progress);
	__u32 owner = w->index % config.ranks;
	__u32 hop = config.rank >= owner ? config.rank - owner : config.rank + config.ranks - owner;
	bool ready = false;

	if (!hop || w->frame->hop != hop)
		return drop(w, RING_BAD_RANK);
	if (w->chunk->done == generation)
		return answer(w);
	if (generation != mine && generation != generation_after(mine))
		return drop(w, RING_BAD_GENERATION);
	if (generation == mine && w->index < (__u32)w->progress)
		return reduce(w);
	park(w, &ready);
	if (!ready)
		return GONE;
	return fits(w) ? reduce(w) : GONE;
}

static __always_inline enum outcome on_result(struct work *w)
{
	__u32 generation = w->frame->generation;
	__u64 sum;
	int error;

	if (w->frame->last >= config.ranks || w->frame->hop >= config.ranks)
		return drop(w, RING_BAD_RANK);
	if (w->chunk->done == generation) {
		count(w, RING_DUPLICATE);
	} else if (generation != generation_of(w->progress) || w->index >= (__u32)w->progress) {
		/* No sum can be whole without this rank's part: a forgery, or a frame of another age. */
		return drop(w, RING_BAD_GENERATION);
	} else if (claim(w)) {
		void *result = bpf_map_lookup_elem(&results, &w->index);

		if (!result)
			return GONE;
		error = payload_store(w->ctx, result, w->length, &sum);
		if (error || sum != w->frame->checksum) {
			unclaim(w);
			return drop(w, error ? RING_BAD_LENGTH : RING_BAD_CHECKSUM);
		}
		stored(w, sum);
		w->frame->flags |= RING_FLAG_USEFUL;
	}
	if (config.rank != w->frame->last) {
		w->frame->hop += 1;
		return send(w, rank_after(config.rank), w->length);
	}
	return w->frame->flags & RING_FLAG_USEFUL ? launch_next(w) : GONE;
}

/* Somebody lacks a result of a chunk that this rank owns. */
static __always_inline enum outcome on_request(struct work *w)
{
	__u32 generation = w->frame->generation;
	__u32 now = now_us();

	if (w->index % config.ranks != config.rank)
		return drop(w, RING_BAD_RANK);
	if (config.quench_us && now - w->chunk->sent_us < config.quench_us)
		return GONE;
	if (w->chunk->done == generation) {
		w->chunk->sent_us = now;
		count(w, RING_RESENT);
		w->frame->attempt = ++w->chunk->attempt;
		return answer(w);
	}
	/* Never launched: it will be, and nothing is lost yet. */
	if (generation != generation_of(w->progress) || w->index >= (__u32)w->progress ||
	    w->index / config.ranks >= (__u32)w->control->next)
		return drop(w, RING_BAD_GENERATION);
	count(w, RING_RESENT);
	return launch(w, w->index, w->chunk->attempt + 1);
}

static __always_inline enum outcome on_probe(struct work *w)
{
	__u32 asker = w->frame->last;

	if (asker >= config.ranks)
		return drop(w, RING_BAD_RANK);
	w->frame->kind = RING_ALIVE;
	w->frame->last = config.rank;
	w->frame->generation = generation_of(w->progress);
	w->frame->chunk = w->control->stored;
	return send(w, asker, 0);
}

static __always_inline enum outcome on_alive(struct work *w)
{
	struct ring_event event = {
		.kind = RING_EVENT_ALIVE,
		.rank = w->frame->last,
		.generation = w->frame->generation,
		.stored = w->frame->chunk,
	};

	bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	return GONE;
}

/* What every frame must be before anything is looked at that it names. */
static __always_inline bool begin(struct work *w, struct xdp_md *ctx)
{
	__u32 zero = 0;

	w->ctx = ctx;
	w->frame = ring_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	w->control = bpf_map_lookup_elem(&control, &zero);
	w->counters = bpf_map_lookup_elem(&counters, &zero);
	if (!w->frame || !w->control || !w->counters)
		return false;
	if (w->frame->cookie != config.cookie || w->frame->version != RING_VERSION) {
		count(w, RING_BAD_COOKIE);
		return false;
	}
	w->progress = *(volatile __u64 *)&w->control->progress;
	w->index = w->frame->chunk;
	return true;
}

static __always_inline enum outcome on_frame(struct work *w)
{
	__u8 kind = w->frame->kind;

	if (kind == RING_PROBE)
		return on_probe(w);
	if (kind == RING_ALIVE)
		return on_alive(w);
	if (kind != RING_REDUCE && kind != RING_RESULT && kind != RING_REQUEST)
		return drop(w, RING_BAD_KIND);
	if (!find_chunk(w))
		return GONE;
	if (kind == RING_REQUEST)
		return on_request(w);
	if (w->frame->ip.saddr != config.peers[rank_before(config.rank)].ip)
		return drop(w, RING_BAD_RANK);
	return kind == RING_REDUCE ? on_reduce(w) : on_result(w);
}

/* A parked frame's turn has come: the bell's frame takes its place. */
static __always_inline enum outcome replay(struct work *w, __u32 slot)
{
	struct ring_parked *parked = bpf_map_lookup_elem(&parking, &slot);
	void *data = bpf_map_lookup_elem(&parking_data, &slot);
	struct ring_frame *f;
	__u32 length;

	if (!parked || !data || slot >= RING_PARKING)
		return drop(w, RING_BAD_CHUNK);
	if (__sync_val_compare_and_swap(&parked->state, PARKING_PARKED, PARKING_REPLAYING) != PARKING_PARKED)
		return GONE;
	length = parked->length;
	if (length > config.chunk_bytes || length < RING_BLOCK || !resize(w, length) ||
	    payload_fill(w->ctx, data, length)) {
		__sync_lock_test_and_set(&parked->state, PARKING_FREE);
		return drop(w, RING_BAD_LENGTH);
	}
	f = w->frame = (void *)(long)w->ctx->data;
	if ((void *)(f + 1) > (void *)(long)w->ctx->data_end)
		return GONE;
	f->kind = RING_REDUCE;
	f->generation = parked->generation;
	f->chunk = parked->chunk;
	f->attempt = parked->attempt;
	f->hop = parked->hop;
	f->flags = 0;
	f->checksum = parked->checksum;
	f->length = length;
	f->tag = parked->tag;
	__sync_lock_test_and_set(&parked->state, PARKING_FREE);
	w->index = f->chunk;
	return find_chunk(w) ? on_reduce(w) : GONE;
}

/* Ask the owner for a chunk. The frame is as long as a chunk, because the answer may not fit where a shorter one has been. */
static __always_inline enum outcome request(struct work *w, const struct ring_order *order)
{
	__u32 length = tensor_of(w, order->generation)->length;

	if (!resize(w, length))
		return GONE;
	w->frame->kind = RING_REQUEST;
	w->frame->generation = order->generation;
	w->frame->chunk = order->chunk;
	w->frame->attempt = order->attempt;
	w->frame->last = config.rank;
	w->frame->tag = tensor_of(w, order->generation)->tag;
	count(w, RING_RESENT);
	return send(w, order->chunk % config.ranks, length);
}

static __always_inline enum outcome probe(struct work *w, __u32 rank)
{
	w->frame->kind = RING_PROBE;
	w->frame->last = config.rank;
	return send(w, rank, 0);
}

/* The next order, if there is one that no other CPU has taken. */
static __always_inline bool take(struct work *w, struct ring_order *order)
{
	for (int attempt = 0; attempt < 8; attempt++) {
		__u32 taken = *(volatile __u32 *)&w->control->taken;
		__u32 slot = taken % RING_ORDERS;
		struct ring_order *found = bpf_map_lookup_elem(&orders, &slot);

		if (!found || taken == *(volatile __u32 *)&w->control->ordered)
			return false;
		*order = *found;
		if (__sync_val_compare_and_swap(&w->control->taken, taken, taken + 1) == taken)
			return true;
	}
	return false;
}

static __always_inline enum outcome on_order(struct work *w)
{
	struct ring_order order;

	if (w->frame->kind != RING_BELL)
		return drop(w, RING_BAD_KIND);
	if (!take(w, &order))
		return GONE;
	switch (order.kind) {
	case ORDER_LAUNCH:
		if (order.generation != generation_of(w->progress) || order.chunk >= (__u32)w->progress)
			return drop(w, RING_BAD_GENERATION);
		if (order.attempt)
			count(w, RING_RESENT);
		return launch(w, order.chunk, order.attempt);
	case ORDER_REPLAY:
		return replay(w, order.chunk);
	case ORDER_REQUEST:
		return request(w, &order);
	case ORDER_PROBE:
		return probe(w, order.chunk);
	}
	return drop(w, RING_BAD_KIND);
}

/* A frame of this group has come in by the link. */
SEC("xdp")
int ring_link(struct xdp_md *ctx)
{
	struct work w = {};

	return begin(&w, ctx) && on_frame(&w) == SEND ? XDP_TX : XDP_DROP;
}

/* The process has rung: make as many frames of the bell as there are orders. They arrive together, at the doorbell's near end, and
 * stay together, so that each device is polled for many frames at once. A process that rang for each order would be kept
 * in its first system call by the softirq that carries the first frame round and round.
 */
SEC("xdp")
int ring_bell(struct xdp_md *ctx)
{
	struct work w = {};
	__u32 waiting;

	if (!begin(&w, ctx))
		return XDP_DROP;
	waiting = *(volatile __u32 *)&w.control->ordered - *(volatile __u32 *)&w.control->taken;
	if (waiting > RING_FAN_SMALL)
		return bpf_redirect_map(&fan_large, 0, BPF_F_BROADCAST);
	return waiting ? bpf_redirect_map(&fan_small, 0, BPF_F_BROADCAST) : XDP_DROP;
}

/* One of those frames. */
SEC("xdp")
int ring_order(struct xdp_md *ctx)
{
	struct work w = {};

	return begin(&w, ctx) && on_order(&w) == SEND ? bpf_redirect(config.uplink, 0) : XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
