/* Waiting for results, and recovery of what is missing. Reference model: Process.stall of
 * testbed/protocol/ring/process.py. */
#pragma once

#include <errno.h>
#include <poll.h>
#include <sched.h>

#include "clock.h"
#include "ring.h"

/* How long a CPU may make no progress before a probe is sent; the time doubles with each probe.
 * Probes are cheap and retransmit nothing that is not lost, so the time does not have to follow
 * round trips. Their answers measure these, for the nacks, which have to.
 */
#define LEAST_TIMEOUT_NS 500000
#define MOST_TIMEOUT_NS 16000000
#define DOUBLINGS 5
/* while a loss is known, because a retransmission may be lost again, with `origin` on any of its
 * hops */
#define RECOVERY_DOUBLINGS 1
#define UNDER_WAY 16 /* probes of a CPU within a round trip */
/* Shorter round trips of probes are mostly their way through the doorbell, which nacks do not take.
 */
#define SHORT_TRIP_US 500
/* A longer round trip was none: the process was stopped. */
#define MOST_TRIP_US 60000000

/* How many chunks may be nacked at once. Silence may mean that everything is lost, or that
 * everything waits in a queue, which nacks would make longer. So the number halves each time until
 * there is progress, and then grows by the number of frames that made the progress (RFC 5681: slow
 * start after a timeout).
 */
static uint32_t allowance(struct ring *r, uint32_t most)
{
	uint64_t progress = ring_progress(r), come = progress - r->nacked_at;

	r->allowed = come ? MIN(r->allowed + come, most) : (r->allowed > 1 ? r->allowed / 2 : 1);
	r->nacked_at = progress;
	return r->allowed;
}

/* Have there been losses lately? */
static bool is_lossy(const struct ring_control *c, uint32_t seq)
{
	uint32_t lossy = __atomic_load_n(&c->lossy, __ATOMIC_RELAXED);

	return lossy && seq - lossy < RING_LOSSY_FOR;
}

/* Is so long a silence worth asking, although there have been no losses lately? A rank whose
 * process waits for a CPU is late, and more questions do not help: each comes after twice the time.
 */
static bool is_long(uint32_t stalls)
{
	uint32_t times = stalls / PATIENCE;

	return times && stalls % PATIENCE == 0 && !(times & (times - 1));
}

/* Does the previous rank hold all results? Then it has sent whatever this rank lacks. */
static bool is_complete(const struct ring *r, uint32_t seq)
{
	const struct ring_rank *before = &r->peers[(r->rank + r->ranks - 1) % r->ranks];
	uint32_t entered = __atomic_load_n(&before->seq, __ATOMIC_RELAXED);

	return before->verified == seq || (entered && seq_is_before(seq, entered));
}

/* Where the next frame about a chunk is noted if it is missing. */
static uint32_t *missing(struct ring *r, uint32_t chunk, uint32_t seq)
{
	struct ring_chunk *record = &r->records[chunk];
	uint32_t gathered = ring_tensor_of(r)->gathered;
	bool begun = ring_is_mine(r, chunk) || seq_of(read_word(&record->reduced)) == seq ||
		     (gathered && chunk >= gathered);

	return &record->lost[begun ? RING_STAGE_RESULT : RING_STAGE_PARTIAL];
}

/* Ask the previous rank for the last frame that it sent on a CPU. Whatever has not arrived before
 * the answer is lost. */
void ring_probe(struct ring *r, uint32_t seq, uint32_t cpu, uint32_t now_us)
{
	uint32_t attempt = r->probes++ % RING_UNTIMED;

	r->probed_us[attempt % RING_TIMED] = now_us;
	__atomic_fetch_and(&r->control->flushed, ~(1ull << cpu % 64), __ATOMIC_SEQ_CST);
	ring_post(r, RING_WR_PROBE, seq, (r->rank + r->ranks - 1) % r->ranks, attempt,
		  r->cpu_count > 1 ? cpu : RING_ANYWHERE);
}

/* Although nothing has stalled, is it time to measure a round trip? It has to be known before a
 * frame is missing; while frames are, it is measured once per round trip, because it may have
 * changed. */
static bool measures(const struct ring *r, uint32_t now_us)
{
	const struct ring_control *c = r->control;
	uint32_t since = now_us - r->probed_us[(r->probes - 1) % RING_TIMED];
	bool again = is_lossy(c, seq_of(c->progress)) &&
		     since >= MAX(LEAST_TIMEOUT_NS / 1000, c->rto_us);

	return !r->stalls && (!r->probes || again);
}

/* The previous rank has answered a probe: adapt the times to the round trip. Every probe has an
 * attempt of its own, so it is clear which one was answered (RFC 6298). The least of the latest
 * round trips, and a quarter of it, is the time between two nacks: others contain waits for a CPU,
 * and a nack too many costs less than one that comes late. One short trip is not enough to call the
 * path short: frames that overtake others make some.
 */
void ring_answered(struct ring *r, uint64_t answer)
{
	uint32_t attempt = (uint32_t)answer, ago = (r->probes - 1 - attempt) % RING_UNTIMED,
		 trip = seq_of(answer) - r->probed_us[attempt % RING_TIMED];
	uint32_t rto, known, short_trips = 0;
	bool short_trip;
	int32_t off = (int32_t)(trip - r->mean8_us / 8);

	if (attempt >= RING_UNTIMED || ago >= RING_TIMED || !r->probes || trip > MOST_TRIP_US)
		return;
	if (!r->trips)
		r->least_holdoff_us = r->control->nack_holdoff_us;
	r->trips_us[r->trips++ % RING_TRIPS] = trip;
	known = MIN(r->trips, RING_TRIPS);
	for (uint32_t i = 0; i < known; i++) {
		trip = MIN(trip, r->trips_us[i]);
		short_trips += r->trips_us[i] < SHORT_TRIP_US;
	}
	short_trip = 2 * short_trips >= known; /* their lower median is */
	trip = short_trip ? 0 : trip + trip / 4;
	__atomic_store_n(&r->control->nack_holdoff_us, MAX(r->least_holdoff_us, trip),
			 __ATOMIC_RELAXED);
	trip = r->trips_us[(r->trips - 1) % RING_TRIPS];
	if (r->mean8_us) {
		r->mean8_us += off;
		r->deviation4_us += (off < 0 ? -off : off) - r->deviation4_us / 4;
	} else {
		r->mean8_us = 8 * trip;
		r->deviation4_us = 2 * trip;
	}
	rto = r->mean8_us / 8 + r->deviation4_us + 1;
	__atomic_store_n(&r->control->rto_us, short_trip ? r->control->nack_holdoff_us : rto,
			 __ATOMIC_RELAXED);
}

/* Verify results before all are stored, each once, from where the last call stopped. A verified
 * result serves ranks that have refused theirs. If no rank had a verified result, only the ranks
 * that lack it would have a reason to start its sum over, and a loss on the way there might never
 * be nacked.
 */
static void verify_early(struct ring *r, uint32_t total, uint32_t seq)
{
	uint32_t length = r->control->tensors[seq & 1].length,
		 most = MIN(REACH * r->window * r->ranks, total);

	for (uint32_t looked = 0; looked < most; looked++, r->to_verify++) {
		uint32_t chunk = r->to_verify = r->to_verify < total ? r->to_verify : 0;
		__u64 *result = &r->records[chunk].result, word = read_word(result);

		if (seq_of(word) != seq || (uint8_t)word != RING_RESULT_DONE)
			continue;
		if (lanes_verify(r->results + (uint64_t)chunk * r->chunk_bytes, length))
			__atomic_compare_exchange_n(result, &word,
						    word - RING_RESULT_DONE + RING_RESULT_VERIFIED,
						    false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		else
			ring_refuse(r, chunk);
	}
}

/* A CPU has made no progress for a while. Launch what should have been launched, and nack what is
 * known to be lost and has not been nacked lately. If no CPU makes progress (`still`) although the
 * previous rank has answered on all of them, verify what is stored, and nack a few missing chunks
 * without evidence, because the evidence may have been lost. Each call continues behind the last
 * chunk that was nacked, so that a chunk that no rank can send yet does not block the others.
 */
void ring_stall(struct ring *r, uint32_t total, uint32_t now_us, bool still)
{
	struct ring_control *c = r->control;
	uint64_t all = r->cpu_count >= 64 ? ~0ull : (1ull << r->cpu_count) - 1;
	uint32_t seq = seq_of(c->progress), ready = (uint32_t)c->progress,
		 most = r->window * r->ranks;
	uint32_t allowed = allowance(r, most),
		 next = (uint32_t)__atomic_load_n(&c->next, __ATOMIC_SEQ_CST), end, chunk, blind;
	bool flushed = still && r->stalls &&
		       (__atomic_load_n(&c->flushed, __ATOMIC_SEQ_CST) & all) == all;
	uint32_t root = ring_tensor_of(r)->root;
	uint32_t least = r->trips ? r->least_holdoff_us : c->nack_holdoff_us;
	bool complete = false, patient;

	if (!r->stalls)
		r->still_us = now_us;
	/* A loss that is known, here or elsewhere, explains a silence of some holdoffs. */
	patient = now_us - r->still_us >=
		  MAX((uint64_t)HOLDOFFS * least,
		      (uint64_t)ROUND_TRIPS * c->nack_holdoff_us + ring_reorder_window(c));
	/* An answer may overtake frames as they overtake each other. */
	if (flushed && now_us - r->still_us >= ring_reorder_window(c))
		complete = is_complete(r, seq);
	blind = flushed && patient && (is_lossy(c, seq) ? r->stalls >= 1 : is_long(r->stalls))
			? BLIND
			: 0;
	if (flushed)
		verify_early(r, MIN(total, ready), seq);
	while (r->front < total && ring_is_done(r, r->front, seq))
		r->front++;
	c->front = r->front;
	end = MIN(MIN(total, ready), r->front + REACH * most);
	chunk = r->next >= r->front && r->next < end ? r->next : r->front;
	r->in_recovery = false;
	/* frames that should have come back may be lost */
	if (still && root == r->rank + 1 && ready == ring_tensor_of(r)->total)
		next = (uint32_t)__atomic_add_fetch(&c->next, 1, __ATOMIC_SEQ_CST);
	for (uint32_t left = end > r->front ? end - r->front : 0; left && allowed;
	     left--, chunk = chunk + 1 < end ? chunk + 1 : r->front) {
		const struct ring_chunk *record = &r->records[chunk];
		uint64_t result = read_word(&record->result);
		uint32_t *lost = missing(r, chunk, seq);
		bool known, refused;

		if (ring_is_done(r, chunk, seq))
			continue;
		if (ring_is_mine(r, chunk) && seq_of(read_word(&record->reduced)) != seq) {
			if ((root ? chunk : chunk / r->ranks) < next)
				ring_post(r, RING_WR_LAUNCH, seq, chunk, 0, 0);
			continue;
		}
		if (complete)
			__atomic_store_n(lost, seq, __ATOMIC_RELAXED);
		refused = seq_of(result) == seq && (uint8_t)result == RING_RESULT_REFUSED;
		known = refused || __atomic_load_n(lost, __ATOMIC_RELAXED) == seq;
		r->in_recovery |= known;
		if (ring_waits(c, record, now_us))
			continue;
		if (!known && !blind)
			continue;
		blind -= !known;
		/* no later round has been seen here */
		if (refused && read_word(&record->reduced) <= word_of(seq, (uint8_t)(result >> 8)))
			ring_post(r, RING_WR_RESTART, seq, chunk, 0, (uint8_t)(result >> 8));
		ring_post(r, RING_WR_NACK, seq, chunk, 0, 0);
		r->next = chunk + 1;
		allowed--;
	}
	r->stalls++;
}

/* How long a CPU may make no progress before a probe is sent. */
static int64_t timeout_of(const struct ring *r, const struct ring_quiet *quiet)
{
	uint32_t doublings = MIN(quiet->probes, r->in_recovery ? RECOVERY_DOUBLINGS : DOUBLINGS);

	return MAX((int64_t)LEAST_TIMEOUT_NS << doublings,
		   (int64_t)r->control->nack_holdoff_us * 1000 / UNDER_WAY);
}

/* Has a CPU made progress since the last look? *left is cut to the time until its next probe is
 * due. */
static bool has_moved(struct ring *r, uint32_t cpu, uint64_t now, int64_t *left)
{
	uint64_t progress = __atomic_load_n(&r->cpus[cpu].progress, __ATOMIC_RELAXED);
	uint64_t answer = __atomic_load_n(&r->cpus[cpu].answer, __ATOMIC_RELAXED);
	struct ring_quiet *quiet = &r->quiet[cpu];
	bool moved = progress != quiet->progress;

	if (quiet->answer != answer)
		ring_answered(r, answer);
	quiet->answer = answer;

	if (moved) {
		quiet->progress = progress;
		quiet->since = now;
		quiet->probes = 0;
	}
	*left = MIN(*left, (int64_t)(quiet->since - now) + timeout_of(r, quiet));
	return moved;
}

/* Look at all CPUs' streams, and probe where one is due; *left is cut to the time until the next
 * look. 0, or an errno. */
static int look(struct ring *r, uint32_t target, uint64_t now, int64_t *left)
{
	uint32_t seq = seq_of(r->control->progress);
	bool still = true, stalled = false;

	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++) {
		int64_t cpu_left = INT64_MAX;

		still = !has_moved(r, cpu, now, &cpu_left) && still;
		stalled = cpu_left <= 0 || stalled;
		*left = cpu_left > 0 ? MIN(*left, cpu_left) : MIN(*left, LEAST_TIMEOUT_NS);
	}
	if (!still)
		r->stalls = 0;
	if (!stalled) {
		if (!measures(r, now / 1000))
			return 0;
		ring_probe(r, seq, 0, now / 1000);
		return ring_flush(r);
	}
	ring_stall(r, target, now / 1000, still);
	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++) {
		struct ring_quiet *quiet = &r->quiet[cpu];

		if ((int64_t)(now - quiet->since) < timeout_of(r, quiet))
			continue;
		ring_probe(r, seq, cpu, now / 1000);
		quiet->since = now;
		quiet->probes++;
	}
	return ring_flush(r);
}

/* Yield the CPU to the other ranks until `target` results are stored: if all are about to finish,
 * that is faster than to sleep and be woken. On a busy machine a CPU that has been yielded comes
 * back only after milliseconds, while a rank that sleeps runs soon after its interrupt. So a yield
 * that takes long is the last one for some collectives. True: stored.
 */
static bool yield_for(struct ring *r, uint32_t target)
{
	uint64_t before = now_ns(), now;

	for (; r->patience; r->patience--) {
		if (__atomic_load_n(&r->control->stored, __ATOMIC_SEQ_CST) >= target) {
			r->backoff /= 2;
			return true;
		}
		r->syscalls++;
		sched_yield();
		now = now_ns();
		if (now - before > FOREIGN_NS) {
			r->backoff = MIN(MAX(2 * r->backoff, LEAST_BACKOFF), MOST_BACKOFF);
			r->sleeps = r->backoff;
			r->patience = 0;
			break;
		}
		before = now;
	}
	return false;
}

/* Yield, then sleep until `target` results are stored or time is up. 1: stored; 0: not yet;
 * negative: errno. */
static int wait_for(struct ring *r, uint32_t target, int64_t timeout_ns)
{
	struct ring_control *c = r->control;
	struct pollfd events = { .fd = r->events, .events = POLLIN };
	uint64_t now, end;

	if (yield_for(r, target))
		return 1;
	now = now_ns();
	end = now + timeout_ns;
	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		if (!r->quiet[cpu].probes) /* this process itself was busy until now */
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
		__atomic_store_n(r->consumer, __atomic_load_n(r->producer, __ATOMIC_ACQUIRE),
				 __ATOMIC_RELEASE);
	}
}
