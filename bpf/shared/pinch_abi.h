/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the programs of an exchange share with the process of their host: sizes, maps' elements,
 * frames, counters.
 *
 * A frame's payload: the vertices' numbers at their owner, 32 bits each and padded to a word, then
 * a row of words for each. If an embedding takes several frames, a frame has one part of it, whose
 * number is in the upper half of the first word.
 */
#pragma once

#include "drop_abi.h"
#include "wire_abi.h"

enum pinch_size {
	/* words of a payload, as many as fit into the largest MTU of single-buffer XDP on veth */
	PINCH_MAX_WORDS = 428,
	PINCH_MAX_WIDE = 2 * PINCH_MAX_WORDS,
	PINCH_STEP = 16, /* words that are checked and widened in one step */
	PINCH_MAX_STEPS = 27,
	PINCH_ACK_WORDS = 16,  /* bitmap words in an acknowledgement, for 32 frames each */
	PINCH_ACK_BEHIND = 12, /* of these, words before that of the frame it answers */
	/* minimum size of a frame, so that it can become an acknowledgement in place */
	PINCH_LEAST_BYTES = sizeof(struct ring_frame) + 8 * PINCH_ACK_WORDS,
	PINCH_BATCH = 32,	 /* maximum number of frames that one kick sends */
	PINCH_SQ_ENTRIES = 1024, /* entries of a flow's submission queue; a power of two */
	PINCH_MAX_FLOWS = 64,
};

enum pinch_mark {
	PINCH_ANYWHERE = 0xffffffff, /* value of `cpu`: frames are aggregated where they arrive */
	/* in an acknowledgement: missing frames may only be late */
	PINCH_NO_STREAM = 0xff,
	PINCH_UNKNOWN = 0xffffffff, /* value of `copies` that no count ever reaches */
	/* in a work request: ask whether the frame has arrived, do not retransmit it */
	PINCH_WR_ASK = 0x80000000,
};

/* A handshake's word is seq << 32 | frames << 9 | exponent. */
enum pinch_word {
	PINCH_EXPONENT_BITS = 9,
	PINCH_NOT_FINITE = 511, /* instead of an exponent */
	PINCH_ENDED = 510, /* instead of an exponent: exchanges have ended; the header says why */
};

enum pinch_seq {
	PINCH_FIRST = 1, /* the barrier of all ranks when a group opens; no data is exchanged */
};

enum pinch_flag {
	PINCH_FLAG_ASK = 1, /* embeddings, handshakes: the sender wants an answer */
	/* handshake with PINCH_ENDED or PINCH_FLAG_ENDED: ranks are `late`, not `gone` */
	PINCH_FLAG_LATE = 2,
	PINCH_FLAG_ALL = 4, /* kick: there is one for each flow */
	/* Of an exchange by tokens (token_abi.h): */
	PINCH_FLAG_TOKEN = 8,	   /* embeddings, with `frames` */
	PINCH_FLAG_NONFINITE = 16, /* embeddings: some values are not finite */
	PINCH_FLAG_LARGE = 32,	   /* embeddings: some magnitudes are large (rows.h) */
	PINCH_FLAG_ENDED = 64,	   /* handshake: the sender has given up, because of ranks `gone` */
	PINCH_FLAG_RETURN = 128,   /* embeddings: the frame goes back to its sender */
};

enum pinch_aggregation { PINCH_SUM, PINCH_WEIGHTED, PINCH_MAX };

struct pinch_source {
	__u32 vertices; /* vertices that the rank owns */
	__u32 first;	/* index of its first vertex in `pinch_vertices` */
	__u32 seen;	/* index of its first word in `pinch_seen` */
	__u32 frames;	/* maximum number of frames that the rank may send */
};

/* Set before the programs are loaded, so that the verifier knows them. */
struct pinch_config {
	__u64 cookie;
	__u32 rank;
	__u32 ranks;
	__u32 group;
	__u32 words;	 /* words of a vertex in a frame */
	__u32 parts;	 /* frames that an embedding takes */
	__u32 rows;	 /* vertices in a full frame */
	__u32 payload;	 /* payload of a full frame, bytes */
	__u32 bits;	 /* bits of a lane on the wire; an accumulator has twice as many */
	__u32 packed;	 /* 1: sums of 32-bit lanes, which are small enough, have 32 bits, too */
	__u32 sum_words; /* words of a vertex in an accumulator, for each of its parts */
	__u32 aggregation;
	__u32 targets;	/* accumulators per bank */
	__u32 banks;	/* one for each CPU that aggregates */
	__u32 cpu;	/* the CPU that aggregates; PINCH_ANYWHERE: where frames arrive */
	__u32 slice;	/* number of neighbours to which a vertex is added in one run */
	__u32 capacity; /* frames */
	/* frames that may land in one exchange and bank, plus one; 0: programs add up rows */
	__u32 landing;
	__u32 steps;	   /* of PINCH_STEP words, in a landed frame */
	__u32 acked_words; /* words of each peer's bitmap of acknowledged frames */
	__u32 uplink;	   /* ifindex */
	__u32 doorbell;	   /* ifindex of the doorbell's near end */
	/* flows that have ranks: one for each CPU that aggregates for some rank; 1 if frames are
	 * aggregated where they arrive */
	__u32 fan;
	/* the ranks that each flow goes to, one bit each; flows have their CPUs' numbers */
	__u32 homes[PINCH_MAX_FLOWS];
	__u8 fan_cpu[PINCH_MAX_FLOWS]; /* the CPUs of the flows that have ranks */
	__u8 home[RING_MAX_RANKS];     /* each rank's flow */
	struct pinch_source sources[RING_MAX_RANKS];
	struct net_peer peers[RING_MAX_RANKS];
};

/* Cache lines that the process writes, and one that the kernel writes. */
struct pinch_control {
	__u64 progress; /* seq << 32 | frames that may be sent */
	__u32 tag;
	__u32 window; /* copies of frames that a flow may have in flight */
	__u32 copies; /* acknowledgements to expect; PINCH_UNKNOWN: not known yet */
	/* payloads are valid if the largest exponent, as handshakes encode it, is at least this
	 */
	__u32 lowest;
	__u32 highest;	/* and at most this */
	__u32 partners; /* ranks whose handshakes are needed, one bit each, and this rank */
	__u32 pad0[8];
	/* seq << 32 | frames to expect, once all partners have entered and payloads are valid */
	__u64 met;
	__u32 unfit; /* seq that all partners have entered, but for which payloads are not valid */
	__u32 sending;	/* programs that are sending: the process must not change what they read */
	__u32 acked;	/* copies acknowledged */
	__u32 received; /* frames whose vertices have all been added or queued in `pinch_hubs` */
	__u32 owed;	/* slices of hubs still to be added */
	__u32 queued;	/* hubs in the queue, in this sequence number */
	__u32 served;	/* of these, finished */
	/* from a frame to the acknowledgement that it asked for (RFC 6298), cumulative */
	__u32 rtt_samples;
	__u64 rtt_sum_us;
	__u32 rtt_max_us;
	__u32 nonfinite; /* ranks with NaN or infinite values, one bit each: exchanges have ended */
	__u32 gone;	 /* ranks that went silent, likewise */
	__u32 late;	 /* ranks that are up but did not enter in time, likewise */
	__u32 end_acked; /* ranks that have acknowledged this end, one bit each */
	__u32 handed;	 /* frames handed over to the CPU that aggregates */
	__u32 taken;	 /* of these, received there */
};

/* The frames to the ranks that one CPU aggregates for. That CPU does all the work on them. */
struct pinch_flow {
	__u32 total;	 /* frames in its schedule */
	__u32 next;	 /* index of the frame to send next */
	__u32 in_flight; /* copies in flight */
	/* work requests that the process has posted so far: frames to retransmit or to ask about */
	__u32 sq_tail;
	__u32 sq_head; /* of these, those that programs have taken */
	__u32 pad[11];
};

/* A frame to send, as the process has prepared it. */
struct pinch_frame {
	/* check of the payload: the sum of its half words, each times the weight of its position
	 * (weights_abi.h) */
	__u64 check;
	__u32 to;     /* ranks that need it, one bit each */
	__u32 ask;    /* of these, ranks to ask for an acknowledgement */
	__u16 length; /* length of the payload, bytes */
	__u16 copies; /* bits in `to` */
	__u32 pad;
};

/* The latest transmission of a frame by a flow. Frames of one CPU form a stream, which stays in
 * order: if a frame has arrived and an earlier one of its stream has not, the earlier one is lost.
 */
struct pinch_sent {
	__u32 seq;    /* under which it was sent */
	__u32 serial; /* its number in the stream */
	__u32 sent_us;
	__u8 stream;
	__u8 attempt; /* grows by one with each retransmission and each PINCH_ASK */
	__u16 pad;
};

/* What this rank knows about another rank's vertex. */
struct pinch_vertex {
	__u32 first; /* index of its first neighbour in `pinch_edges` */
	__u32 count; /* number of its neighbours */
	__u32 hub;   /* its first slot in `pinch_hubs`, plus 1; 0: it has few neighbours */
	__u32 pad;
};

/* Precedes the payload of a frame in `pinch_landing`. */
struct pinch_landed {
	__u32 sender;
	__u32 rows;
};

struct pinch_edge {
	__u32 target; /* accumulator */
	__s32 weight;
};

/* A part of a vertex with many neighbours, which is added to them a slice at a time. */
struct pinch_hub {
	__u32 first;
	__u32 count;
	__u32 part;
	__u32 next; /* slice */
};

/* What this rank knows about another rank. */
struct pinch_peer {
	__u32 received; /* frames received, in this sequence number */
	__u32 acked;	/* frames that it has acknowledged, in this sequence number */
	__u64 heard;	/* verified frames of any kind, cumulative */
	__u64 news;	/* of these, frames with new content */
	__u32 answers;	/* acknowledgements, cumulative */
	__u32 at;	/* seq that it has entered, by its latest handshake */
	__u32 waits;	/* ranks that it was waiting for, one bit each */
	__u32 pad;
	/* handshakes to it, of even and of odd sequence numbers; not used in this rank's own record
	 */
	__u64 ours[2];
	/* handshakes from it; in this rank's own record, those that it has sent itself */
	__u64 theirs[2];
};

struct pinch_handshake {
	struct ring_frame head;
	__u64 word;
} __attribute__((packed, aligned(8)));

struct pinch_ack {
	struct ring_frame head;
	__u64 words[PINCH_ACK_WORDS]; /* the lower half of each: frames that have arrived */
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct pinch_ack) == PINCH_LEAST_BYTES, "frames turn round in place");

/* The first are enum drop_reason. */
enum pinch_counter {
	PINCH_SENT = DROP_REASONS,
	PINCH_SENT_BYTES,
	PINCH_RESENT,
	PINCH_ACKS,	  /* acknowledgements sent */
	PINCH_ASKS,	  /* PINCH_ASK frames sent */
	PINCH_HANDSHAKES, /* handshakes sent */
	PINCH_FANNED,	  /* kicks made from last handshakes */
	PINCH_RECEIVED,
	PINCH_VERTICES, /* received vertices that have neighbours here */
	PINCH_UNUSED,	/* received vertices that have none */
	PINCH_EDGES,	/* rows added to accumulators */
	PINCH_SLICES,	/* slices of hubs added */
	PINCH_GAPS,	/* frames retransmitted because a later one was acknowledged */
	PINCH_REMOTE,	/* frames handed over to the CPU that aggregates */
	PINCH_SERIAL,	/* frames sent on this CPU's stream */
	PINCH_COUNTERS,
};
