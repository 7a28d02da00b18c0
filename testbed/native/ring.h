/* What all parts of the ring's process need. What it shares with its programs and with Python is in
 * bpf/shared. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lanes.h"
#include "lib/patience.h"
#include "lib/seq.h"
#include "shared/ring_native_abi.h"

#define NEVER 0xffffffff /* more results than there can ever be */
#define REACH 8 /* times window and ranks: chunks to look at, from the first that is missing */
/* stalls in a row after which a chunk is nacked without evidence, if there have been no losses
 * lately */
#define PATIENCE 10
/* least holdoffs, and round trips, without progress after which a chunk is nacked without evidence
 */
#define HOLDOFFS 8
#define ROUND_TRIPS 2
/* chunks that are nacked without a sign of loss, if nothing else explains the silence */
#define BLIND 4
/* A yield that takes longer gave the CPU to a program that is no rank of this group, or to a rank
 * that computes: sleeping is no slower then. The ranks of a group quantize a segment in less. */
#define FOREIGN_NS 1000000
/* collectives that do not yield after such a yield: doubled each time, halved by each collective
 * without one */
#define LEAST_BACKOFF 8
#define MOST_BACKOFF 512

static inline uint64_t read_word(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Does a result word say that the whole result is stored, for this sequence number? */
static inline bool is_done(uint64_t word, uint32_t seq)
{
	return seq_of(word) == seq &&
	       ((uint8_t)word == RING_RESULT_DONE || (uint8_t)word == RING_RESULT_VERIFIED);
}

/* The tensor of the collective that the process has entered. */
static inline const struct ring_tensor *ring_tensor_of(const struct ring *r)
{
	return &r->control->tensors[seq_of(r->control->progress) & 1];
}

/* Is the chunk this rank's to launch? */
static inline bool ring_is_mine(const struct ring *r, uint32_t chunk)
{
	const struct ring_tensor *t = ring_tensor_of(r);

	return (t->root && chunk >= t->gathered ? t->root - 1u : chunk % r->ranks) == r->rank;
}

/* Does this rank complete the chunk's sum? */
static inline bool ring_is_home(const struct ring *r, uint32_t chunk)
{
	return (chunk + r->ranks - 1) % r->ranks == r->rank;
}

/* Is the chunk done at this rank: is its result stored, or, if it is scattered and another rank
 * completes its sum, has it been sent on? */
static inline bool ring_is_done(const struct ring *r, uint32_t chunk, uint32_t seq)
{
	const struct ring_chunk *record = &r->records[chunk];

	if (chunk < ring_tensor_of(r)->scattered && !ring_is_home(r, chunk))
		return seq_of(read_word(&record->reduced)) == seq;
	return is_done(read_word(&record->result), seq);
}

/* Frames that made progress, on all CPUs, since the start. */
static inline uint64_t ring_progress(const struct ring *r)
{
	uint64_t progress = 0;

	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		progress += __atomic_load_n(&r->cpus[cpu].progress, __ATOMIC_RELAXED);
	return progress;
}

int ring_flush(struct ring *r);
void ring_refuse(struct ring *r, uint32_t chunk);
void ring_post(struct ring *r, uint32_t kind, uint32_t seq, uint32_t chunk, uint32_t attempt,
	       uint32_t extra);
