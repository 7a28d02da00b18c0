/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the ring's programs share with the process of their host: sizes, elements of maps, counters.
 */
#pragma once

#include "drop_abi.h"
#include "wire_abi.h"

enum ring_size {
	RING_BLOCK = 64, /* bytes; payloads are whole blocks, so that loops need few checks */
	/* 3,392 bytes, which fit into the linear part of a frame on veth, 3,520 bytes */
	RING_LINEAR_BLOCKS = 53,
	RING_LINEAR_BYTES = RING_LINEAR_BLOCKS * RING_BLOCK,
	/* 64,832 bytes: the linear part and 15 pages */
	RING_MAX_BLOCKS = 1013,
	RING_PAGE = 4096, /* veth makes the fragments of a frame of pages */
	/* A payload of more than RING_LINEAR_BYTES begins here, so that the linear part and every
	 * page end with a block: programs work on it in place. */
	RING_JUMBO_OFFSET = 128,
	RING_LINEAR_FRAME = RING_JUMBO_OFFSET + RING_LINEAR_BYTES,
	RING_SQ_ENTRIES = 1024, /* entries of the submission queue; a power of two */
	RING_FAN_SMALL = 8,	/* frames that XDP makes of one kick */
	RING_FAN_LARGE = 32,
	RING_EARLY_SLOTS = 256, /* slots of the early-frame buffer */
	RING_EARLY_TRIES = 4,	/* slots in which a chunk's frame may be saved */
	RING_NACK_ENTRIES = 64, /* entries of a CPU's nack queue; a power of two */
	/* collectives for which partial sums are saved after a sign of loss */
	RING_LOSSY_FOR = 256,
};

/* Set before the program is loaded, so that the verifier knows them. */
struct ring_config {
	__u64 cookie;
	__u32 rank;
	__u32 ranks;
	__u32 group;
	/* payload of a frame, a multiple of RING_BLOCK; frames of a smaller tensor are shorter */
	__u32 chunk_bytes;
	__u32 chunks;		/* capacity of the maps */
	__u32 retransmit_slots; /* slots of the retransmit buffer; a power of two */
	__u32 upstream; /* which rank retransmits: 0 the chunk's owner, 1 the previous rank */
	/* later frames of a stream that must arrive before a missing one is nacked; 0: only the
	 * timer nacks */
	__u32 reorder_threshold;
	__u32 uplink; /* ifindex */
	__u32 cpus;   /* CPUs over which work requests are spread */
	struct net_peer peers[RING_MAX_RANKS];
};

struct ring_tensor {
	__u32 total;  /* chunks */
	__u16 length; /* payload of a frame, bytes */
	__u16 tag;
	/* Chunks before this one end with the reduce-scatter phase: the rank that completes the sum
	 * is the only one that wants it. 0 in an all-reduce. */
	__u32 scattered;
	/* Chunks from this one on begin with the all-gather phase: the owner's input is the result.
	 * 0: none do. */
	__u16 gathered;
	__u16 root; /* the rank that owns all these chunks, and 1; 0: each has an owner of its own
		     */
};

/* One cache line that the process writes, one that the kernel writes. */
struct ring_control {
	__u64 progress; /* seq << 32 | chunks whose input is ready */
	/* by parity of seq; set before `progress` names the sequence number */
	struct ring_tensor tensors[2];
	__u32 wake_at; /* wake the process when this many results are stored */
	__u32 sq_tail; /* work requests that the process has posted, since the start */
	/* least time between the first two nacks for a frame, then doubled; owners ignore nacks
	 * that come sooner */
	__u32 nack_holdoff_us;
	__u32 verified; /* latest sequence number whose results the process has verified */
	__u32 front;	/* first chunk whose result is missing, as far as the process has looked */
	/* retransmission timeout of RFC 6298, from the previous rank's answers to probes; 0: there
	 * are none yet */
	__u32 rto_us;
	__u64 next; /* seq << 32 | next slot to launch; slot s is chunk rank + ranks * s */
	/* streams, a bit each, whose answers to probes have come from the previous rank */
	__u64 flushed;
	/* enum ring_reason << 32 | ranks that are blamed, a bit each; 0: no rank is known to have
	 * given up. Programs set it once, to what they hear first. */
	__u64 ended;
	/* results of this sequence number, and scattered chunks that this rank has sent on */
	__u32 stored;
	__u32 sq_head; /* work requests that programs have taken, since the start */
	__u32 lossy;   /* sequence number in which this rank last saw a sign of loss; 0: none yet */
	/* reordering window: how late frames have come that a later one of their stream overtook */
	__u32 late_us;
	__u32 widened_us;  /* when the reordering window last grew */
	__u32 answered_us; /* when the previous rank last answered a nack or a probe */
	__u32 pad1[4];
};

/* State of a chunk's result. Within a round of one sequence number it only moves down this list;
 * each round starts at the top. */
enum ring_result_state {
	RING_RESULT_NONE,
	RING_RESULT_CLAIMED, /* a CPU is writing it */
	RING_RESULT_DONE,
	RING_RESULT_REFUSED, /* the process found that its check word does not match */
	/* the process found that it matches: the result stays, and serves nacks of any round */
	RING_RESULT_VERIFIED,
};

/* `reduced` and `result` change by compare-and-exchange, and only forward, so a CPU that was
 * delayed changes nothing. */
struct ring_chunk {
	__u64 input_sum; /* sum of the input's words; the process writes it */
	__u64 result_sum;
	/* seq << 32 | round of the latest partial sum that this rank has added its input to and
	 * sent; at the root of a broadcast also RING_RETURNED, when the frame has come back */
	__u64 reduced;
	__u64 result;	 /* seq << 32 | round << 8 | enum ring_result_state */
	__u32 before[2]; /* by stage: `prev` of the chunk's frame when it was first sent */
	__u32 lost[2];	 /* by stage: seq in which the frame to this rank is known to be lost */
	/* when this rank last nacked the frame of the chunk that it lacks, or found it missing; 0:
	 * it lacks none; low 32 bits */
	__u32 nacked_us;
	__u32 resent_us; /* when this rank last retransmitted a frame of the chunk; 0: never */
	/* by parity of seq, because a rank answers stragglers of the previous one: attempt of the
	 * chunk's frame with data that was sent last */
	__u16 attempt[2];
	/* nacks that this rank has sent since; apart, because how many there are depends on time,
	 * and an attempt decides a frame's fate */
	__u16 nacks;
	__u16 tries; /* of these, nacks for the frame that it lacks */
};

/* Retransmit buffer: a partial sum that was sent, in case it is lost. */
struct ring_retransmit {
	__u64 owner; /* seq << 32 | chunk that the slot belongs to */
	__u64 valid; /* equal to `owner` once the data is complete, else 0 */
	__u64 sum;   /* sum of the data's words */
	__u32 round;
	__u32 pad;
};

/* The stream of one CPU's frames to the next rank. Only that CPU writes it. */
struct ring_stream {
	__u32 seq;
	__u32 prev;	/* latest frame that was not a retransmission, as `prev` encodes it */
	__u64 progress; /* frames that brought something new, since the start */
	__u32 heard[RING_MAX_RANKS]; /* verified frames from each rank, since the start */
	/* time of the previous rank's latest answer to a probe << 32 | attempt of the probe */
	__u64 answer;
	__u32 pad[10];
};

/* What another rank has last said about itself. */
struct ring_rank {
	__u32 seq;
	__u32 verified; /* sequence number */
	/* the latest sequence number that it knows this rank has verified */
	__u32 verified_acked;
	__u32 front;
	__u32 ended; /* it knows that a rank has given up */
	__u32 pad;
};

/* What the process wants to send. XDP multiplies one kick, and each copy takes a work request. */
enum ring_wr_kind {
	RING_WR_LAUNCH = 1, /* start chunk `chunk`, unless it has been started */
	RING_WR_REPLAY,	    /* replay the early frame in slot `chunk` */
	RING_WR_NACK,	    /* nack the next missing frame of chunk `chunk` */
	/* the process refused the result of `chunk` in round `extra`: start its reduce-scatter
	   phase over */
	RING_WR_RESTART,
	RING_WR_PROBE, /* probe rank `chunk` on CPU `extra`, for the `attempt`th time */
};

struct ring_wr {
	__u32 kind;
	__u32 seq;
	__u32 chunk;
	__u16 attempt;
	__u16 extra;
};

enum ring_wr_extra {
	RING_ANYWHERE = 0xffff, /* CPU of a probe: whichever takes the work request */
};

enum ring_wr_attempt {
	RING_UNTIMED = 0x8000, /* added to the attempt of a probe that measures no round trip */
};

/* A missing frame. */
struct ring_nack {
	__u32 seq;
	__u32 item;	 /* as `prev` encodes it */
	__u32 due_frame; /* nack it once this many frames have arrived */
	__u32 due_us;	 /* and not before this time */
};

/* A FIFO. For entries from `taken` to `carried`, a frame is under way that will nack them; those
 * from `carried` to `given` wait. */
struct ring_nack_queue {
	__u32 taken;
	__u32 carried;
	__u32 given;
	__u32 pad;
	struct ring_nack nacks[RING_NACK_ENTRIES];
};

/* The nack queues of one CPU. */
struct ring_nacks {
	__u32 frames; /* frames that have arrived */
	__u32 pad;
	struct ring_nack_queue fresh;
	struct ring_nack_queue again; /* nacked before: the nack or its answer may be lost too */
};

enum ring_reduced {
	RING_RETURNED = 0x100,
};

enum ring_early_state {
	RING_EARLY_FREE,
	RING_EARLY_FILLING,
	RING_EARLY_WAITING,
	RING_EARLY_REPLAYING
};

struct ring_early {
	__u32 state;
	__u32 seq;
	__u32 chunk;
	__u16 attempt;
	__u8 hop;
	__u8 round;
	__u16 length;
	__u16 tag;
	__u32 pad;
	__u64 sum; /* sum of the data's words */
};

/* The first are enum drop_reason. */
enum ring_counter {
	RING_SENT = DROP_REASONS, /* frames sent */
	RING_SENT_BYTES,	  /* their bytes from the Ethernet header on */
	RING_RESENT,		  /* of these, retransmissions and nacks */
	RING_STORED,
	RING_ANSWERED,	/* results retransmitted */
	RING_EARLY,	/* frames saved until their input is ready */
	RING_SPREAD,	/* work requests handed to another CPU */
	RING_LOST,	/* frames that were missing when a later one of their stream came */
	RING_RESTARTED, /* reduce-scatter phases that were started over */
	RING_UNSAVED,	/* partial sums that found no slot in the retransmit buffer */
	RING_COUNTERS,
};
