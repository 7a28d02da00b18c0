/* The system calls of the ring's process, and its side of the memory that it shares with the kernel
 * (bpf/shared/ring_abi.h), which needs memory barriers that Python cannot express. Reference model:
 * testbed/protocol/ring/process.py, which the tests compare with it.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>

#include "ring_wait.h"
#include "floats.h"

/* Kick the doorbell for all work requests that wait, including those whose kick was lost. XDP
 * multiplies kicks, but none with fragments. Returns 0 or an errno. */
int ring_flush(struct ring *r)
{
	struct ring_control *c = r->control;
	uint32_t waiting = c->sq_tail - __atomic_load_n(&c->sq_head, __ATOMIC_SEQ_CST),
		 each = r->kick_length > RING_LINEAR_FRAME ? 1 : RING_FAN_LARGE;

	for (uint32_t kicked = 0; kicked < waiting; kicked += each) {
		r->syscalls++;
		if (send(r->doorbell, r->kick, r->kick_length, 0) >= 0)
			continue;
		/* A kick that a full doorbell drops is a lost frame like any other: the timer
		 * recovers it. */
		if (errno != EINTR && errno != ENOBUFS && errno != EAGAIN)
			return errno;
	}
	return 0;
}

/* Post a work request; the next flush kicks for it. If the queue is full, the request is dropped,
 * and the timer posts it again. */
void ring_post(struct ring *r, uint32_t kind, uint32_t seq, uint32_t chunk, uint32_t attempt,
	       uint32_t extra)
{
	struct ring_control *c = r->control;

	if (c->sq_tail - __atomic_load_n(&c->sq_head, __ATOMIC_SEQ_CST) >= RING_SQ_ENTRIES)
		return;
	r->sq[c->sq_tail % RING_SQ_ENTRIES] = (struct ring_wr){ kind, seq, chunk, attempt, extra };
	__atomic_store_n(&c->sq_tail, c->sq_tail + 1, __ATOMIC_SEQ_CST);
}

/* Replay early frames whose input is ready; drop those of earlier sequence numbers. */
void ring_replay(struct ring *r, uint32_t seq, uint32_t ready)
{
	for (uint32_t slot = 0; slot < RING_EARLY_SLOTS; slot++) {
		struct ring_early *early = &r->early_frames[slot];
		uint32_t expected = RING_EARLY_WAITING;

		if (__atomic_load_n(&early->state, __ATOMIC_ACQUIRE) != RING_EARLY_WAITING)
			continue;
		if (early->seq == seq && early->chunk < ready)
			ring_post(r, RING_WR_REPLAY, seq, slot, 0, 0);
		else if (seq_is_before(early->seq, seq))
			__atomic_compare_exchange_n(&early->state, &expected, 0, false,
						    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
	}
}

/* Enter a new sequence number, with nothing ready yet. From now on, the kernel adds no input of the
 * previous one. */
void ring_begin(struct ring *r, uint32_t seq, const struct ring_tensor *tensor, uint32_t window)
{
	uint32_t total = tensor->total, length = tensor->length;
	struct ring_control *c = r->control;
	uint32_t mine = total > r->rank ? (total - r->rank + r->ranks - 1) / r->ranks : 0;

	r->patience = r->sleeps ? 0 : r->yields;
	r->sleeps -= !!r->sleeps;
	r->front = r->stalls = r->in_recovery = r->next = r->to_verify = 0;
	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		r->quiet[cpu] = (struct ring_quiet){ .progress = r->cpus[cpu].progress,
						     .answer = r->quiet[cpu].answer };
	r->allowed = r->window * r->ranks;
	r->nacked_at = ring_progress(r);
	/* Kicks become frames with this length of payload, and those with fragments cannot grow. */
	if (r->chunk_bytes > RING_LINEAR_BYTES)
		r->kick_length = RING_JUMBO_OFFSET + MAX(length, RING_LINEAR_BYTES);
	c->tensors[seq & 1] = *tensor;
	c->wake_at = c->front = 0;
	__atomic_store_n(&c->stored, 0, __ATOMIC_SEQ_CST);
	/* `progress` must change first: otherwise a frame of the last sequence number could take a
	 * slot of this one, which it could not launch. */
	__atomic_exchange_n(&c->progress, word_of(seq, 0), __ATOMIC_SEQ_CST);
	if (tensor->root) {
		mine = total;
		window += tensor->gathered;
	}
	__atomic_store_n(&c->next, word_of(seq, window < mine ? window : mine), __ATOMIC_SEQ_CST);
}

/* Input is ready up to chunk `ready`: launch own chunks that waited for it, and replay early
 * frames. */
int ring_publish(struct ring *r, uint32_t seq, uint32_t ready)
{
	struct ring_control *c = r->control;
	uint64_t before = __atomic_exchange_n(&c->progress, word_of(seq, ready), __ATOMIC_SEQ_CST);
	uint32_t slots = (uint32_t)__atomic_load_n(&c->next, __ATOMIC_SEQ_CST);
	const struct ring_tensor *tensor = ring_tensor_of(r);
	uint32_t was = (uint32_t)before,
		 slot = was > r->rank ? (was - r->rank + r->ranks - 1) / r->ranks : 0;

	for (; slot < slots && r->rank + r->ranks * slot < ready && !tensor->root; slot++)
		ring_post(r, RING_WR_LAUNCH, seq, r->rank + r->ranks * slot, 0, 0);
	for (uint32_t chunk = was; chunk < slots && chunk < ready && tensor->root; chunk++)
		if (ring_is_mine(r, chunk))
			ring_post(r, RING_WR_LAUNCH, seq, chunk, 0, 0);
	ring_replay(r, seq, ready);
	return ring_flush(r);
}

int ring_wait(struct ring *r, uint32_t target, int64_t timeout_ns)
{
	uint64_t start = now_ns();
	int result = wait_for(r, target, timeout_ns);

	r->wait_ns += now_ns() - start;
	return result;
}

/* Copy the status to its place in the chunks (`in`), or from there. */
static void copy_status(struct ring *r, const struct ring_layout *l, char *memory, char *status,
			bool in)
{
	uint64_t usable = l->length - RING_CHECK_BYTES, place = l->status_at;

	for (uint32_t done = 0, part; done < l->status; done += part, place += part) {
		char *at = memory + place / usable * r->chunk_bytes + place % usable;

		part = MIN(l->status - done, usable - place % usable);
		memcpy(in ? at : status + done, in ? status + done : at, part);
	}
}

/* Write what follows the last lane, zeros and the status at the end; then all input is ready, but
 * for chunks that are only gathered. */
int ring_finish(struct ring *r, const struct ring_layout *l, uint32_t seq, char *status)
{
	uint64_t usable = l->length - RING_CHECK_BYTES, lanes = l->count * r->lanes.bytes;
	uint32_t whole = l->scattered + lanes / usable, end = l->gathered ? l->gathered : l->total;

	for (uint32_t chunk = whole; chunk < end; chunk++) {
		uint64_t used = chunk == whole ? lanes % usable : 0;

		memset(r->inputs + (uint64_t)chunk * r->chunk_bytes + used, 0, usable - used);
	}
	copy_status(r, l, r->inputs, status, true);
	for (uint32_t chunk = whole; chunk < end; chunk++)
		lanes_seal(r->inputs + (uint64_t)chunk * r->chunk_bytes, l->length,
			   &r->records[chunk]);
	return ring_publish(r, seq, end);
}

/* Enter the collective of a layout. */
static void enter(struct ring *r, const struct ring_layout *l, uint32_t seq, uint16_t tag)
{
	const struct ring_tensor tensor = { l->total,	  l->length,   tag,
					    l->scattered, l->gathered, l->root };

	ring_begin(r, seq, &tensor, l->window ? MIN(l->window, r->window) : r->window);
}

/* Run a collective up to the point where all input is published. If a value is not finite, the last
 * block is not published, and ring_finish must be called with a status that says so. `status` is
 * this rank's, without its exponent; `base` is the exponent of its first byte. Returns the largest
 * magnitude (as lanes_absmax) and sets *error to 0 or an errno.
 */
uint32_t ring_send(struct ring *r, const struct ring_layout *l, uint32_t seq, uint16_t tag,
		   const float *x, uint32_t most, int32_t exponent, uint8_t *status, int32_t base,
		   int *error)
{
	uint32_t per_chunk = (l->length - RING_CHECK_BYTES) / r->lanes.bytes,
		 whole = l->count / per_chunk;
	uint64_t start = now_ns(), mark, spent;

	enter(r, l, seq, tag);
	*error = 0;
	for (uint32_t first = 0; first < whole || (!first && l->count);) {
		uint32_t last = first + l->block < whole ? first + l->block : whole;
		/* The values behind the last whole chunk go with it. */
		uint64_t begin = (uint64_t)first * per_chunk,
			 end = last < whole ? (uint64_t)last * per_chunk : l->count;
		uint32_t magnitude;

		mark = now_ns();
		magnitude = lanes_quantize(&r->lanes, x + begin, end - begin,
					   r->inputs + (uint64_t)first * r->chunk_bytes,
					   r->chunk_bytes, per_chunk, r->records + first, exponent);
		most = magnitude > most ? magnitude : most;
		spent = now_ns() - mark;
		r->quantize_ns += spent;
		start += spent;
		if (last == whole)
			break;
		*error = ring_publish(r, seq, last);
		if (*error)
			return most;
		first = last;
	}
	if (most < 0x7f800000) {
		uint8_t *count = &status[lanes_exponent_for(&r->lanes, most) - base];

		*count = 1;
		*error = ring_finish(r, l, seq, (char *)status);
		*count = 0;
	}
	r->communicate_ns += now_ns() - start;
	return most;
}

/* A rank's record in a status. */
static struct ring_status_record *record_in(const struct ring *r, uint8_t *status, uint32_t rank)
{
	return (struct ring_status_record *)(status + r->exponents) + rank;
}

/* Publish the end of the input, with this rank's status. 0, or an errno. */
static int publish_status(struct ring *r, const struct ring_layout *l, uint32_t seq)
{
	_Alignas(struct ring_status_record) uint8_t status[RING_MAX_STATUS] = {};

	record_in(r, status, r->rank)->identity = l->identity;
	status[lanes_exponent_for(&r->lanes, r->magnitude) - r->least_exponent] = 1;
	return ring_finish(r, l, seq, (char *)status);
}

/* Read the reduced status. Returns the exponent of the largest magnitude, relative to that of the
 * first byte, or -1 if the status also reports something else. */
int32_t ring_status(struct ring *r, const struct ring_layout *l)
{
	_Alignas(struct ring_status_record) uint8_t status[RING_MAX_STATUS];
	int32_t greatest = -1;
	uint32_t ranks = 0;
	bool fine = true;

	copy_status(r, l, r->results, (char *)status, false);
	for (uint32_t i = 0; i < r->exponents; i++) {
		greatest = status[i] ? (int32_t)i : greatest;
		ranks += status[i];
	}
	for (uint32_t rank = 0; rank < r->ranks; rank++) {
		const struct ring_status_record *record = record_in(r, status, rank);

		fine = fine && !record->kind && record->identity == l->identity;
	}
	return fine && ranks == r->ranks ? greatest : -1;
}

/* Refuse a result that fails its check, and start the chunk's reduce-scatter phase over. `stored`
 * decreases first, so that a new result finds that it is the last one. */
void ring_refuse(struct ring *r, uint32_t chunk)
{
	struct ring_control *c = r->control;
	struct ring_chunk *record = &r->records[chunk];
	uint32_t seq = seq_of(c->progress);
	__u64 word = read_word(&record->result),
	      done = word_of(seq, (word & 0xff00) | RING_RESULT_DONE);

	r->front = MIN(r->front, chunk);
	__atomic_fetch_sub(&c->stored, 1, __ATOMIC_SEQ_CST);
	if (word != done ||
	    !__atomic_compare_exchange_n(&record->result, &word,
					 done + RING_RESULT_REFUSED - RING_RESULT_DONE, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		/* another result has arrived meanwhile */
		__atomic_fetch_add(&c->stored, 1, __ATOMIC_SEQ_CST);
		return;
	}
	r->refused++;
	ring_post(r, RING_WR_RESTART, seq, chunk, 0, (uint8_t)(done >> 8));
}

/* Are all results of the collective stored? *version changes whenever one of them is replaced by
 * that of a later round. */
static bool is_whole(const struct ring *r, uint32_t total, uint32_t seq, uint64_t *version)
{
	*version = 0;
	for (uint32_t chunk = 0; chunk < total; chunk++) {
		if (!ring_is_done(r, chunk, seq))
			return false;
		*version += read_word(&r->records[chunk].result); /* words only move forward */
	}
	return true;
}

/* All results are verified: from now on, they serve ranks that have refused theirs. Returns the
 * outcome, unless a result was replaced while it was being verified. */
static int mark_verified(struct ring *r, const struct ring_layout *l, enum ring_outcome outcome,
			 uint64_t version)
{
	uint32_t seq = seq_of(r->control->progress);
	uint64_t now;

	__atomic_store_n(&r->control->verified, seq, __ATOMIC_SEQ_CST);
	if (is_whole(r, l->total, seq, &now) && now == version)
		return outcome;
	__atomic_store_n(&r->control->verified, 0, __ATOMIC_SEQ_CST);
	return RING_LATE;
}

/* Turn the sums of this rank's block into floats. They have been verified. */
static void take_scattered(struct ring *r, const struct ring_layout *l, float *out,
			   int32_t exponent)
{
	uint32_t per_chunk = (l->length - RING_CHECK_BYTES) / r->lanes.bytes;
	uint64_t count = l->share / sizeof(float), done = 0;

	for (uint32_t chunk = (r->rank + 1) % r->ranks; chunk < l->scattered; chunk += r->ranks) {
		uint64_t part = MIN(per_chunk, count - done);

		lanes_dequantize(&r->lanes, r->results + (uint64_t)chunk * r->chunk_bytes, part,
				 r->chunk_bytes, per_chunk, out + done, exponent, count >= STREAM);
		done += part;
	}
}

/* Copy the blocks of all ranks; refuse chunks that fail their check. */
static void take_gathered(struct ring *r, const struct ring_layout *l, char *out)
{
	uint64_t usable = l->length - RING_CHECK_BYTES;

	for (uint32_t chunk = l->gathered; chunk < l->total; chunk++) {
		const char *from = r->results + (uint64_t)chunk * r->chunk_bytes;
		uint32_t blocks = l->root ? 1 : r->ranks;
		uint64_t begin = (chunk - l->gathered) / blocks * usable;

		if (lanes_verify(from, l->length))
			memcpy(out + chunk % blocks * l->stride + begin, from,
			       MIN(usable, l->share - begin));
		else
			ring_refuse(r, chunk);
	}
}

/* All results are stored: read the status and, if it agrees with the exponent, turn the sums into
 * floats. If a result fails its check, the outcome is "late" again. */
int ring_complete(struct ring *r, const struct ring_layout *l, float *out, int32_t exponent)
{
	uint32_t per_chunk = (l->length - RING_CHECK_BYTES) / r->lanes.bytes,
		 whole = l->count / per_chunk, good = whole;
	uint64_t start = now_ns(), refused = r->refused, version;
	int32_t found;

	if (!is_whole(r, l->total, seq_of(r->control->progress), &version))
		return RING_LATE;
	for (uint32_t chunk = l->scattered + whole; chunk < (l->gathered ? l->gathered : l->total);
	     chunk++)
		if (!lanes_verify(r->results + (uint64_t)chunk * r->chunk_bytes, l->length))
			ring_refuse(r, chunk);
	if (l->gathered)
		take_gathered(r, l, (char *)out);
	if (refused == r->refused) {
		found = ring_status(r, l);
		if (found < 0)
			return mark_verified(r, l, RING_FAULTY, version);
		r->seen = r->least_exponent + found;
		if ((l->count || l->scattered) &&
		    (exponent < r->seen || exponent > r->seen + (int32_t)r->slack))
			return mark_verified(r, l, RING_MISFIT, version);
		if (l->scattered)
			take_scattered(r, l, out, exponent);
		good = lanes_dequantize(&r->lanes, r->results, l->count, r->chunk_bytes, per_chunk,
					out, exponent, r->stream);
	}
	for (uint32_t chunk = good; chunk < whole; chunk++)
		if (!lanes_verify(r->results + (uint64_t)chunk * r->chunk_bytes, l->length))
			ring_refuse(r, chunk);
	r->dequantize_ns += now_ns() - start;
	if (refused == r->refused && good >= whole)
		return mark_verified(r, l, RING_DONE, version);
	r->error = ring_flush(r);
	return r->error ? RING_FAILED : RING_LATE;
}

/* Run a whole collective, if nothing goes wrong. `out` may be `x`: it is written only when no other
 * pass can follow. `most` is a magnitude that the status counts in addition to those of `x`. */
int ring_reduce(struct ring *r, const struct ring_layout *l, uint32_t seq, uint16_t tag,
		const float *x, float *out, uint32_t most, int32_t exponent)
{
	_Alignas(struct ring_status_record) uint8_t status[RING_MAX_STATUS] = {};
	int stored;

	record_in(r, status, r->rank)->identity = l->identity;
	r->magnitude =
		ring_send(r, l, seq, tag, x, most, exponent, status, r->least_exponent, &r->error);
	if (r->error)
		return RING_FAILED;
	if (r->magnitude >= 0x7f800000)
		return RING_NONFINITE;
	stored = ring_wait(r, l->total, r->timeout_ns);
	if (stored > 0)
		return ring_complete(r, l, out, exponent);
	r->error = -stored;
	return stored ? RING_FAILED : RING_LATE;
}

/* Update a segment's prediction with a collective's status. Reference model: ScaleGuess.learn. */
void ring_learn(const struct ring *r, struct ring_segment *s, int32_t seen)
{
	bool holds = s->known && s->exponent >= seen && s->exponent - seen <= (int32_t)r->slack;

	if (!holds) {
		s->exponent = seen;
		s->known = true;
		s->calm = 0;
	} else if (seen == s->exponent) {
		s->calm = 0;
	} else {
		s->highest = s->calm ? MAX(s->highest, seen) : seen;
		if (++s->calm >= r->calm_most) {
			s->exponent = s->highest;
			s->calm = 0;
		}
	}
}

/* Can the next collective of this segment run without Python? */
static bool is_plain(const struct ring *r, const struct ring_segment *s)
{
	return s->known && s->has_tag && s->tagged == s->exponent &&
	       s->exponent <= r->most_exponent && r->seq >> 30 == seq_after(r->seq) >> 30;
}

/* Run the collectives of a tensor's segments from the one numbered `r->reduced` on, until all are
 * done or one needs help. `out` may be `x`. */
int ring_reduce_segments(struct ring *r, struct ring_segment *segments, uint32_t count,
			 const float *x, float *out)
{
	r->stream = segments[count - 1].first + segments[count - 1].layout->count >= STREAM;
	for (; r->reduced < count; r->reduced++) {
		struct ring_segment *s = &segments[r->reduced];
		int outcome;

		if (!is_plain(r, s))
			return RING_DECLINED;
		r->seq = seq_after(r->seq);
		r->within = true;
		outcome = ring_reduce(r, s->layout, r->seq, s->tag, x + s->first, out + s->first, 0,
				      s->exponent);
		if (outcome != RING_DONE)
			return outcome;
		r->within = false;
		ring_learn(r, s, r->seen);
	}
	return RING_DONE;
}

/* An all-reduce of numpy arrays, in one call. RING_DECLINED: nothing has been sent, because one of
 * them is not what it must be, or no tensor of this size has been reduced yet. */
int ring_all_reduce(struct ring *r, PyObject *tensor, PyObject *out)
{
	const struct ring_plan *plan = NULL;
	struct floats x, sums;
	void *state;
	int outcome;

	r->reduced = 0;
	if (!floats_of(tensor, out, &x, &sums))
		return RING_DECLINED;
	for (uint32_t i = 0; i < r->plan_count && !plan; i++)
		plan = r->plans[i].size == x.count ? &r->plans[i] : NULL;
	if (!plan)
		return RING_DECLINED;
	state = PyEval_SaveThread();
	outcome = ring_reduce_segments(r, plan->segments, plan->count, x.values, sums.values);
	PyEval_RestoreThread(state);
	return outcome;
}

#include "ring_phases.h"
