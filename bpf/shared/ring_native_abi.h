/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/ring.c shares with Python: the process's side of the ring. Programs do not
 * use it. */
#pragma once

#include "ring_abi.h"

enum ring_native_size {
	RING_CHECK_BYTES = 8, /* the last word of a chunk, the check of the words before it */
	RING_MAX_STATUS = 1024,
	RING_TRIPS = 4,	   /* the least of so many round trips counts; a power of two */
	RING_TIMED = 1024, /* probes whose times a process remembers; a power of two */
};

/* How a collective ended, and what is left to do. */
enum ring_outcome {
	RING_DONE, /* the sums are in place */
	RING_LATE, /* the timer has expired: recover, then ring_complete */
	/* one of this rank's values is not finite: ring_finish with a status that says so, wait,
	 * ring_complete */
	RING_NONFINITE,
	RING_FAULTY,   /* a rank's status has more than an exponent */
	RING_MISFIT,   /* the predicted exponent was too low or wastes too much precision */
	RING_FAILED,   /* see `error` */
	RING_DECLINED, /* nothing has been sent: this collective is one for Python */
	/* the first part of a reduce-scatter or all-gather is not over: recover, then ring_go_on */
	RING_APART,
};

/* The format of lanes; Lanes of testbed/protocol/lanes.py. */
struct lanes {
	__u32 bytes; /* 2 or 4 */
	__u32 bias;  /* offset that makes lanes unsigned */
	__s32 limit;
	float clamp; /* the largest float that rounds to no more than the limit */
	__s32 fraction_bits;
	__s32 ranks;
};

/* What one rank says of its tensor, in the status; status.py of testbed/protocol. */
struct ring_status_record {
	__u32 kind;  /* of values that are not finite; 0: there are none */
	__u32 count; /* of these */
	__u64 index; /* of the first one */
	__u64 identity;
};

/* How a tensor is laid out in chunks; Layout of testbed/collectives/ring/layout.py. */
struct ring_layout {
	__u64 count;	 /* values */
	__u64 identity;	 /* of the tensor: what ranks must agree on */
	__u64 status_at; /* byte where the status begins, not counting checks */
	__u32 status;	 /* its bytes */
	__u32 total;	 /* chunks */
	__u32 length;	 /* payload of a frame: the last word is the check */
	__u32 block;	 /* chunks quantized and published at a time */
	__u32 window;	 /* frames in flight per rank; 0: as many as the group allows */
	/* As of struct ring_tensor. With one of them, `count` is 0, and each rank, or the root, has
	 * a block of `share` bytes, which begins `stride` bytes before that of the next rank. */
	__u32 scattered;
	__u32 gathered;
	__u32 root;
	__u64 share;
	__u64 stride;
};

/* A part of a tensor that is reduced by a collective of its own, and the prediction of its
 * exponent: ScaleGuess of testbed/protocol/scale.py. */
struct ring_segment {
	const struct ring_layout *layout;
	__u64 first;	/* its first value in the tensor */
	__s32 exponent; /* to quantize with */
	__s32 highest;	/* largest exponent of the last `calm` collectives */
	__u32 calm;	/* collectives in a row for which the exponent was too high */
	__s32 tagged;	/* the exponent that `tag` stands for */
	__u16 tag;	/* that frames of its collectives carry, if has_tag */
	__u8 known;	/* there is a prediction */
	__u8 has_tag;
	__u32 pad;
};

/* All segments of tensors of one size. */
struct ring_plan {
	__u64 size; /* values of such a tensor */
	struct ring_segment *segments;
	__u32 count;
	__u32 pad;
};

/* A CPU's stream from the previous rank, as the process sees it. */
struct ring_quiet {
	__u64 progress; /* frames that made progress on the stream, as of the last look */
	__u64 since;	/* ns: time of the last progress or probe */
	__u32 probes;	/* in a row */
	__u32 pad;
	__u64 answer; /* to a probe, as of the last look */
};

/* A rank's process. */
struct ring {
	/* Set once. */
	struct ring_control *control;
	struct ring_early *early_frames;
	void *kick; /* a frame already as long as a chunk, because there may be no room to grow */
	__u64 kick_length;
	__s32 doorbell, events;
	__u32 rank, ranks;
	__u64 syscalls;
	struct ring_wr *sq;
	/* For whole collectives. */
	char *inputs, *results;
	struct ring_chunk *records;
	struct ring_stream *cpus;
	struct ring_rank *peers;
	__u32 cpu_count;
	__u32 in_recovery; /* the last stall found a frame missing that is known to be lost */
	struct lanes lanes;
	__u32 chunk_bytes, window;
	__u32 yields;	      /* times that a collective may yield the CPU before it sleeps */
	__u32 patience;	      /* yields that this collective has left */
	__u32 slack;	      /* bits of precision that an exponent may waste */
	__s32 least_exponent; /* that the status has a byte for */
	__u32 exponents;
	/* how long a collective waits before the process checks which ranks are alive */
	__s64 timeout_ns;
	__u64 *consumer; /* positions in the ring buffer of events */
	const __u64 *producer;
	__u32 front;	 /* all chunks before this one are done */
	__u32 allowed;	 /* chunks that could be nacked then */
	__u32 stalls;	 /* stalls in a row */
	__u32 probes;	 /* since the start */
	__u32 next;	 /* chunk that the next stall starts at */
	__u32 to_verify; /* chunk whose result is verified next, before all are stored */
	__u32 still_us;	 /* time of the first of these stalls; low 32 bits */
	__u32 probed_us[RING_TIMED]; /* when the last probes were sent, by their attempts */
	/* round trips of probes, as RFC 6298 smooths them: 8 times their mean, and 4 times their
	 * mean deviation */
	__u32 mean8_us, deviation4_us;
	__u32 trips_us[RING_TRIPS]; /* the latest ones */
	__u32 trips;		    /* since the start */
	__u32 least_holdoff_us;	    /* between two nacks, whatever the round trips */
	__u32 pad;
	__u64 nacked_at;	  /* progress on all CPUs when missing chunks were last nacked */
	struct ring_quiet *quiet; /* by CPU */
	__u64 refused;		  /* results that failed their check */
	__u64 quantize_ns, communicate_ns, wait_ns, dequantize_ns;
	/* For whole tensors. */
	const struct ring_plan *plans;
	__u32 plan_count;
	__u32 seq;	     /* of the last collective */
	__s32 most_exponent; /* up to which sums cannot exceed float32 */
	__u32 calm_most;     /* collectives after which an exponent that is too high is lowered */
	__u32 within;	     /* a collective has begun and is not complete */
	__u32 reduced;	     /* segments of the tensor that are done */
	__u32 stream;	     /* the tensor is so large that its results bypass the cache */
	__u32 pad2;
	/* For waits that yield the CPU. */
	__u32 sleeps;  /* collectives that are not to yield, because others want the CPU */
	__u32 backoff; /* what `sleeps` was set to last */
	/* Results of the last collective. */
	__s32 seen;	 /* exponent of the group's greatest magnitude */
	__u32 magnitude; /* greatest magnitude of this rank */
	__s32 error;	 /* errno */
};
