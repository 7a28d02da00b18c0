/* Waiting for results, and having sent again what is missing. Process.stall of testbed/protocol/ring/process.py decides the same. */
#pragma once

#include <errno.h>
#include <poll.h>
#include <sched.h>

#include "clock.h"
#include "ring.h"

/* How long nothing new may come on a CPU before it is asked why: longer each time, as long as nothing does. Probes cost little, and have nothing sent
 * again that is not lost, so this need not follow round trips, which on a busy machine are mostly the time that ranks wait for a CPU.
 */
#define LEAST_TIMEOUT_NS 500000
#define MOST_TIMEOUT_NS 16000000
#define DOUBLINGS 5
#define CHASE_DOUBLINGS 1 /* while something is known to be lost: what is sent again may get lost again, with `origin` on any of its hops */

/* How many chunks may be asked for at once. That nothing comes may mean that all is lost, or that all stands in a queue, which asking
 * would make longer, the more ranks ask the longer: half as many as the last time, until something comes, and then as many more as
 * frames have brought something new (RFC 5681: after a timeout, slow start).
 */
static uint32_t allowance(struct ring *r, uint32_t most)
{
	uint64_t progress = ring_progress(r), come = progress - r->asked;

	r->allowed = come ? MIN(r->allowed + come, most) : (r->allowed > 1 ? r->allowed / 2 : 1);
	r->asked = progress;
	return r->allowed;
}

/* Has the rank before all results, so that it has sent whatever this rank lacks? */
static bool is_complete(const struct ring *r, uint32_t generation)
{
	const struct ring_rank *before = &r->peers[(r->rank + r->ranks - 1) % r->ranks];
	uint32_t entered = __atomic_load_n(&before->generation, __ATOMIC_RELAXED);

	return before->settled == generation || (entered && generation_is_before(generation, entered));
}

/* Is the next frame about a chunk known to be lost? */
static bool is_lost(const struct ring *r, uint32_t chunk, uint32_t generation)
{
	const struct ring_chunk *record = &r->records[chunk];
	bool begun = chunk % r->ranks == r->rank || generation_of(read_word(&record->reduced)) == generation;

	return __atomic_load_n(&record->lost[begun ? RING_STAGE_RESULT : RING_STAGE_PARTIAL], __ATOMIC_RELAXED) == generation;
}

/* Ask the rank before what it has sent last on a CPU: what does not come before its answer is lost. */
void ring_probe(struct ring *r, uint32_t generation, uint32_t cpu)
{
	__atomic_fetch_and(&r->control->flushed, ~(1ull << cpu % 64), __ATOMIC_SEQ_CST);
	ring_order(r, RING_ORDER_PROBE, generation, (r->rank + r->ranks - 1) % r->ranks, r->probes++ & 0xffff, r->cpu_count > 1 ? cpu : RING_ANYWHERE);
}

/* Look at results before all are here, each once, from where the last call has stopped. Those that are good are so for ranks that have refused theirs:
 * with none, nobody has any reason to make the sum anew but those that lack it, and what gets lost on its way there may never be asked for.
 */
static void verify_early(struct ring *r, uint32_t total, uint32_t generation)
{
	uint32_t length = r->control->tensors[generation & 1].length, most = MIN(REACH * r->window * r->ranks, total);

	for (uint32_t looked = 0; looked < most; looked++, r->verified++) {
		uint32_t chunk = r->verified = r->verified < total ? r->verified : 0;
		__u64 *result = &r->records[chunk].result, word = read_word(result);

		if (generation_of(word) != generation || (uint8_t)word != RING_RESULT_DONE)
			continue;
		if (lanes_verify(r->results + (uint64_t)chunk * r->chunk_bytes, length))
			__atomic_compare_exchange_n(result, &word, word - RING_RESULT_DONE + RING_RESULT_VERIFIED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		else
			ring_refuse(r, chunk);
	}
}

/* Nothing new has come on a CPU for a while. Launch what should have been launched, and have sent again what is known to be lost and has not been asked
 * for lately. When the rank before has answered on all CPUs, and nothing comes on any of them (`still`), verify what is here, and ask for some of what
 * is missing without knowing why: what has been said about it may have been lost as well. Each call goes on behind what the last one has asked for, so that
 * what nobody can send yet does not keep the rest from being asked for.
 */
void ring_stall(struct ring *r, uint32_t total, uint32_t now_us, bool still)
{
	struct ring_control *c = r->control;
	uint64_t all = r->cpu_count >= 64 ? ~0ull : (1ull << r->cpu_count) - 1;
	uint32_t generation = generation_of(c->progress), ready = (uint32_t)c->progress, most = r->window * r->ranks;
	uint32_t allowed = allowance(r, most), next = (uint32_t)__atomic_load_n(&c->next, __ATOMIC_SEQ_CST), end, chunk, blind = 0;
	bool flushed = still && r->stalls && (__atomic_load_n(&c->flushed, __ATOMIC_SEQ_CST) & all) == all;
	bool complete = flushed && is_complete(r, generation);

	if (flushed)
		verify_early(r, MIN(total, ready), generation);
	while (r->front < total && is_done(read_word(&r->records[r->front].result), generation))
		r->front++;
	c->front = r->front;
	end = MIN(MIN(total, ready), r->front + REACH * most);
	chunk = r->next >= r->front && r->next < end ? r->next : r->front;
	r->chasing = false;
	for (uint32_t left = end > r->front ? end - r->front : 0; left && allowed; left--, chunk = chunk + 1 < end ? chunk + 1 : r->front) {
		const struct ring_chunk *record = &r->records[chunk];
		uint64_t result = read_word(&record->result);
		bool known, refused;

		if (is_done(result, generation))
			continue;
		if (chunk % r->ranks == r->rank && generation_of(read_word(&record->reduced)) != generation) {
			if (chunk / r->ranks < next)
				ring_order(r, RING_ORDER_LAUNCH, generation, chunk, 0, 0);
			continue;
		}
		if (now_us - __atomic_load_n(&record->asked_us, __ATOMIC_RELAXED) < c->holdoff_us)
			continue;
		refused = generation_of(result) == generation && (uint8_t)result == RING_RESULT_REFUSED;
		known = complete || refused || is_lost(r, chunk, generation);
		if (!known && (!flushed || blind++ >= BLIND))
			continue;
		if (refused && read_word(&record->reduced) <= word_of(generation, (uint8_t)(result >> 8))) /* no later round has come by here */
			ring_order(r, RING_ORDER_RESTART, generation, chunk, 0, (uint8_t)(result >> 8));
		ring_order(r, RING_ORDER_REQUEST, generation, chunk, 0, 0);
		r->chasing |= known;
		r->next = chunk + 1;
		allowed--;
	}
	r->stalls++;
}

/* How long a CPU may be quiet before it is asked why. */
static int64_t timeout_of(const struct ring *r, const struct ring_quiet *quiet)
{
	return (int64_t)LEAST_TIMEOUT_NS << MIN(quiet->probes, r->chasing ? CHASE_DOUBLINGS : DOUBLINGS);
}

/* Has something new come on a CPU since the last look? If not, when is it to be asked why? */
static bool has_moved(struct ring *r, uint32_t cpu, uint64_t now, int64_t *left)
{
	uint64_t progress = __atomic_load_n(&r->cpus[cpu].progress, __ATOMIC_RELAXED);
	struct ring_quiet *quiet = &r->quiet[cpu];
	bool moved = progress != quiet->progress;

	if (moved) {
		quiet->progress = progress;
		quiet->since = now;
		quiet->probes = 0;
	}
	*left = MIN(*left, (int64_t)(quiet->since - now) + timeout_of(r, quiet));
	return moved;
}

/* Look at all CPUs' lanes; *left is cut to the time until one of them is to be looked at again. 0, or an errno. */
static int look(struct ring *r, uint32_t target, uint64_t now, int64_t *left)
{
	uint32_t generation = generation_of(r->control->progress);
	bool still = true, stalled = false;

	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++) {
		int64_t cpu_left = INT64_MAX;

		still = !has_moved(r, cpu, now, &cpu_left) && still;
		stalled = cpu_left <= 0 || stalled;
		*left = cpu_left > 0 ? MIN(*left, cpu_left) : MIN(*left, LEAST_TIMEOUT_NS);
	}
	if (!still)
		r->stalls = 0;
	if (!stalled)
		return 0;
	ring_stall(r, target, now / 1000, still);
	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++) {
		struct ring_quiet *quiet = &r->quiet[cpu];

		if ((int64_t)(now - quiet->since) < timeout_of(r, quiet))
			continue;
		ring_probe(r, generation, cpu);
		quiet->since = now;
		quiet->probes++;
	}
	return ring_flush(r);
}

/* Sleep until `target` results are stored or time is up. 1: stored; 0: not yet; negative: errno. First let the other
 * ranks have the CPU a few times: when all are about to finish, that is sooner than a sleep and an interrupt.
 */
static int wait_for(struct ring *r, uint32_t target, int64_t timeout_ns)
{
	struct ring_control *c = r->control;
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
	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		if (!r->quiet[cpu].probes) /* until now this process was busy itself */
			r->quiet[cpu].since = now;
	for (;; now = now_ns()) {
		int64_t left = (int64_t)(end - now);
		struct timespec pause;
		int error;

		__atomic_exchange_n(&c->wake_at, target, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&c->stored, __ATOMIC_SEQ_CST) >= target)
			return 1;
		if (left <= 0)
			return 0;
		error = target == NEVER ? 0 : look(r, target, now, &left);
		if (error)
			return -error;
		pause = (struct timespec){ left / 1000000000, left % 1000000000 };
		r->syscalls++;
		if (ppoll(&events, 1, &pause, NULL) < 0 && errno != EINTR)
			return -errno;
		__atomic_store_n(r->consumer, __atomic_load_n(r->producer, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	}
}
