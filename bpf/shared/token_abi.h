/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What bpf/tokens.bpf.c shares with the process of its host: an exchange in which rows land where
 * the process adds them up.
 *
 * A rank sends a message to each partner: rows of lanes and their steps (rows_native_abi.h), cut
 * into frames of `room` bytes; in each exchange as many as it needs. A partner is a rank that sends
 * to this one, or to which this one sends; where there is nothing to send, a frame without data
 * says so.
 *
 * A frame with PINCH_FLAG_RETURN goes back to its sender once it has landed, a token, which says
 * that `stride` frames are no longer in flight, and which the sender's program fills with the next
 * frame. What else the window of frames in flight lets pass is sent by the process: it rings the
 * doorbell, whose program fills empty frames, or sends frames itself. If tokens have to carry
 * everything, because the process does not ring, `stride` is 1.
 *
 * If the program adds (`parts`), it forms sums once all frames have landed, and lanes have a step
 * in common: include/token_add.h.
 *
 * What belongs to one exchange has two places, of even and of odd sequence numbers: nobody can be
 * two exchanges ahead of a partner, whose frame each exchange needs.
 */
#pragma once

#include "pinch_abi.h"

enum token_size {
	TOKEN_LINE = 64, /* `room` is a multiple of it */
	TOKEN_TRIES = 8, /* for a word that other CPUs change as well */
	/* Bytes of a frame that the kernel makes of one page: 4096 without what it keeps there, 256
	 * of headroom, 320 of struct skb_shared_info and at most 160 of struct xdp_page_head. */
	TOKEN_PAGE = 3360,
	TOKEN_WORDS = 16,      /* words of lanes that the program adds at once */
	TOKEN_BITS = 15,       /* of a lane that is added, in 16 */
	TOKEN_WIDE_BITS = 31,  /* of one in 32 */
	TOKEN_PART = 1024,     /* edges of a part, at most */
	TOKEN_SLICE = 4096,    /* edges that are added in one go, at most about this many */
	TOKEN_EPOCH = 1 << 30, /* exchanges after which unused slots move on, before claims wrap */
};

/* The lower half of a slot's word. */
enum token_claim { TOKEN_FREE, TOKEN_CLAIMED, TOKEN_LANDED };

/* A frame, up to its data. The checksum is the sum of the header's seal and of the data's check, so
 * that programs verify both without reading the data, which the process verifies. */
struct token_frame {
	struct ring_frame head;
	__u64 check; /* of the data (weights_abi.h) */
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct token_frame) == 96, "data begins behind it");

/* What travels between this rank and another. */
struct token_pair {
	__u32 slot;	  /* the first one for its frames */
	__u32 frames_in;  /* the most that it sends; 0: it is no partner */
	__u32 out;	  /* the first frame for it */
	__u32 frames_out; /* the most for it */
	__u32 step_slot;  /* where the step of its lanes lands, if they have one in common */
	__u32 step_at;	  /* at which byte there */
	__u32 stepped;	  /* whether there is one */
};

/* Set before the programs are loaded, so that the verifier knows them. */
struct token_config {
	__u64 cookie;
	__u32 rank;
	__u32 ranks;
	__u32 group;
	__u32 tag;	/* of the rows' format */
	__u32 room;	/* bytes of data that a frame has at most */
	__u32 slots;	/* of one exchange */
	__u32 outs;	/* frames that this rank sends in one exchange, at most */
	__u32 partners; /* number of them */
	__u32 largest;	/* bytes of data in the largest frame that it sends */
	__u32 link;	/* interface index */
	__u32 window;	/* frames in flight, at most */
	__u32 stride;	/* frames for each that returns */
	__u32 parts;	/* sums that the program forms; 0: the process adds */
	__u32 words;	/* of lanes in each of their summands */
	__u32 farthest; /* byte of a slot at which a summand may begin */
	__u32 wide;	/* lanes have 32 bits, not 16 */
	__u32 weighted; /* summands have weights */
	__u32 maximum;	/* the largest summand is meant, not the sum */
	struct token_pair pairs[RING_MAX_RANKS];
	struct net_peer peers[RING_MAX_RANKS];
};

/* Words that programs write in every exchange have cache lines of their own. */
struct token_control {
	__u32 open;    /* sequence number: frames of this one and of the next are accepted */
	__u32 entered; /* sequence number that the process has entered */
	__u32 waits;   /* ranks whose frames it lacks, one bit each */
	__u32 gone;    /* ranks that went silent, likewise: exchanges have ended */
	__u32 late;    /* ranks that are up but did not enter in time, likewise */
	__u32 ended;   /* whether this rank has given up */
	__u32 foreign; /* ranks that send rows of another format, one bit each */
	__u32 pad0[9];
	__u64 ready; /* seq << 32 | frames that may be sent */
	__u64 pad1[7];
	__u64 next; /* seq << 32 | frames that have been taken */
	__u64 pad2[7];
	__u64 returned; /* seq << 32 | tokens that have come back */
	__u32 stalled;	/* the process sleeps, and has frames to send: a token wakes it */
	__u32 pad4[13];
	__u32 complete[2]; /* partners whose frames have all landed */
	__u32 pad3[14];
	__u32 added; /* sums that have been formed */
	__u32 pad5[15];
};

/* A sum that the program forms: all that a vertex receives, or as much of it as fits, in as many
 * columns as are added at once. */
struct token_part {
	__u32 first; /* edge */
	__u32 count;
	__u32 start; /* what a sum of 16-bit lanes begins with, so that it never falls below 0 */
	__u32 plain; /* edges with a weight of 1, the first ones */
};

/* A summand: where its words land. */
struct token_edge {
	__u32 slot; /* of an exchange's */
	__u16 at;   /* word there */
	__u16 rank; /* the sender */
};

/* A frame to send; by number among all of this rank. */
struct token_out {
	__u64 check;
	__u32 seq; /* under which it is ready */
	__u32 receiver;
	__u32 number; /* among those for the receiver */
	__u32 frames; /* how many there are for it */
	__u32 bytes;  /* of its data */
	__u32 flags;
	__u32 acked;   /* sequence number whose token has come back */
	__u32 payload; /* where its data is: frames for several ranks may share it */
	__u32 token;   /* if it returns: the how manieth of the receiver's that does */
	__u32 pad;
};

/* Where a frame lands. */
struct token_slot {
	__u64 claim; /* seq << 32 | enum token_claim; only moves forward */
	__u64 check;
	__u32 bytes;
	__u32 flags;
};

/* What this rank knows about another: a cache line, since frames of two senders arrive on two
 * CPUs. */
struct token_peer {
	__u32 landed[2]; /* frames */
	__u32 frames[2]; /* how many there are; 0: none has landed */
	__u64 heard;	 /* verified frames of any kind, cumulative */
	__u64 news;	 /* of these, frames that have landed */
	__u64 tokens;	 /* seq << 32 | tokens that it has sent back */
	__u32 answers;	 /* of these, statuses */
	__u32 at;	 /* sequence number that it has entered, by its latest status */
	__u32 waits;	 /* ranks that it was waiting for then, one bit each */
	__u32 pad[3];
};

_Static_assert(sizeof(struct token_peer) == 64, "a cache line");

/* The first are enum drop_reason. */
enum token_counter {
	TOKEN_SENT = DROP_REASONS, /* frames of rows, by programs */
	TOKEN_SENT_BYTES,
	TOKEN_RESENT,	/* frames of rows that a partner has asked for */
	TOKEN_RECEIVED, /* frames that have landed */
	TOKEN_RETURNED, /* tokens sent back */
	TOKEN_STATUSES, /* answers to a partner that asks for what is not there yet */
	TOKEN_ENDS,	/* tokens that have come back when nothing was left to send */
	TOKEN_HELD,	/* empty frames at the doorbell that were not sent: the window was full */
	TOKEN_EDGES,	/* summands that have been added */
	TOKEN_SLICES,	/* runs of the program that adds */
	TOKEN_COUNTERS,
};
