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
#define EVENTS 4096 /* bytes of the ring buffer of events */
#define EVENT_STORED 1
#define CHASED 8 /* times the window: chunks looked at, from the first that is missing */
#define FAR 4 /* times chase_ns, far from the end */

struct tensor {
	uint32_t total;
	uint16_t length, tag;
};

struct control {
	uint64_t progress;
	struct tensor tensors[2];
	uint32_t wake_at, ordered, quench_us, settled, pad0[6];
	uint64_t next;
	uint32_t stored, taken, rtt_samples, rtt_max_us;
	uint64_t rtt_sum_us;
	uint32_t pad1[8];
};

struct parked {
	uint32_t state, generation, chunk;
	uint8_t attempt, hop;
	uint16_t length, tag, reserved[3];
	uint64_t checksum;
};

struct order {
	uint32_t kind, generation, chunk, attempt;
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
	struct lanes lanes;
	uint32_t chunk_bytes, window;
	uint32_t yields; /* times that a collective's wait gives way before it sleeps */
	uint32_t patience; /* of these, what this collective has left */
	uint32_t slack;	/* bits of precision that an exponent may waste */
	int32_t least_exponent; /* that the status has a byte for */
	uint32_t exponents;
	int64_t timeout_ns; /* of the retransmission timer */
	int64_t chase_ns; /* time without a result after which missing ones are asked for, near the end */
	uint64_t *consumer; /* positions in the ring buffer of events, and its data */
	const uint64_t *producer;
	const char *event_data;
	uint32_t block; /* chunks that are published at a time */
	uint32_t last; /* first chunk of the last block, once that is published */
	uint32_t front; /* all chunks before this one are done */
	uint32_t chased; /* results that were here when missing ones were last asked for */
	uint32_t allowed; /* chunks that could be asked for then */
	uint32_t pad;
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
_Static_assert(sizeof(struct parked) == 32, "bpf/include/ring.h");

enum { LAUNCH = 1, REPLAY, REQUEST, PROBE };

int ring_flush(struct ring *r);
uint32_t ring_take(struct ring *r, uint32_t most);
void ring_order(struct ring *r, uint32_t kind, uint32_t generation, uint32_t chunk, uint32_t attempt);
