/* Waiting for results, and having sent again what is missing. Process.stall of testbed/protocol/process.py decides the same. */
#pragma once

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "ring.h"

#define LEAST_HOLDOFF_US 200
#define MOST_HOLDOFF_US 500 /* a loss is recovered in about that time: with 2 ms, 1 % of loss cost a third of the goodput at 16 MiB */
#define LEAST_TIMEOUT_NS 1000000 /* of a probe: on a busy machine a rank may wait as long for a CPU */
#define FIRST_TIMEOUT_NS 5000000 /* until round trips are known */
#define MOST_TIMEOUT_NS 20000000 /* probes cost little, and a loss that nobody sees is found by nothing else */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Take in the round trips that the programs have measured since the last time: smoothed and its variation, as RFC 6298 has them. */
static void note_round_trips(struct ring *r)
{
	struct control *c = r->control;
	uint32_t samples = __atomic_load_n(&c->rtt_samples, __ATOMIC_RELAXED), count = samples - r->rtt_samples;
	uint64_t sum = __atomic_load_n(&c->rtt_sum_us, __ATOMIC_RELAXED);
	int64_t mean, most;

	if (!count)
		return;
	mean = (int64_t)(sum - r->rtt_sum_us) * 1000 / count;
	most = (int64_t)c->rtt_max_us * 1000 - mean;
	if (!r->srtt) {
		r->srtt = mean;
		r->rttvar = mean / 2;
	} else {
		int64_t off = r->srtt > mean ? r->srtt - mean : mean - r->srtt;

		r->rttvar = (3 * r->rttvar + off) / 4;
		r->srtt = (7 * r->srtt + mean) / 8;
	}
	r->rttvar = r->rttvar > most / 4 ? r->rttvar : most / 4;
	c->rtt_max_us = 0;
	c->holdoff_us = MIN(2 * r->srtt / 1000 > LEAST_HOLDOFF_US ? 2 * r->srtt / 1000 : LEAST_HOLDOFF_US, MOST_HOLDOFF_US);
	r->rtt_samples = samples;
	r->rtt_sum_us = sum;
}

/* How long nothing may come before it is asked why. */
static int64_t probe_timeout(const struct ring *r)
{
	int64_t base = r->srtt ? r->srtt + 4 * r->rttvar : FIRST_TIMEOUT_NS;

	base = base > LEAST_TIMEOUT_NS ? base : LEAST_TIMEOUT_NS;
	base = base < MOST_TIMEOUT_NS ? base : MOST_TIMEOUT_NS;
	for (uint32_t stall = 0; stall < r->stalls && base < MOST_TIMEOUT_NS; stall++)
		base = 2 * base < MOST_TIMEOUT_NS ? 2 * base : MOST_TIMEOUT_NS;
	return base;
}

/* Frames that have brought something new. */
static uint64_t moved(const struct ring *r)
{
	uint64_t sum = 0;

	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		sum += __atomic_load_n(&r->cpus[cpu].progress, __ATOMIC_RELAXED);
	return sum;
}

/* How many chunks may be asked for at once. That nothing comes may mean that all is lost, or that all stands in a queue, which asking
 * would make longer, the more ranks ask the longer: half as many as the last time, until something comes, and then as many more as
 * results have come (RFC 5681: after a timeout, slow start).
 */
static uint32_t allowance(struct ring *r, uint32_t most)
{
	uint32_t stored = __atomic_load_n(&r->control->stored, __ATOMIC_SEQ_CST), come = stored - MIN(r->asked, stored);

	r->allowed = come ? MIN(r->allowed + come, most) : (r->allowed > 1 ? r->allowed / 2 : 1);
	r->asked = stored;
	return r->allowed;
}

/* Is the next frame about a chunk known to be lost? */
static bool is_lost(const struct ring *r, uint32_t chunk, uint32_t generation)
{
	const struct record *record = &r->records[chunk];
	bool begun = chunk % r->ranks == r->rank || generation_of(read_word(&record->reduced)) == generation;

	return __atomic_load_n(&record->lost[begun ? RESULT : PARTIAL], __ATOMIC_RELAXED) == generation;
}

/* Ask the rank before what it has sent last, on each CPU: what does not come before its answer is lost. */
static void probe(struct ring *r, uint32_t generation)
{
	__atomic_store_n(&r->control->flushed, 0, __ATOMIC_SEQ_CST);
	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		ring_order(r, PROBE, generation, (r->rank + r->ranks - 1) % r->ranks, r->probes++ & 0xff, r->cpu_count > 1 ? cpu : ANYWHERE);
}

/* Nothing has come for a while. Launch what should have been launched, have sent again what is known to be lost, and find out what else is. When
 * the rank before has answered on all CPUs, and still nothing comes, ask for what is missing first without knowing why: what has been
 * said about it may have been lost as well.
 */
void ring_stall(struct ring *r, uint32_t total)
{
	struct control *c = r->control;
	uint64_t all = r->cpu_count >= 64 ? ~0ull : (1ull << r->cpu_count) - 1;
	uint32_t generation = c->progress >> 32, ready = (uint32_t)c->progress, most = r->window * r->ranks;
	uint32_t allowed = allowance(r, most), next = (uint32_t)__atomic_load_n(&c->next, __ATOMIC_SEQ_CST), end, blind = 0;
	bool flushed = r->stalls && (__atomic_load_n(&c->flushed, __ATOMIC_SEQ_CST) & all) == all, known = false;

	while (r->front < total && is_done(r, r->front, generation))
		r->front++;
	c->front = r->front;
	end = total - r->front < REACH * most ? total : r->front + REACH * most;
	for (int pass = 0; pass < 2 && !known; pass++) {
		for (uint32_t chunk = r->front; chunk < end && chunk < ready && allowed; chunk++) {
			const struct record *record = &r->records[chunk];
			uint64_t result = read_word(&record->result);
			bool mine = chunk % r->ranks == r->rank;

			if (generation_of(result) == generation && (uint8_t)result == RESULT_DONE)
				continue;
			if (mine && generation_of(read_word(&record->reduced)) != generation) {
				if (!pass && chunk / r->ranks < next)
					ring_order(r, LAUNCH, generation, chunk, 0, 0);
				continue;
			}
			if (generation_of(result) == generation && (uint8_t)result == RESULT_REFUSED)
				ring_order(r, RESTART, generation, chunk, 0, (uint8_t)(result >> 8));
			if (pass ? blind++ < BLIND : is_lost(r, chunk, generation)) {
				ring_order(r, REQUEST, generation, chunk, 0, 0);
				allowed--;
				known = true;
			}
		}
		if (!flushed)
			break;
	}
	r->stalls++;
	probe(r, generation);
}

/* Sleep until `target` results are stored or time is up. 1: stored; 0: not yet; negative: errno. First let the other
 * ranks have the CPU a few times: when all are about to finish, that is sooner than a sleep and an interrupt.
 */
static int wait_for(struct ring *r, uint32_t target, int64_t timeout_ns)
{
	struct control *c = r->control;
	struct pollfd events = { .fd = r->events, .events = POLLIN };
	uint64_t now, end;

	for (; r->patience; r->patience--) {
		if (__atomic_load_n(&c->stored, __ATOMIC_SEQ_CST) >= target)
			return 1;
		r->syscalls++;
		sched_yield();
	}
	now = now_ns();
	end = now + timeout_ns;
	note_round_trips(r);
	r->quiet_since = r->stalls ? r->quiet_since : now;
	for (;; now = now_ns()) {
		int64_t left = (int64_t)(end - now), quiet;
		uint64_t come = moved(r);
		struct timespec pause;

		__atomic_exchange_n(&c->wake_at, target, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&c->stored, __ATOMIC_SEQ_CST) >= target)
			return 1;
		if (left <= 0)
			return 0;
		if (come != r->moved) {
			r->moved = come;
			r->quiet_since = now;
			r->stalls = 0;
			note_round_trips(r);
		}
		quiet = (int64_t)(r->quiet_since - now) + probe_timeout(r);
		if (quiet <= 0 && target != UINT32_MAX) {
			int error;

			ring_stall(r, target);
			error = ring_flush(r);
			if (error)
				return -error;
			r->quiet_since = now;
			quiet = probe_timeout(r);
		}
		left = left < quiet || quiet <= 0 ? left : quiet;
		pause = (struct timespec){ left / 1000000000, left % 1000000000 };
		r->syscalls++;
		if (ppoll(&events, 1, &pause, NULL) < 0 && errno != EINTR)
			return -errno;
		__atomic_store_n(r->consumer, __atomic_load_n(r->producer, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	}
}
