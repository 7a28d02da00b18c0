/* The ring's system calls and its side of the memory that it shares with the kernel (bpf/shared/ring_abi.h), which needs fences that
 * Python cannot express. What is decided here, is decided in testbed/protocol/ring/process.py as well; the tests compare them.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>

#include "ring_wait.h"

/* Ring for all orders that wait, including those whose bell was lost. 0, or an errno. */
int ring_flush(struct ring *r)
{
	struct ring_control *c = r->control;
	uint32_t waiting = c->ordered - __atomic_load_n(&c->taken, __ATOMIC_SEQ_CST);

	for (uint32_t rung = 0; rung < waiting; rung += RING_FAN_LARGE) {
		r->syscalls++;
		if (send(r->doorbell, r->bell, r->bell_length, 0) >= 0)
			continue;
		/* A full doorbell is a lost frame like any other: the timer sees to it. */
		if (errno != EINTR && errno != ENOBUFS && errno != EAGAIN)
			return errno;
	}
	return 0;
}

/* Give an order; the next flush rings for it. One that does not fit waits for the timer as well. */
void ring_order(struct ring *r, uint32_t kind, uint32_t generation, uint32_t chunk, uint32_t attempt, uint32_t extra)
{
	struct ring_control *c = r->control;

	if (c->ordered - __atomic_load_n(&c->taken, __ATOMIC_SEQ_CST) >= RING_ORDERS)
		return;
	r->orders[c->ordered % RING_ORDERS] = (struct ring_order){ kind, generation, chunk, attempt, extra };
	__atomic_store_n(&c->ordered, c->ordered + 1, __ATOMIC_SEQ_CST);
}

/* Replay parked frames whose input is ready; let go of those of past generations. */
void ring_replay(struct ring *r, uint32_t generation, uint32_t ready)
{
	for (uint32_t slot = 0; slot < RING_PARKING; slot++) {
		struct ring_parked *parked = &r->parking[slot];
		uint32_t expected = RING_PARKING_PARKED;

		if (__atomic_load_n(&parked->state, __ATOMIC_ACQUIRE) != RING_PARKING_PARKED)
			continue;
		if (parked->generation == generation && parked->chunk < ready)
			ring_order(r, RING_ORDER_REPLAY, generation, slot, 0, 0);
		else if (generation_is_before(parked->generation, generation))
			__atomic_compare_exchange_n(&parked->state, &expected, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
	}
}

/* A new generation, nothing ready yet: from here on the kernel adds no input of the one before. */
void ring_begin(struct ring *r, uint32_t generation, uint32_t total, uint16_t length, uint16_t tag, uint32_t window)
{
	struct ring_control *c = r->control;
	uint32_t mine = total > r->rank ? (total - r->rank + r->ranks - 1) / r->ranks : 0;

	r->patience = r->yields;
	r->front = r->stalls = r->chasing = r->next = r->verified = 0;
	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		r->quiet[cpu] = (struct ring_quiet){ .progress = r->cpus[cpu].progress };
	r->allowed = r->window * r->ranks;
	r->asked = ring_progress(r);
	c->tensors[generation & 1] = (struct ring_tensor){ total, length, tag };
	c->wake_at = c->front = 0;
	__atomic_store_n(&c->stored, 0, __ATOMIC_SEQ_CST);
	/* In this order: a token of the last generation must not take a slot of this one, which it could not launch. */
	__atomic_exchange_n(&c->progress, word_of(generation, 0), __ATOMIC_SEQ_CST);
	__atomic_store_n(&c->next, word_of(generation, window < mine ? window : mine), __ATOMIC_SEQ_CST);
}

/* Input is ready up to chunk `ready`: launch own chunks that were waiting for it, and replay what others have sent. */
int ring_publish(struct ring *r, uint32_t generation, uint32_t ready)
{
	struct ring_control *c = r->control;
	uint64_t before = __atomic_exchange_n(&c->progress, word_of(generation, ready), __ATOMIC_SEQ_CST);
	uint32_t slots = (uint32_t)__atomic_load_n(&c->next, __ATOMIC_SEQ_CST);
	uint32_t was = (uint32_t)before, slot = was > r->rank ? (was - r->rank + r->ranks - 1) / r->ranks : 0;

	for (; slot < slots && r->rank + r->ranks * slot < ready; slot++)
		ring_order(r, RING_ORDER_LAUNCH, generation, r->rank + r->ranks * slot, 0, 0);
	ring_replay(r, generation, ready);
	return ring_flush(r);
}

int ring_wait(struct ring *r, uint32_t target, int64_t timeout_ns)
{
	uint64_t start = now_ns();
	int result = wait_for(r, target, timeout_ns);

	r->wait_ns += now_ns() - start;
	return result;
}

/* Copy the status to where it lies in the chunks, or from there. */
static void copy_status(struct ring *r, const struct ring_layout *l, char *memory, char *status, bool in)
{
	uint64_t usable = l->length - RING_CHECK_BYTES, place = l->data;

	for (uint32_t done = 0, part; done < l->status; done += part, place += part) {
		char *at = memory + place / usable * r->chunk_bytes + place % usable;

		part = MIN(l->status - done, usable - place % usable);
		memcpy(in ? at : status + done, in ? status + done : at, part);
	}
}

/* What follows the last lane: zeros to the next word, the status, zeros to the check; then all is ready. */
int ring_finish(struct ring *r, const struct ring_layout *l, uint32_t generation, char *status)
{
	uint64_t usable = l->length - RING_CHECK_BYTES, lanes = l->count * r->lanes.bytes;
	uint32_t whole = lanes / usable;

	for (uint32_t chunk = whole; chunk < l->total; chunk++) {
		uint64_t used = chunk == whole ? lanes % usable : 0;

		memset(r->inputs + (uint64_t)chunk * r->chunk_bytes + used, 0, usable - used);
	}
	copy_status(r, l, r->inputs, status, true);
	for (uint32_t chunk = whole; chunk < l->total; chunk++)
		lanes_seal(r->inputs + (uint64_t)chunk * r->chunk_bytes, l->length, &r->records[chunk]);
	return ring_publish(r, generation, l->total);
}

/* A collective up to the point where all input is published, unless a value is not finite: then the last block is not, and
 * ring_finish has to be called with a status that says so. `status` is this rank's, without its exponent; `base` is
 * the exponent of its first byte. Returns the largest magnitude (as lanes_absmax) and sets *error to 0 or an errno.
 */
uint32_t ring_send(struct ring *r, const struct ring_layout *l, uint32_t generation, uint16_t tag, const float *x, uint32_t most,
		   int32_t exponent, uint8_t *status, int32_t base, int *error)
{
	uint32_t per_chunk = (l->length - RING_CHECK_BYTES) / r->lanes.bytes, whole = l->count / per_chunk;
	uint64_t start = now_ns(), mark, spent;

	ring_begin(r, generation, l->total, l->length, tag, r->window);
	*error = 0;
	for (uint32_t first = 0; first < whole || (!first && l->count);) {
		uint32_t last = first + l->block < whole ? first + l->block : whole;
		/* What is behind the last whole chunk goes with it. */
		uint64_t begin = (uint64_t)first * per_chunk, end = last < whole ? (uint64_t)last * per_chunk : l->count;
		uint32_t magnitude;

		mark = now_ns();
		magnitude = lanes_quantize(&r->lanes, x + begin, end - begin, r->inputs + (uint64_t)first * r->chunk_bytes,
					   per_chunk, r->records + first, exponent);
		most = magnitude > most ? magnitude : most;
		spent = now_ns() - mark;
		r->quantize_ns += spent;
		start += spent;
		if (last == whole)
			break;
		*error = ring_publish(r, generation, last);
		if (*error)
			return most;
		first = last;
	}
	if (most < 0x7f800000) {
		uint8_t *count = &status[lanes_exponent_for(&r->lanes, most) - base];

		*count = 1;
		*error = ring_finish(r, l, generation, (char *)status);
		*count = 0;
	}
	r->communicate_ns += now_ns() - start;
	return most;
}

/* The status that has come back: the exponent of the greatest magnitude, relative to the first byte's, or -1 if there is more to
 * it than that.
 */
int32_t ring_status(struct ring *r, const struct ring_layout *l, uint32_t exponents)
{
	uint8_t status[RING_MAX_STATUS];
	int32_t greatest = -1;
	uint32_t ranks = 0, faults = 0;

	copy_status(r, l, r->results, (char *)status, false);
	for (uint32_t i = 0; i < exponents; i++) {
		greatest = status[i] ? (int32_t)i : greatest;
		ranks += status[i];
	}
	for (uint32_t i = exponents; i < l->status; i++)
		faults |= status[i];
	return faults || ranks != r->ranks ? -1 : greatest;
}

/* A result is not what its check says: do without, and have the chunk's first lap begun anew. What is stored next must find that it is the last. */
void ring_refuse(struct ring *r, uint32_t chunk)
{
	struct ring_control *c = r->control;
	struct ring_chunk *record = &r->records[chunk];
	uint32_t generation = generation_of(c->progress);
	__u64 word = read_word(&record->result), done = word_of(generation, (word & 0xff00) | RING_RESULT_DONE);

	r->front = MIN(r->front, chunk);
	__atomic_fetch_sub(&c->stored, 1, __ATOMIC_SEQ_CST);
	if (word != done || !__atomic_compare_exchange_n(&record->result, &word, done + RING_RESULT_REFUSED - RING_RESULT_DONE, false, __ATOMIC_SEQ_CST,
							 __ATOMIC_SEQ_CST)) {
		__atomic_fetch_add(&c->stored, 1, __ATOMIC_SEQ_CST); /* another has come meanwhile */
		return;
	}
	r->refused++;
	ring_order(r, RING_ORDER_RESTART, generation, chunk, 0, (uint8_t)(done >> 8));
}

/* Are all results of the collective there? *version changes whenever one of them is replaced by that of a later round. */
static bool is_whole(const struct ring *r, uint32_t total, uint32_t generation, uint64_t *version)
{
	*version = 0;
	for (uint32_t chunk = 0; chunk < total; chunk++) {
		uint64_t word = read_word(&r->records[chunk].result);

		if (!is_done(word, generation))
			return false;
		*version += word; /* words only go forward */
	}
	return true;
}

/* The collective has this outcome for all ranks: from here on, results that this rank holds are good enough for ranks that have refused theirs. Unless
 * one of them has been replaced while it was looked at.
 */
static int settle(struct ring *r, const struct ring_layout *l, enum ring_outcome outcome, uint64_t version)
{
	uint32_t generation = generation_of(r->control->progress);
	uint64_t now;

	__atomic_store_n(&r->control->settled, generation, __ATOMIC_SEQ_CST);
	if (is_whole(r, l->total, generation, &now) && now == version)
		return outcome;
	__atomic_store_n(&r->control->settled, 0, __ATOMIC_SEQ_CST);
	return RING_LATE;
}

/* All results are stored: read the status, and if it agrees with the exponent, turn the sums into floats. Late again if a result is not
 * what its check says.
 */
int ring_complete(struct ring *r, const struct ring_layout *l, float *out, int32_t exponent)
{
	uint32_t per_chunk = (l->length - RING_CHECK_BYTES) / r->lanes.bytes, whole = l->count / per_chunk, good = whole;
	uint64_t start = now_ns(), refused = r->refused, version;
	int32_t found;

	if (!is_whole(r, l->total, generation_of(r->control->progress), &version))
		return RING_LATE;
	for (uint32_t chunk = whole; chunk < l->total; chunk++)
		if (!lanes_verify(r->results + (uint64_t)chunk * r->chunk_bytes, l->length))
			ring_refuse(r, chunk);
	if (refused == r->refused) {
		found = ring_status(r, l, r->exponents);
		if (found < 0)
			return settle(r, l, RING_FAULTY, version);
		r->seen = r->least_exponent + found;
		if (l->count && (exponent < r->seen || exponent > r->seen + (int32_t)r->slack))
			return settle(r, l, RING_MISFIT, version);
		good = lanes_dequantize(&r->lanes, r->results, l->count, per_chunk, out, exponent);
	}
	for (uint32_t chunk = good; chunk < whole; chunk++)
		if (!lanes_verify(r->results + (uint64_t)chunk * r->chunk_bytes, l->length))
			ring_refuse(r, chunk);
	r->dequantize_ns += now_ns() - start;
	if (refused == r->refused && good >= whole)
		return settle(r, l, RING_DONE, version);
	r->error = ring_flush(r);
	return r->error ? RING_FAILED : RING_LATE;
}

/* A whole collective, when nothing goes wrong. `out` may be `x`: it is written only when no other pass can follow. `most` is a
 * magnitude that the status is to count with besides those of `x`.
 */
int ring_reduce(struct ring *r, const struct ring_layout *l, uint32_t generation, uint16_t tag, const float *x, float *out,
		uint32_t most, int32_t exponent)
{
	uint8_t status[RING_MAX_STATUS] = {};
	int stored;

	r->magnitude = ring_send(r, l, generation, tag, x, most, exponent, status, r->least_exponent, &r->error);
	if (r->error)
		return RING_FAILED;
	if (r->magnitude >= 0x7f800000)
		return RING_ODD;
	stored = ring_wait(r, l->total, r->timeout_ns);
	if (stored > 0)
		return ring_complete(r, l, out, exponent);
	r->error = -stored;
	return stored ? RING_FAILED : RING_LATE;
}
