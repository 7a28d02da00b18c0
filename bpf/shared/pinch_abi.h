/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the programs of an exchange share with the process of their host: sizes, maps' elements,
 * frames, counters.
 *
 * A frame's payload: the vertices' numbers at their owner, 32 bits each and padded to a word, then
 * a row of words for each. Of an embedding that takes several frames a frame has one part, whose
 * number is in the upper half of the first word.
 */
#pragma once

#include "drop_abi.h"
#include "wire_abi.h"

enum pinch_size {
	/* of a payload: what fits the largest MTU of single-buffer XDP on veth */
	PINCH_MAX_WORDS = 428,
	PINCH_MAX_WIDE = 2 * PINCH_MAX_WORDS,
	PINCH_STEP = 16, /* words that are checked and widened at a time */
	PINCH_MAX_STEPS = 27,
	PINCH_ACK_WORDS = 16,  /* bitmap words in an acknowledgement, 32 frames each */
	PINCH_ACK_BEHIND = 12, /* of these, words before the one of the frame that it answers */
	/* of a frame, so that it can become an acknowledgement in place */
	PINCH_LEAST_BYTES = sizeof(struct ring_frame) + 8 * PINCH_ACK_WORDS,
	PINCH_BATCH = 32,	 /* most frames that one kick sends */
	PINCH_SQ_ENTRIES = 1024, /* entries of a flow's submission queue; a power of two */
	PINCH_MAX_FLOWS = 64,
};

enum pinch_mark {
	PINCH_ANYWHERE = 0xffffffff, /* of `cpu`: frames are aggregated where they arrive */
	/* of an acknowledgement: frames that it lacks may only be late */
	PINCH_NO_STREAM = 0xff,
	PINCH_UNKNOWN = 0xffffffff, /* of `copies`: no count ever comes to this */
	/* of a work request: ask whether the frame has come, do not send it again */
	PINCH_WR_ASK = 0x80000000,
};

/* Of a handshake's word: seq << 32 | frames << 9 | exponent. */
enum pinch_word {
	PINCH_EXPONENT_BITS = 9,
	PINCH_NOT_FINITE = 511, /* instead of an exponent */
	PINCH_ENDED = 510,	/* likewise: exchanges have ended; the header says why */
};

enum pinch_seq {
	PINCH_FIRST = 1, /* the barrier of all ranks when a group opens; nothing is exchanged */
};

enum pinch_flag {
	PINCH_FLAG_ASK = 1, /* embeddings, handshakes: the sender wants an answer */
	PINCH_FLAG_ALL = 1, /* kick: there is one frame for each flow */
	/* a handshake that says that exchanges have ended: the ranks in `prev` are up */
	PINCH_FLAG_LATE = 2,
};

enum pinch_aggregation { PINCH_SUM, PINCH_WEIGHTED, PINCH_MAX };

struct pinch_source {
	__u32 vertices; /* that the rank owns */
	__u32 first;	/* of these in `vertices` */
	__u32 seen;	/* first of its words in `seen` */
	__u32 frames;	/* most that the rank may send */
};

/* Set before the programs are loaded, so that the verifier knows them. */
struct pinch_config {
	__u64 cookie;
	__u32 rank;
	__u32 ranks;
	__u32 group;
	__u32 words;   /* of a vertex in a frame */
	__u32 parts;   /* frames that an embedding takes */
	__u32 rows;    /* vertices in a full frame */
	__u32 payload; /* bytes of a full frame's payload */
	__u32 bits;    /* of a lane on the wire; an accumulator's has twice as many */
	__u32 aggregation;
	__u32 targets;	   /* accumulators of a bank */
	__u32 banks;	   /* one for each CPU that aggregates */
	__u32 cpu;	   /* that aggregates; PINCH_ANYWHERE: where frames arrive */
	__u32 slice;	   /* neighbours that a vertex is added to in one run */
	__u32 capacity;	   /* frames */
	__u32 acked_words; /* of each peer's bitmap of acknowledged frames */
	__u32 uplink;	   /* ifindex */
	__u32 doorbell;	   /* ifindex of the doorbell's near end */
	/* flows that have ranks: one for each CPU that aggregates for some rank; 1 where frames are
	 * aggregated anywhere */
	__u32 fan;
	/* the ranks that each flow goes to, a bit each; flows have their CPUs' numbers */
	__u32 homes[PINCH_MAX_FLOWS];
	__u8 fan_cpu[PINCH_MAX_FLOWS]; /* the CPUs of those that have any */
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
	/* payloads hold if the ranks' largest exponent, as handshakes encode it, is at least this
	 */
	__u32 lowest;
	__u32 highest;	/* and at most this */
	__u32 partners; /* ranks whose handshakes are needed, a bit each, and this one */
	__u32 pad0[8];
	/* seq << 32 | frames to expect, once all partners have entered and payloads hold */
	__u64 met;
	__u32 unfit;	/* seq that all partners have entered, but payloads do not hold */
	__u32 sending;	/* programs that are sending: the process must not change what they read */
	__u32 acked;	/* copies acknowledged */
	__u32 received; /* frames whose vertices are all added, or in `pinch_hubs` */
	__u32 owed;	/* slices of hubs that remain to be added */
	__u32 queued;	/* hubs in the queue, in this sequence number */
	__u32 served;	/* of these, finished */
	/* from a frame to the acknowledgement that it asked for (RFC 6298), since the start */
	__u32 rtt_samples;
	__u64 rtt_sum_us;
	__u32 rtt_max_us;
	__u32 nonfinite; /* ranks with NaN or infinite values, a bit each: exchanges have ended */
	__u32 gone;	 /* ranks that went silent, likewise */
	__u32 late;	 /* ranks that are up but did not enter in time, likewise */
	__u32 end_acked; /* ranks that have acknowledged this end, a bit each */
	__u32 handed;	 /* frames handed over to the CPU that aggregates */
	__u32 taken;	 /* of these, received there */
};

/* The frames to the ranks that one CPU aggregates for. That CPU does all the work on them. */
struct pinch_flow {
	__u32 total;	 /* frames in its schedule */
	__u32 next;	 /* of these, to be sent next */
	__u32 in_flight; /* copies in flight */
	/* work requests that the process has posted, since the start: frames to retransmit, or to
	 * ask about */
	__u32 sq_tail;
	__u32 sq_head; /* of these, those that programs have taken */
	__u32 pad[11];
};

/* A frame to send, as the process has made it. */
struct pinch_frame {
	/* the payload's: the sum of its halves of words, each times the weight of its place
	 * (weights.h) */
	__u64 check;
	__u32 to;     /* ranks that need it, a bit each */
	__u32 ask;    /* of these, ranks to ask for an acknowledgement */
	__u16 length; /* of the payload, bytes */
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
	__u8 attempt; /* one more for each retransmission and each PINCH_ASK */
	__u16 pad;
};

/* What this rank knows of another rank's vertex. */
struct pinch_vertex {
	__u32 first; /* of its neighbours in `pinch_edges` */
	__u32 count; /* 0: it has none */
	__u32 hub;   /* its first slot in `pinch_hubs`, plus 1; 0: it has few neighbours */
	__u32 pad;
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

/* What this rank knows of another. */
struct pinch_peer {
	__u32 received; /* frames, in this sequence number */
	__u32 acked;	/* frames that it has acknowledged, in this sequence number */
	__u64 heard;	/* verified frames of any kind, since the start */
	__u64 news;	/* of these, frames that brought something new */
	__u32 answers;	/* acknowledgements, since the start */
	__u32 at;	/* seq that it has entered, by its latest handshake */
	__u32 waits;	/* ranks that it was waiting for, a bit each */
	__u32 pad;
	/* handshakes to it, of even and of odd sequence numbers; of this rank's own record, not
	 * used */
	__u64 ours[2];
	/* handshakes from it; of this rank's own record, that it has entered itself */
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
	PINCH_FANNED,	  /* kicks that a last handshake has become */
	PINCH_RECEIVED,
	PINCH_VERTICES, /* received that have neighbours here */
	PINCH_UNUSED,	/* received that have none */
	PINCH_EDGES,	/* added */
	PINCH_SLICES,	/* of hubs */
	PINCH_GAPS,	/* frames retransmitted because a later one was acknowledged */
	PINCH_REMOTE,	/* frames handed over to the CPU that aggregates */
	PINCH_SERIAL,	/* frames put on this CPU's stream */
	PINCH_COUNTERS,
};
