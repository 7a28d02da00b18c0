/* What all parts of the ring's process need. What it shares with its programs and with Python is in
 * bpf/shared. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lanes.h"
#include "lib/seq.h"
#include "shared/ring_native_abi.h"

#define NEVER 0xffffffff /* more results than there can ever be */
#define REACH 8 /* times window and ranks: chunks to look at, from the first that is missing */
/* stalls in a row after which a chunk is nacked without evidence, if there have been no losses
 * lately */
#define PATIENCE 10
/* holdoffs without progress after which a chunk is nacked without evidence */
#define HOLDOFFS 8
/* chunks that are nacked without a sign of loss, if nothing else explains the silence */
#define BLIND 4
/* bytes of lanes up to which a wait yields the CPU before it sleeps; longer collectives last for
 * several times what sleep and interrupt cost, and a CPU that other programs want, too, may come
 * back only after milliseconds */
#define YIELD_MOST (1 << 17)

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
