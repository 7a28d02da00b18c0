/* The process's side of an exchange: its system calls, and the memory that it shares with the
 * kernel (bpf/shared/pinch_abi.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "clock.h"
#include "lib/seq.h"
#include "pinch_fixed_point.h"

/* The flows, a bit each, that have sent all of the frames before `frames` and for which there are
 * further frames now. Nothing but a kick makes them go on. */
static uint64_t waiting_flows(const struct pinch *p, uint32_t frames)
{
	uint64_t waiting = 0, number;

	for (uint32_t i = 0; i < p->flow_count; i++) {
		uint32_t next = __atomic_load_n(&p->flows[i].next, __ATOMIC_SEQ_CST);

		if (next >= p->flows[i].total)
			continue;
		number = p->schedule[(size_t)i * p->capacity + next];
		if (number >= frames && number < (uint32_t)p->control->progress)
			waiting |= 1ull << i;
	}
	return waiting;
}

/* Kick flows, a bit each, with one system call. Returns 0 or an errno. */
static int kick_flows(struct pinch *p, uint64_t flows)
{
	struct mmsghdr messages[p->kick_count];
	struct iovec parts[p->kick_count];
	uint32_t count = 0;

	memset(messages, 0, sizeof(messages));
	for (uint32_t i = 0; i < p->kick_count; i++) {
		char *kick = (char *)p->kicks + (size_t)i * p->kick_length;

		if (!(flows >> ((struct ring_frame *)kick)->flow & 1))
			continue;
		parts[count] = (struct iovec){ kick, p->kick_length };
		messages[count].msg_hdr =
			(struct msghdr){ .msg_iov = &parts[count], .msg_iovlen = 1 };
		count++;
	}
	return count && sendmmsg(p->doorbell, messages, count, 0) < 0 ? errno : 0;
}

/* Kick every flow, with one system call. Returns 0 or an errno. */
int pinch_kick(struct pinch *p)
{
	return kick_flows(p, ~0ull);
}

/* Make the programs send handshakes to all partners. Returns 0 or an errno. */
static int kick_handshakes(const struct pinch *p)
{
	return send(p->doorbell, p->handshake_kick, p->handshake_kick_length, 0) < 0 ? errno : 0;
}

/* Reset words that carry neither of two sequence numbers. Programs may be running. */
static void forget_words(__u64 *words, uint32_t count, uint32_t before, uint32_t seq,
			 uint64_t empty)
{
	for (uint32_t i = 0; i < count; i++) {
		__u64 word = __atomic_load_n(&words[i], __ATOMIC_RELAXED);

		if (seq_of(word) != before && seq_of(word) != seq)
			__atomic_compare_exchange_n(&words[i], &word, empty, false,
						    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
	}
}

/* Reset all that carries neither of two sequence numbers; must_forget of
 * testbed/protocol/sequence.py says why and when. */
static void forget(struct pinch *p, uint32_t before, uint32_t seq)
{
	uint64_t empty = word_of(before, 0);

	forget_words(p->seen, p->seen_words, before, seq, empty);
	forget_words(p->acked, p->acked_words, before, seq, empty);
	forget_words(p->hub_queue, p->hub_places, before, seq, empty);
	for (uint32_t i = 0; i < p->ranks; i++) {
		forget_words(p->peers[i].ours, 2, before, seq, 0);
		forget_words(p->peers[i].theirs, 2, before, seq, 0);
	}
	for (uint32_t i = 0; i < p->sent_records; i++)
		if (p->sent[i].seq != before)
			p->sent[i].seq = 0;
}

/* From here on, accept frames of a sequence number; there is nothing to send yet.
 *
 * All frames of the exchange before have arrived and are acknowledged, so its counts are no longer
 * needed. Frames of this one count from the moment that `progress` names it, so all counts are
 * reset before; but kicks must find no frame to send before they find `next` reset.
 *
 * A program that sends may have begun before. It could send data of the new exchange under the old
 * sequence number, to a rank that is still in the old one and would add it. So the process, which
 * changes frames from here on, waits for that program to end, a few microseconds at most.
 */
void pinch_open(struct pinch *p, uint32_t seq)
{
	volatile struct pinch_control *c = p->control;
	uint32_t before = seq_of(c->progress);

	if (before >> 30 != seq >> 30)
		forget(p, before, seq);
	c->copies = PINCH_UNKNOWN;
	c->unfit = 0;	      /* sequence numbers repeat */
	c->taken = c->handed; /* frames that were dropped in between will not arrive any more */
	c->acked = c->received = c->owed = c->queued = c->served = 0;
	for (uint32_t i = 0; i < p->banks; i++)
		p->landed[i] = 0;
	for (uint32_t i = 0; i < p->ranks; i++)
		p->peers[i].received = p->peers[i].acked = 0;
	__atomic_store_n(&p->control->progress, word_of(seq, 0), __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&p->control->sending, __ATOMIC_SEQ_CST))
		;
	for (uint32_t i = 0; i < p->flow_count; i++)
		p->flows[i].next = p->flows[i].in_flight = 0;
}

/* Enter the exchange: send handshakes to all partners. Returns 0 or an errno.
 *
 * exponent: of its largest value, as handshakes encode it; lowest, highest: bounds of the largest
 * exponent of all ranks with which payloads can be sent.
 */
int pinch_enter(struct pinch *p, uint32_t exponent, uint32_t lowest, uint32_t highest)
{
	uint32_t seq = seq_of(p->control->progress);
	uint64_t word = word_of(seq, exponent);

	p->control->lowest = lowest;
	p->control->highest = highest;
	for (uint32_t i = 0; i < p->ranks; i++)
		p->peers[i].ours[seq & 1] = word | p->frames_to[i] << PINCH_EXPONENT_BITS;
	__atomic_store_n(&p->peers[p->rank].theirs[seq & 1], word, __ATOMIC_SEQ_CST);
	return kick_handshakes(p);
}

/* The largest exponent of any rank that has entered, as handshakes encode it. */
uint32_t pinch_highest(const struct pinch *p)
{
	uint32_t seq = seq_of(p->control->progress);
	uint32_t highest = 0;

	for (uint32_t i = 0; i < p->ranks; i++) {
		uint64_t word = p->peers[i].theirs[seq & 1];
		uint32_t exponent = word & ((1 << PINCH_EXPONENT_BITS) - 1);

		if (seq_of(word) == seq && exponent > highest)
			highest = exponent;
	}
	return highest;
}

/* Allow all frames before `frames` to be sent, and kick the flows that wait for them. Returns 0 or
 * an errno. */
static int publish(struct pinch *p, uint32_t frames)
{
	uint32_t seq = seq_of(p->control->progress), before = (uint32_t)p->control->progress;

	__atomic_store_n(&p->control->progress, word_of(seq, frames), __ATOMIC_SEQ_CST);
	/* Otherwise the last handshake, which is also a kick, arrives after this check. A flow that
	 * has not sent all frames before these finds them when it goes on: either it sees the new
	 * `progress`, or this sees its `next`. */
	if (seq_of(__atomic_load_n(&p->control->met, __ATOMIC_SEQ_CST)) != seq)
		return 0;
	return kick_flows(p, waiting_flows(p, before));
}

/* Fill the frames of bundles `from` to `to`, and publish them; see pinch_fill. Returns 0 or an
 * errno. */
int pinch_send_some(struct pinch *p, const float *x, const int32_t *order, const int64_t *starts,
		    uint32_t from, uint32_t to, double factor, int32_t *last)
{
	uint32_t parts = p->format.parts;
	uint64_t began = now_ns(), filled;
	int error;

	pinch_fill(&p->format, x, order, starts, from * parts, to * parts, p->payloads, p->frames,
		   factor, last);
	filled = now_ns();
	error = publish(p, to * parts);
	p->quantize_ns += filled - began;
	p->send_ns += now_ns() - filled;
	return error;
}

/* Fill the frames of all bundles. They are published a few at a time, so that programs send the
 * first while this fills the next. Returns 0 or an errno. */
int pinch_send(struct pinch *p, const float *x, const int32_t *order, const int64_t *starts,
	       uint32_t bundles, double factor, int32_t *last)
{
	uint32_t batch = (PINCH_FILL + p->format.parts - 1) / p->format.parts, from = 0, to;
	int error = 0;

	batch = bundles / PINCH_FILLS > batch ? bundles / PINCH_FILLS : batch;
	for (; from < bundles && !error; from = to) {
		to = bundles - from < 2 * batch ? bundles : from + batch;
		error = pinch_send_some(p, x, order, starts, from, to, factor, last);
	}
	return error;
}

/* Has everything arrived, been added, and been acknowledged? */
bool pinch_done(const struct pinch *p)
{
	const volatile struct pinch_control *c = p->control;

	return seq_of(c->met) == seq_of(c->progress) && c->received == (uint32_t)c->met &&
	       !c->owed && c->acked == c->copies;
}

/* Have all ranks entered, and does the scale of the payloads not fit? */
static bool is_unfit(const struct pinch *p)
{
	const volatile struct pinch_control *c = p->control;

	return c->unfit == seq_of(c->progress) && seq_of(c->met) != seq_of(c->progress);
}

/* Have exchanges ended? */
static bool has_ended(const struct pinch *p)
{
	const volatile struct pinch_control *c = p->control;

	return c->nonfinite || c->gone || c->late;
}

/* Tell all ranks that exchanges have ended. The ranks with values that are not finite, those that
 * went silent, and those that are up but did not enter in time, a bit each. Returns 0 or an errno.
 */
int pinch_end(struct pinch *p, uint32_t nonfinite, uint32_t gone, uint32_t late)
{
	__atomic_fetch_or(&p->control->nonfinite, nonfinite, __ATOMIC_SEQ_CST);
	__atomic_fetch_or(&p->control->gone, gone, __ATOMIC_SEQ_CST);
	__atomic_fetch_or(&p->control->late, late, __ATOMIC_SEQ_CST);
	return kick_handshakes(p);
}

/* Is there nothing more to wait for? */
static bool is_over(const struct pinch *p)
{
	return pinch_done(p) || is_unfit(p) || has_ended(p);
}

/* Sleep until the exchange is complete (1), the scale does not fit (2), exchanges have ended (3),
 * or time is up (0); negative: errno. */
int pinch_wait(struct pinch *p, int64_t timeout_ns)
{
	struct pollfd events = { .fd = p->events, .events = POLLIN };
	uint64_t began = now_ns(), end = began + timeout_ns;
	int result = 0;

	/* Events of what has happened before the first look would only interrupt the sleep. */
	__atomic_store_n(p->consumer, __atomic_load_n(p->producer, __ATOMIC_ACQUIRE),
			 __ATOMIC_RELEASE);
	while (!is_over(p)) {
		int64_t left = (int64_t)(end - now_ns());
		struct timespec pause = { left / 1000000000, left % 1000000000 };

		if (left <= 0)
			break;
		if (ppoll(&events, 1, &pause, NULL) < 0 && errno != EINTR) {
			result = -errno;
			break;
		}
		__atomic_store_n(p->consumer, __atomic_load_n(p->producer, __ATOMIC_ACQUIRE),
				 __ATOMIC_RELEASE);
	}
	p->wait_ns += now_ns() - began;
	return result	       ? result
	       : pinch_done(p) ? PINCH_COMPLETE
	       : has_ended(p)  ? PINCH_OVER
	       : is_unfit(p)   ? PINCH_UNFIT
			       : PINCH_TIME_UP;
}
