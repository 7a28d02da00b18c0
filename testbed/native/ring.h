/* What the ring's process shares with its programs, as bpf/include/ring.h lays it out, and what it keeps for itself. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lanes.h"

#define FAN 32 /* orders that one bell can serve */
#define ORDERS 1024
#define PARKING 256
#define PARKED 2
#define MAX_STATUS 1024
#define ANYWHERE 0xffff
#define NEVER 0xffffffff /* more results than there ever are */
#define REACH 8 /* times the window and the ranks: chunks looked at, from the first that is missing */
#define BLIND 4 /* chunks that are asked for without a sign of loss, when nothing else explains that nothing comes */

/* Lower byte of a chunk's result word. */
enum result_state { RESULT_NONE, RESULT_CLAIMED, RESULT_DONE, RESULT_REFUSED };

enum stage { PARTIAL, RESULT };

struct tensor {
	uint32_t total;
	uint16_t length, tag;
};

struct control {
	uint64_t progress;
	struct tensor tensors[2];
	uint32_t wake_at, ordered, holdoff_us, settled, front, pad0[5];
	uint64_t next, flushed;
	uint32_t stored, taken, pad1[10];
};

struct lane {
	uint32_t generation, prev;
	uint64_t progress;
	uint32_t heard[32], pad[12];
};

struct peer {
	uint32_t generation, settled, told, front;
};

/* A CPU's lane from the rank before, as the process sees it. */
struct quiet {
	uint64_t progress; /* of the lane, when it was last looked at */
	uint64_t since; /* ns: nothing new has come since then, nor has it been asked why */
	uint32_t probes; /* in a row */
	uint32_t pad;
};

struct parked {
	uint32_t state, generation, chunk;
	uint16_t attempt;
	uint8_t hop, round;
	uint16_t length, tag;
	uint32_t pad;
	uint64_t sum;
};

struct order {
	uint32_t kind, generation, chunk;
	uint16_t attempt, extra;
};

/* What the process fills in once. */
struct ring {
	struct control *control;
	struct parked *parking;
	void *bell; /* a frame as long as a chunk from the start: there may be no room to grow */
	uint64_t bell_length;
	int32_t doorbell, events;
	uint32_t rank, ranks;
	uint64_t syscalls;
	struct order *orders;
	/* For whole collectives. */
	char *inputs, *results;
	struct record *records;
	struct lane *cpus;
	struct peer *peers;
	uint32_t cpu_count;
	uint32_t chasing; /* the last stall has asked for something that is known to be lost */
	struct lanes lanes;
	uint32_t chunk_bytes, window;
	uint32_t yields; /* times that a collective's wait gives way before it sleeps */
	uint32_t patience; /* of these, what this collective has left */
	uint32_t slack;	/* bits of precision that an exponent may waste */
	int32_t least_exponent; /* that the status has a byte for */
	uint32_t exponents;
	int64_t timeout_ns; /* how long a collective waits before the process looks who is there */
	uint64_t *consumer; /* positions in the ring buffer of events */
	const uint64_t *producer;
	uint32_t front; /* all chunks before this one are done */
	uint32_t asked; /* results that were here when missing ones were last asked for */
	uint32_t allowed; /* chunks that could be asked for then */
	uint32_t stalls; /* in a row */
	uint32_t probes; /* since the start */
	uint32_t pad;
	struct quiet *quiet; /* by CPU */
	uint64_t refused; /* results that were not what their check said */
	uint64_t quantize_ns, communicate_ns, wait_ns, dequantize_ns;
	/* What the last collective has shown. */
	int32_t seen; /* exponent of the group's greatest magnitude */
	uint32_t magnitude; /* greatest of this rank's */
	int32_t error; /* errno */
};

/* How a tensor lies in chunks; Layout of testbed/collectives/ring_layout.py. */
struct layout {
	uint64_t count; /* values */
	uint64_t data;  /* bytes of their lanes, up to the next word: where the status begins, checks left out */
	uint32_t status;
	uint32_t total; /* chunks */
	uint32_t length; /* payload of a frame: the last word is the check */
	uint32_t block; /* chunks quantized and published at a time */
};

_Static_assert(sizeof(struct control) == 128, "bpf/include/ring.h");
_Static_assert(sizeof(struct record) == 64, "bpf/include/ring.h");
_Static_assert(sizeof(struct lane) == 192, "bpf/include/ring.h");
_Static_assert(sizeof(struct parked) == 32, "bpf/include/ring.h");

enum { LAUNCH = 1, REPLAY, REQUEST, RESTART, PROBE };

static inline uint32_t generation_of(uint64_t word)
{
	return word >> 32;
}

static inline uint64_t read_word(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline bool is_done(const struct ring *r, uint32_t chunk, uint32_t generation)
{
	uint64_t word = read_word(&r->records[chunk].result);

	return generation_of(word) == generation && (uint8_t)word == RESULT_DONE;
}

int ring_flush(struct ring *r);
void ring_order(struct ring *r, uint32_t kind, uint32_t generation, uint32_t chunk, uint32_t attempt, uint32_t extra);
