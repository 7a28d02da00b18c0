/* What all of the ring's process needs; what it shares with its programs and with Python is in bpf/shared. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lanes.h"
#include "lib/generation.h"
#include "shared/ring_native_abi.h"

#define NEVER 0xffffffff /* more results than there ever are */
#define REACH 8 /* times the window and the ranks: chunks looked at, from the first that is missing */
#define BLIND 4 /* chunks that are asked for without a sign of loss, when nothing else explains that nothing comes */

static inline uint64_t read_word(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Does a result word say that the whole result of a generation is here? */
static inline bool is_done(uint64_t word, uint32_t generation)
{
	return generation_of(word) == generation && ((uint8_t)word == RING_RESULT_DONE || (uint8_t)word == RING_RESULT_VERIFIED);
}

/* Frames that have brought something new, on all CPUs, since the start. */
static inline uint64_t ring_progress(const struct ring *r)
{
	uint64_t progress = 0;

	for (uint32_t cpu = 0; cpu < r->cpu_count; cpu++)
		progress += __atomic_load_n(&r->cpus[cpu].progress, __ATOMIC_RELAXED);
	return progress;
}

int ring_flush(struct ring *r);
void ring_refuse(struct ring *r, uint32_t chunk);
void ring_order(struct ring *r, uint32_t kind, uint32_t generation, uint32_t chunk, uint32_t attempt, uint32_t extra);
