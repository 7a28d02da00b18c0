/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The wire format: Ethernet, IPv4, UDP, and the header that the ring and PINCH share.
 *
 * The header's fields are little endian, as the lanes in the payload are: every host of a testbed
 * is the same machine, and a 64-bit add on the payload must not swap bytes. UDP's checksum is 0
 * (RFC 768: none); the header's own covers payload and header end to end.
 */
#pragma once

#include "net_abi.h"

enum ring_value {
	RING_PORT = 17170,
	RING_MAGIC = 0x4152, /* "RA" on the wire */
	RING_VERSION = 2,
	RING_MAX_RANKS = 32,
	RING_MAX_GROUPS = 4096,
};

/* Frames between hosts carry kinds below RING_DOORBELL. */
enum ring_kind {
	/* reduce-scatter: a partial sum; hop = number of ranks that have added their input */
	RING_REDUCE = 1,
	/* all-gather: the complete sum; the last hop is to the rank two places before the owner */
	RING_RESULT = 2,
	RING_NACK = 3,	    /* the sender lacks a frame of this chunk */
	RING_PROBE = 4,	    /* is the receiver up? `seq` is what the sender has entered */
	RING_ALIVE = 5,	    /* the answer, with the same fields */
	RING_DOORBELL = 16, /* the process has posted work requests */
};

/* Both protocols share the byte, so the numbers differ from the ring's. */
enum pinch_kind {
	PINCH_EMBED = 6, /* embeddings */
	/* a bitmap of frames around the one that it answers, whose number, stream and serial it
	 * repeats */
	PINCH_ACK = 7,
	/* handshake: the sender has entered an exchange; the payload is one word */
	PINCH_HANDSHAKE = 8,
	PINCH_ASK = 9,		    /* has frame `number` arrived? */
	PINCH_DOORBELL = 17,	    /* there are frames to send */
	PINCH_WORK = 18,	    /* there are hubs to continue with */
	PINCH_SEND_HANDSHAKES = 19, /* there are handshakes to send */
};

/* Doorbell frames (kinds from RING_DOORBELL on) never leave their host: its process or its own
 * programs make them, and `receiver` is its rank. Only these header fields are meaningful in them:
 *
 * RING_DOORBELL: flags (RING_FLAG_SPREAD). When a work request for a probe moves to another CPU,
 * the frame becomes a RING_PROBE with the work request's `target` and `attempt`.
 * PINCH_DOORBELL with sender == receiver, a kick: `flow`; with PINCH_FLAG_ALL there is one kick for
 * each flow, and the program at the far end fills it in. PINCH_DOORBELL with another sender: it was
 * that rank's PINCH_ACK, and keeps its seq, number, stream and serial. PINCH_SEND_HANDSHAKES:
 * attempt = 0 for the first handshake of an exchange, else how often it has been repeated.
 * PINCH_WORK: none.
 */

enum ring_flag {
	RING_FLAG_RESULT = 1, /* nack: the result is missing, not the partial sum */
	RING_FLAG_SPREAD = 2, /* doorbell: there is work for more than one CPU */
	/* probe, answer: the sender's process has verified all results of `seq` */
	RING_FLAG_VERIFIED = 4,
	RING_FLAG_RESTART = 8, /* nack: start the chunk's reduce-scatter phase over */
	/* answer: the sender knows that the receiver has verified all results of the number
	 * `acked` */
	RING_FLAG_VERIFIED_ACK = 16,
	RING_FLAG_EARLIER = 32, /* `prev` belongs to the sequence number before */
	/* probe, answer: the sender has given up, for a `reason`, and because of ranks that are
	 * `blamed` */
	RING_FLAG_ENDED = 64,
	/* partial sum, result: sent again, because a nack has asked for it. A missing frame that
	 * arrives without this flag was late, not lost. */
	RING_FLAG_AGAIN = 128,
};

/* Why a rank has given up. */
enum ring_reason {
	RING_REASON_NONE,
	RING_REASON_SILENT,  /* nothing is heard of some ranks */
	RING_REASON_ABSENT,  /* some ranks are up, but not in the collective */
	RING_REASON_TENSORS, /* the ranks reduce different tensors */
	RING_REASON_STUCK,   /* all ranks are up, and nothing moves */
	RING_REASON_DAMAGED, /* results are not what their checks say, again and again */
};

/* `prev` from the lowest bit up: enum ring_stage, 8 bits of the round, the chunk. */
enum ring_item {
	RING_STAGE_BIT = 1,
	RING_ROUND_SHIFT = 1,
	RING_CHUNK_SHIFT = 9,
	RING_MAX_CHUNKS = (1 << (32 - RING_CHUNK_SHIFT)) - 1,
};

enum ring_prev {
	RING_NOTHING = 0xffffffff, /* the first frame of the stream under this sequence number */
};

/* What a frame with data carries. */
enum ring_stage { RING_STAGE_PARTIAL, RING_STAGE_RESULT };

/* A union has a member for each thing that its bytes mean in frames of some kind.
 *
 * The struct is flat: veth aligns frames to 64 bytes, and clang sees only in a flat struct that
 * `cookie` and `checksum` are aligned. It then loads each in one instruction, not byte by byte.
 */
struct ring_frame {
	struct net_eth eth;
	struct net_ipv4 ip;
	struct net_udp udp;
	/* The header of both protocols, 46 bytes. */
	__u16 magic;
	__u8 version;
	__u8 kind;   /* enum ring_kind, enum pinch_kind */
	__u16 group; /* index of the group on its hosts */
	/* random, drawn when the group forms: distinguishes its frames from those of other sessions
	 */
	__u64 cookie;
	__u32 seq; /* sequence number of the collective in its group, from 1 */
	union {
		__u32 chunk;	 /* RING_REDUCE, RING_RESULT, RING_NACK */
		__u32 front;	 /* RING_PROBE, RING_ALIVE: the sender's first missing result */
		__u32 blamed;	 /* with RING_FLAG_ENDED: ranks, a bit each */
		__u32 target;	 /* RING_PROBE on its way to another CPU: the rank to probe */
		__u32 number;	 /* PINCH_EMBED, PINCH_ACK, PINCH_ASK: the sender's, of the frame */
		__u32 waits;	 /* PINCH_HANDSHAKE: ranks that the sender waits for, a bit each */
		__u32 nonfinite; /* with PINCH_ENDED: ranks with such values, a bit each */
	};
	__u64 checksum; /* the payload's sum plus the header's seal */
	union {
		__u8 stream; /* CPU that sent the frame; frames of one stream stay in order */
		__u8 flow;   /* PINCH_DOORBELL, a kick: the CPU that is to send its flow */
	};
	/* RING_REDUCE: ranks whose sum this is; RING_RESULT: hops of the all-gather phase;
	 * RING_NACK: 1 if the previous rank has passed it on to the chunk's owner */
	__u8 hop;
	__u8 sender; /* ranks; the IP addresses must match them */
	__u8 receiver;
	__u8 flags; /* enum ring_flag, enum pinch_flag */
	union {
		/* how often the reduce-scatter phase of the chunk has been started over */
		__u8 round;
		__u8 reason; /* with RING_FLAG_ENDED: enum ring_reason */
	};
	__u16 length; /* length of the payload in bytes, a multiple of 64 */
	union {
		__u16 tag;   /* of the tensor: ranks must not add up different ones */
		__u16 acked; /* with RING_FLAG_VERIFIED_ACK: lower half of a sequence number */
	};
	__u16 attempt; /* 0, then one more for each retransmission */
	union {
		/* RING_REDUCE, RING_RESULT: the frame before it on its stream, to the same rank;
		 * RING_ALIVE to the next rank: the stream's last frame; RING_NACK that was passed
		 * on: `prev` of the lost frame */
		__u32 prev;
		/* RING_NACK that was not passed on: round of the partial sum that the sender has
		 * sent */
		__u32 summed;
		__u32 serial;  /* PINCH_EMBED, PINCH_ACK, PINCH_ASK: the number in its stream */
		__u32 entered; /* PINCH_HANDSHAKE: sequence number that the sender has entered */
		/* with PINCH_FLAG_TOKEN: how many frames the sender has for the receiver */
		__u32 frames;
		__u32 gone; /* with PINCH_ENDED: ranks that went silent, a bit each */
		__u32 late; /* with PINCH_FLAG_LATE: ranks that are up but did not enter */
	};
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct ring_frame) == 88, "14 of Ethernet, 20 of IPv4, 8 of UDP, 46 of ours");
_Static_assert(__builtin_offsetof(struct ring_frame, cookie) % 8 == 0, "one load");
_Static_assert(__builtin_offsetof(struct ring_frame, checksum) % 8 == 0, "one load");
