/* Waiting for results, and asking for the last ones. */
#pragma once

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "ring.h"

static inline uint32_t done(struct ring *r, uint32_t chunk)
{
	return __atomic_load_n(&r->records[chunk].done, __ATOMIC_RELAXED);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Take the events that only woke this process. Is there one left, for the recovery? */
static bool heard(struct ring *r)
{
	while (*r->consumer < __atomic_load_n(r->producer, __ATOMIC_ACQUIRE)) {
		const char *event = r->event_data + *r->consumer % EVENTS;
		uint32_t length = __atomic_load_n((const uint32_t *)event, __ATOMIC_ACQUIRE);

		if (length >> 31) /* being written */
			return false;
		if (*(const uint32_t *)(event + 8) != EVENT_STORED)
			return true;
		__atomic_store_n(r->consumer, *r->consumer + 8 + (((length & 0x3fffffff) + 7) & ~7u), __ATOMIC_RELEASE);
	}
	return false;
}

/* How many chunks may be asked for at once. That nothing comes may mean that all is lost, or that all stands in a queue, which asking
 * would make longer, the more ranks ask the longer: half as many as the last time, until something comes, and then as many more as
 * results have come (RFC 5681: after a timeout, slow start).
 */
static uint32_t allowance(struct ring *r, uint32_t most)
{
	uint32_t stored = __atomic_load_n(&r->control->stored, __ATOMIC_SEQ_CST), come = stored - MIN(r->chased, stored);

	r->allowed = come ? MIN(r->allowed + come, most) : (r->allowed > 1 ? r->allowed / 2 : 1);
	r->chased = stored;
	return r->allowed;
}

/* Nothing has come for a while, so no later result tells what is missing: have sent what every rank has published, which is all of the
 * block of the latest result that is here, and which therefore is lost, not late (at the end: a tail loss, RFC 8985). If nothing of
 * this rank's own is under way, its tokens are lost: begin with new ones. Process.chase of testbed/protocol/process.py.
 */
void ring_chase(struct ring *r, uint32_t total)
{
	struct control *c = r->control;
	uint32_t generation = c->progress >> 32, ready = (uint32_t)c->progress, most = r->window * r->ranks;
	uint32_t allowed = allowance(r, most);
	uint32_t next = (uint32_t)__atomic_load_n(&c->next, __ATOMIC_SEQ_CST), end, here, published;
	bool flying = false;

	while (r->front < total && done(r, r->front) == generation)
		r->front++;
	end = total - r->front < CHASED * most ? total : r->front + CHASED * most;
	here = r->front; /* behind the latest result */
	for (uint32_t chunk = r->front; chunk < end; chunk++)
		if (done(r, chunk) == generation)
			here = chunk + 1;
	published = here > r->last ? total : (here + r->block - 1) / r->block * r->block;
	for (uint32_t chunk = r->front; chunk < end; chunk++) {
		bool mine = chunk % r->ranks == r->rank, launched = mine && chunk < ready && chunk / r->ranks < next;

		if (done(r, chunk) == generation)
			continue;
		flying |= launched;
		if (!allowed || chunk >= published)
			continue;
		if (launched)
			ring_order(r, LAUNCH, generation, chunk, (r->records[chunk].attempt + 1) & 0xff);
		else if (!mine)
			ring_order(r, REQUEST, generation, chunk, 0);
		allowed -= launched || !mine;
	}
	for (uint32_t token = 0; !flying && token < r->window && r->rank + r->ranks * next < ready; token++) {
		next = ring_take(r, 1);
		if (r->rank + r->ranks * next < ready)
			ring_order(r, LAUNCH, generation, r->rank + r->ranks * next, 0);
		next++;
	}
}

/* Sleep until `target` results are stored, an event comes, or time is up. 1: stored; 0: not yet; negative: errno. First let the other
 * ranks have the CPU a few times: when all are about to finish, that is sooner than a sleep and an interrupt.
 */
static int wait_for(struct ring *r, uint32_t target, int64_t timeout_ns)
{
	struct control *c = r->control;
	struct pollfd events = { .fd = r->events, .events = POLLIN };
	uint32_t stored, before = 0, tail = CHASED * r->window * r->ranks, near = target > tail ? target - tail : 0;
	int64_t end = now_ns() + timeout_ns;

	for (; r->patience; r->patience--) {
		if (__atomic_load_n(&c->stored, __ATOMIC_SEQ_CST) >= target)
			return 1;
		r->syscalls++;
		sched_yield();
	}
	for (;;) {
		int64_t left = end - (int64_t)now_ns(), most;
		struct timespec pause;

		__atomic_exchange_n(&c->wake_at, target, __ATOMIC_SEQ_CST);
		stored = __atomic_load_n(&c->stored, __ATOMIC_SEQ_CST);
		if (stored >= target)
			return 1;
		if (left <= 0)
			return 0;
		if (stored && stored == before) {
			int error;

			ring_chase(r, target);
			error = ring_flush(r);
			if (error)
				return -error;
		}
		before = stored;
		most = stored < near ? FAR * r->chase_ns : r->chase_ns;
		left = left < most ? left : most;
		pause = (struct timespec){ left / 1000000000, left % 1000000000 };
		r->syscalls++;
		if (ppoll(&events, 1, &pause, NULL) < 0 && errno != EINTR)
			return -errno;
		if (heard(r))
			return __atomic_load_n(&c->stored, __ATOMIC_SEQ_CST) >= target;
	}
}
