/* What all of the ring's process needs; what it shares with its programs and with Python is in bpf/shared. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lanes.h"
#include "lib/seq.h"
#include "shared/ring_native_abi.h"

#define NEVER 0xffffffff /* more results than there ever are */
#define REACH 8 /* times the window and the ranks: chunks looked at, from the first that is missing */
#define BLIND 4 /* chunks that are asked for without a sign of loss, when nothing else explains that nothing comes */

static inline uint64_t read_word(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline bool is_done(const struct ring *r, uint32_t chunk, uint32_t seq)
{
	uint64_t word = read_word(&r->records[chunk].result);

	return seq_of(word) == seq && (uint8_t)word == RING_RESULT_DONE;
}

int ring_flush(struct ring *r);
void ring_post(struct ring *r, uint32_t kind, uint32_t seq, uint32_t chunk, uint32_t attempt, uint32_t extra);
