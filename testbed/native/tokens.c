// The process's side of an exchange by tokens: bpf/shared/token_abi.h. It packs all frames, rings
// the doorbell or sends the first ones, and sleeps until everything has landed.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "token_pack.h"

#include "lib/frame.h"
#include "lib/seq.h"

#define BATCH 32       // frames of one system call
#define SEND_TRIES 100 // for a frame, until it counts as lost
#define MOST_BATCH 32  // frames that the kernel makes before it delivers them

static struct token_slot *slot_at(const struct tokens *t, uint32_t slot)
{
	return &t->slots[(t->seq & 1) * t->config->slots + slot];
}

static const char *landed_at(const struct tokens *t, uint32_t slot)
{
	return t->landing + ((uint64_t)(t->seq & 1) * t->config->slots + slot) * t->config->room;
}

static struct token_frame head_of(const struct tokens *t, uint32_t to, uint8_t kind, uint32_t seq,
				  uint32_t length)
{
	const struct token_config *c = t->config;
	struct token_frame f = { .head = {
					 .magic = RING_MAGIC,
					 .version = RING_VERSION,
					 .kind = kind,
					 .group = c->group,
					 .cookie = c->cookie,
					 .seq = seq,
					 .sender = c->rank,
					 .receiver = to,
					 .length = sizeof(f.check) + length,
					 .tag = c->tag,
				 } };

	return f;
}

// Address a frame with so many bytes behind its head, whether they count or not.
static void address(const struct tokens *t, struct token_frame *f, uint32_t bytes)
{
	const struct token_config *c = t->config;

	frame_address(&f->head, &c->peers[c->rank], &c->peers[f->head.receiver],
		      sizeof(f->check) + bytes);
}

static void seal(struct token_frame *f)
{
	f->head.checksum = frame_seal(&f->head) + f->check;
}

// Send frames; `data` of each is read from its second part. What the link does not take, however
// often it is offered, is lost, and will be asked for: a link without a carrier takes nothing.
// Returns an errno, or 0.
static int send_frames(struct tokens *t, struct token_frame *frames, char *const *data, int count,
		       uint32_t bytes)
{
	struct iovec parts[2 * BATCH];
	struct mmsghdr messages[BATCH] = {};
	int sent = 0, tries = 0, done;

	for (int i = 0; i < count; i++) {
		address(t, &frames[i], bytes);
		parts[2 * i] = (struct iovec){ &frames[i], sizeof(frames[i]) };
		parts[2 * i + 1] = (struct iovec){ data[i], bytes };
		messages[i].msg_hdr.msg_iov = &parts[2 * i];
		messages[i].msg_hdr.msg_iovlen = 2;
	}
	while (sent < count) {
		done = sendmmsg(t->link, messages + sent, count - sent, 0);
		if (done < 0 && errno != EINTR && errno != ENOBUFS && errno != EAGAIN)
			return errno;
		if (done < 0 && ++tries < SEND_TRIES)
			continue;
		sent += done > 0 ? done : 1;
		tries = 0;
	}
	return 0;
}

// Frames of this exchange that have been taken to be sent.
static uint32_t taken(const struct tokens *t)
{
	return __atomic_load_n(&t->control->next, __ATOMIC_SEQ_CST);
}

static uint32_t unsent(const struct tokens *t)
{
	return (uint32_t)t->control->ready - taken(t);
}

// Frames that the window lets pass.
static uint32_t credit(const struct tokens *t)
{
	uint32_t returned = __atomic_load_n(&t->control->returned, __ATOMIC_SEQ_CST);
	int32_t left = t->config->window - (taken(t) - returned * t->config->stride);

	return left > 0 ? left : 0;
}

// Send frames as far as the window lets, through the packet socket. Returns an errno, or 0.
static int send_some(struct tokens *t)
{
	uint32_t total = t->control->ready, left = credit(t);

	while (left) {
		struct token_frame frames[BATCH];
		char *data[BATCH];
		int count = 0, error;

		for (; count < BATCH && left; count++, left--) {
			__u64 next = __atomic_load_n(&t->control->next, __ATOMIC_SEQ_CST);
			struct token_out *out;
			uint32_t frame;

			// Tokens that come back take frames, too.
			while ((uint32_t)next < total &&
			       !__atomic_compare_exchange_n(&t->control->next, &next, next + 1, 0,
							    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
				;
			if ((uint32_t)next >= total) {
				left = 0;
				break;
			}
			frame = order_of(t)[(uint32_t)next];
			out = out_at(t, t->seq, frame);
			frames[count] = head_of(t, out->receiver, PINCH_EMBED, t->seq, out->bytes);
			frames[count].head.number = out->number;
			frames[count].head.flags = out->flags;
			frames[count].head.frames = out->frames;
			frames[count].check = out->check;
			seal(&frames[count]);
			data[count] = t->payloads + (uint64_t)out->payload * t->config->room;
			t->sent_bytes += sizeof(frames[count]) + out->bytes;
		}
		error = send_frames(t, frames, data, count, t->config->largest);
		if (error)
			return error;
		t->sent += count;
	}
	return 0;
}

// Ring the doorbell: the kernel makes `count` empty frames, and runs the doorbell's program on each
// (Linux 5.18: BPF_F_TEST_XDP_LIVE_FRAMES). After each batch it lets the frames be delivered, so
// most of those that come back have come before the next. Returns an errno, or 0.
static int ring(struct tokens *t, uint32_t count)
{
	uint32_t bytes = sizeof(struct token_frame) + t->config->largest;
	uint32_t batch = t->config->stride < MOST_BATCH ? t->config->stride : MOST_BATCH;
	char frame[TOKEN_PAGE] = {};
	struct token_frame head = head_of(t, t->config->rank, PINCH_DOORBELL, t->seq, 0);
	union bpf_attr a = { .test = {
				     .prog_fd = t->doorbell,
				     .repeat = count,
				     .data_in = (uintptr_t)frame,
				     .data_size_in = bytes,
				     .flags = BPF_F_TEST_XDP_LIVE_FRAMES,
				     .batch_size = batch,
			     } };

	address(t, &head, t->config->largest);
	memcpy(frame, &head, sizeof(head));
	return syscall(SYS_bpf, BPF_PROG_TEST_RUN, &a, sizeof(a)) ? errno : 0;
}

// Send frames as far as the window lets. Returns an errno, or 0.
static int push(struct tokens *t)
{
	int error = EINTR;

	if (t->doorbell < 0)
		return send_some(t);
	// Some of the frames may find the window full, and stay empty.
	while (error == EINTR && unsent(t) && credit(t))
		error = ring(t, 2 * unsent(t));
	return error == EINTR ? 0 : error;
}

int tokens_send(struct tokens *t, const float *x);

// Enter the exchange that is open: pack all frames, and send what the window lets pass. Without
// `x`, ranks only meet. Returns an errno, or 0.
int tokens_send(struct tokens *t, const float *x)
{
	uint64_t base = (uint64_t)t->seq << 32, start = now_ns(), packed;
	uint32_t total;
	int error;

	t->meeting = !x;
	t->returned = 0;
	t->flags = 0;
	t->nonfinite = 0;
	__atomic_store_n(&t->control->entered, t->seq, __ATOMIC_RELEASE);
	total = pack(t, x);
	if (t->flags & PINCH_FLAG_NONFINITE)
		t->nonfinite |= 1u << t->config->rank;
	packed = now_ns();
	t->quantize_ns += packed - start;
	__atomic_store_n(&t->control->ready, base, __ATOMIC_SEQ_CST);
	__atomic_store_n(&t->control->next, base, __ATOMIC_SEQ_CST);
	__atomic_store_n(&t->control->returned, base, __ATOMIC_SEQ_CST);
	__atomic_store_n(&t->control->ready, base | total, __ATOMIC_SEQ_CST);
	error = push(t);
	t->send_ns += now_ns() - packed;
	return error;
}

int tokens_ask(struct tokens *t, uint32_t rank, const uint32_t *numbers, uint32_t count,
	       uint32_t attempt);

// Ask a rank for frames. Returns an errno, or 0.
int tokens_ask(struct tokens *t, uint32_t rank, const uint32_t *numbers, uint32_t count,
	       uint32_t attempt)
{
	struct token_frame frames[BATCH];
	char *data[BATCH];
	uint32_t n = 0;

	for (; n < count && n < BATCH; n++) {
		frames[n] = head_of(t, rank, PINCH_ASK, t->seq, 0);
		frames[n].head.number = numbers[n];
		frames[n].head.attempt = attempt;
		seal(&frames[n]);
		data[n] = t->payloads; // it only has to be as long as the answer
	}
	return send_frames(t, frames, data, n, t->config->room);
}

int tokens_end(struct tokens *t, uint32_t gone, uint32_t late);

// Tell all partners that this rank has given up. Returns an errno, or 0.
int tokens_end(struct tokens *t, uint32_t gone, uint32_t late)
{
	int error = 0;

	__atomic_fetch_or(&t->control->gone, gone, __ATOMIC_SEQ_CST);
	__atomic_fetch_or(&t->control->late, late, __ATOMIC_SEQ_CST);
	__atomic_store_n(&t->control->ended, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < t->config->partners && !error; i++) {
		struct token_frame f = head_of(t, t->partners[i].rank, PINCH_HANDSHAKE, t->seq, 0);

		f.head.flags = gone ? PINCH_FLAG_ENDED : PINCH_FLAG_ENDED | PINCH_FLAG_LATE;
		f.head.gone = gone ? gone : late;
		seal(&f);
		error = send_frames(t, &f, &t->payloads, 1, 0);
	}
	return error;
}

// Bytes that a message must have; with marks, if it is long enough to have these.
static uint64_t expected_bytes(const struct tokens *t, const struct token_partner *p,
			       const char *message, uint64_t bytes)
{
	if (!t->cache.marks || t->meeting)
		return message_bytes(t, p->rows_in, p->rows_in);
	if (bytes < mark_bytes(t, p->rows_in))
		return mark_bytes(t, p->rows_in);
	return message_bytes(t, p->rows_in, count_marks(message, p->rows_in));
}

// Take the rows of a message that is intact: their steps, or with marks, all of them.
static void take_rows(const struct tokens *t, const struct token_partner *p, const char *message)
{
	uint64_t rows = p->rows_in * t->source.row_bytes;

	if (t->cache.marks)
		keep_rows(t, p, message);
	else if (is_common(t))
		memcpy(t->steps + p->rank, message + rows, 4);
	else if (t->stepped)
		memcpy(t->steps + p->first_row, message + rows, 4 * p->rows_in);
}

// Take what has landed from a partner: verify it first. Returns enum tokens_waited.
static int take(struct tokens *t, struct token_partner *p)
{
	const struct token_pair *pair = &t->config->pairs[p->rank];
	uint32_t parity = t->seq & 1, bad = 0;
	struct token_peer *peer = &t->peers[p->rank];
	uint32_t frames = peer->frames[parity];
	const char *message = landed_at(t, pair->slot);
	uint64_t bytes = 0;
	bool whole = true;

	for (uint32_t number = 0; number < frames; number++) {
		struct token_slot *slot = slot_at(t, pair->slot + number);

		bytes += slot->bytes;
		whole &= number + 1 == frames || slot->bytes == t->config->room;
		bad += sums_of((const uint64_t *)landed_at(t, pair->slot + number), slot->bytes / 8)
			       .weighed != slot->check;
	}
	if (bad) { // as if they had not come
		__atomic_fetch_sub(&t->control->complete[parity], 1, __ATOMIC_SEQ_CST);
		__atomic_fetch_sub(&peer->landed[parity], bad, __ATOMIC_SEQ_CST);
		for (uint32_t number = 0; number < frames; number++) {
			struct token_slot *slot = slot_at(t, pair->slot + number);
			const char *data = landed_at(t, pair->slot + number);

			if (sums_of((const uint64_t *)data, slot->bytes / 8).weighed != slot->check)
				__atomic_store_n(&slot->claim, (uint64_t)t->seq << 32 | TOKEN_FREE,
						 __ATOMIC_SEQ_CST);
		}
		return TOKENS_DAMAGED;
	}
	if (!whole || bytes != expected_bytes(t, p, message, bytes) ||
	    frames != frames_of(t, bytes)) {
		t->failed = p->rank;
		return TOKENS_DIFFER;
	}
	for (uint32_t number = 0; number < frames; number++)
		p->flags_in |= slot_at(t, pair->slot + number)->flags;
	if (p->rows_in && !t->meeting)
		take_rows(t, p, message);
	return TOKENS_COMPLETE;
}

static int take_all(struct tokens *t)
{
	uint64_t start = now_ns();
	int result = TOKENS_COMPLETE;

	for (uint32_t i = 0; i < t->config->partners; i++) {
		struct token_partner *p = &t->partners[i];
		int outcome;

		p->flags_in = 0;
		outcome = take(t, p);
		if (outcome == TOKENS_DIFFER)
			return outcome;
		if (outcome == TOKENS_DAMAGED)
			result = outcome;
		t->flags |= p->flags_in;
		if (p->flags_in & PINCH_FLAG_NONFINITE)
			t->nonfinite |= 1u << p->rank;
	}
	t->take_ns += now_ns() - start;
	return result;
}

// Where none has come back since time was up last, tokens are lost: go on without them. What cannot
// be sent even now is asked for.
static void forgive(struct tokens *t)
{
	uint64_t stride = t->config->stride, back = (taken(t) + stride - 1) / stride;
	uint32_t before = t->returned;

	t->returned = __atomic_load_n(&t->control->returned, __ATOMIC_SEQ_CST);
	if (unsent(t) && t->returned == before) {
		__atomic_store_n(&t->control->returned, (uint64_t)t->seq << 32 | back,
				 __ATOMIC_SEQ_CST);
		push(t);
	}
}

// Has everything landed, and been sent? Without a doorbell, tokens go on sending.
static bool is_done(const struct tokens *t)
{
	const uint32_t *complete = &t->control->complete[t->seq & 1];

	return __atomic_load_n(complete, __ATOMIC_SEQ_CST) == t->config->partners &&
	       (t->doorbell < 0 || !unsent(t));
}

int tokens_wait(struct tokens *t, int64_t ns);

// Sleep until everything has landed, and send the rest meanwhile, or until time is up. Returns enum
// tokens_waited.
int tokens_wait(struct tokens *t, int64_t ns)
{
	uint64_t start = now_ns(), end = start + (ns > 0 ? ns : 0);
	int result = -1;

	while (result < 0) {
		struct pollfd p = { t->events, POLLIN, 0 };
		uint64_t now;
		struct timespec left;

		if (t->control->gone || t->control->late) {
			result = TOKENS_OVER;
			break;
		}
		if (is_done(t)) {
			t->wait_ns += now_ns() - start;
			return take_all(t);
		}
		// What comes from here on wakes this thread.
		__atomic_store_n(t->consumer, __atomic_load_n(t->producer, __ATOMIC_ACQUIRE),
				 __ATOMIC_SEQ_CST);
		if (is_done(t))
			continue;
		now = now_ns();
		if (now >= end) {
			forgive(t);
			result = TOKENS_TIME_UP;
			break;
		}
		if (t->doorbell >= 0 && unsent(t)) {
			__atomic_store_n(&t->control->stalled, 1, __ATOMIC_SEQ_CST);
			if (credit(t)) {
				__atomic_store_n(&t->control->stalled, 0, __ATOMIC_SEQ_CST);
				push(t);
				continue;
			}
		}
		left = (struct timespec){ (end - now) / 1000000000, (end - now) % 1000000000 };
		ppoll(&p, 1, &left, NULL);
	}
	t->wait_ns += now_ns() - start;
	return result;
}

int tokens_add(struct tokens *t);

// Let the program form all sums of what has landed. Returns an errno, or 0.
int tokens_add(struct tokens *t)
{
	char frame[64] = {}; // it only has to be there
	union bpf_attr a = { .test = {
				     .prog_fd = t->adder,
				     .repeat = 1,
				     .data_in = (uintptr_t)frame,
				     .data_size_in = sizeof(frame),
			     } };
	volatile uint32_t *added = &t->control->added;

	*added = 0;
	while (*added < t->config->parts) {
		uint32_t before = *added;

		if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &a, sizeof(a)) == 0) {
			if (*added == before)
				return EPROTO;
		} else if (errno != EINTR) {
			return errno;
		}
	}
	return 0;
}

// Slots and frames that have not been used for long would belong to the future once numbers wrap:
// they move on with the others of the exchange that is left, whose frames are not accepted any
// more.
static void move_on(struct tokens *t)
{
	for (uint32_t slot = 0; slot < t->config->slots; slot++)
		__atomic_store_n(&slot_at(t, slot)->claim, (uint64_t)t->seq << 32 | TOKEN_LANDED,
				 __ATOMIC_SEQ_CST);
	for (uint32_t frame = 0; frame < t->config->outs; frame++)
		__atomic_store_n(&out_at(t, t->seq, frame)->acked, t->seq, __ATOMIC_SEQ_CST);
}

void tokens_open(struct tokens *t, uint32_t seq);

// Leave the exchange that has been taken, and open the next.
void tokens_open(struct tokens *t, uint32_t seq)
{
	uint32_t parity = t->seq & 1;

	if (t->seq)
		for (uint32_t i = 0; i < t->config->partners; i++) {
			struct token_peer *peer = &t->peers[t->partners[i].rank];

			peer->frames[parity] = 0;
			__atomic_store_n(&peer->landed[parity], 0, __ATOMIC_SEQ_CST);
		}
	__atomic_store_n(&t->control->complete[parity], 0, __ATOMIC_SEQ_CST);
	if (t->seq && t->seq % TOKEN_EPOCH < 4) // of both parities
		move_on(t);
	t->seq = seq;
	__atomic_store_n(&t->control->open, seq, __ATOMIC_SEQ_CST);
}
