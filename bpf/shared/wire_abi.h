/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What stands on the wire: Ethernet, IPv4, UDP, and the header of the ring and of exchanges.
 *
 * The header's fields are little endian, as the lanes in the payload are: every host of a testbed is the same machine, and a
 * 64-bit add on the payload must not swap bytes. UDP's checksum is 0 (RFC 768: none); the header's own covers payload and header end to end.
 */
#pragma once

#include "net_abi.h"

enum ring_value {
	RING_PORT = 17170,
	RING_MAGIC = 0x4152, /* "RA" as it stands on the wire */
	RING_VERSION = 2,
	RING_MAX_RANKS = 32,
	RING_MAX_GROUPS = 4096,
};

enum ring_kind {
	/* Between hosts. */
	RING_REDUCE = 1,  /* the reduce-scatter phase: a partial sum; hop = ranks that have added theirs */
	RING_RESULT = 2,  /* the all-gather phase: the whole sum; ends at the rank two before the chunk's owner */
	RING_NACK = 3, /* the sender lacks a frame about this chunk */
	RING_PROBE = 4,   /* is anybody there? sequence number = the one entered, chunk = the first whose result is missing */
	RING_ALIVE = 5,   /* yes; likewise. To the rank behind, `prev` is the latest frame that it was sent on this stream */
	/* From a host's own process to its own kernel, over the doorbell only: there are work requests to take. */
	RING_DOORBELL = 16,
};

/* The kinds of an exchange; one byte, so numbers are unlike the ring's. */
enum pinch_kind {
	PINCH_EMBED = 6, /* embeddings of vertices; chunk = the sender's number of the frame, prev = of all that it has sent on the stream */
	PINCH_ACK = 7,	 /* frames around `chunk` that the sender has, as bitmap words; stream and prev are those of the frame that asked */
	PINCH_HELLO = 8, /* the sender has entered an exchange; what it brings is a word */
	PINCH_ASK = 9,	 /* has frame `chunk` come? stream and prev as PINCH_EMBED has them */
	/* Over the doorbell only. */
	PINCH_DOORBELL = 17,  /* there are frames to send */
	PINCH_WORK = 18,  /* there are vertices with many neighbours to go on with */
	PINCH_GREET = 19, /* there are ranks to say hello to */
};

enum ring_flag {
	RING_FLAG_RESULT = 1,	/* of a request: what is missing is the result, not the partial sum */
	RING_FLAG_SPREAD = 2,	/* of a kick: its frames are worth more than one CPU */
	RING_FLAG_VERIFIED = 4,	/* of a probe and its answer: the sender's process has verified all results of this sequence number */
	RING_FLAG_RESTART = 8,	/* of a request: nobody keeps the partial sum, or the result was refused; the reduce-scatter phase has to start over */
	RING_FLAG_VERIFIED_ACK = 16,	/* of an answer: the sender knows that the receiver has verified all results */
	RING_FLAG_EARLIER = 32, /* `prev` is of the sequence number before */
};

/* Of `prev`: a bit that tells RING_RESULT from RING_REDUCE (enum ring_stage), then 8 bits of the round, then the chunk. */
enum ring_item {
	RING_STAGE_BIT = 1,
	RING_ROUND_SHIFT = 1,
	RING_CHUNK_SHIFT = 9,
	RING_MAX_CHUNKS = (1 << (32 - RING_CHUNK_SHIFT)) - 1,
};

enum ring_prev {
	RING_NOTHING = 0xffffffff, /* nothing of this sequence number was sent on the stream before */
};

/* What a frame with data is about; as `prev` of a frame has it. */
enum ring_stage { RING_STAGE_PARTIAL, RING_STAGE_RESULT };

/* One struct for the whole frame, not a nested one for the header: only so does clang see that veth's 64-byte boundary makes
 * `cookie` and `checksum` aligned, and loads them in one instruction instead of byte by byte.
 */
struct ring_frame {
	struct net_eth eth;
	struct net_ipv4 ip;
	struct net_udp udp;
	/* The header of both protocols, 46 bytes. */
	__u16 magic;
	__u8 version;
	__u8 kind;	  /* enum ring_kind, enum pinch_kind */
	__u16 group;	  /* index of the group on its hosts */
	__u64 cookie;	  /* random, agreed when the group forms; keeps other sessions' frames out */
	__u32 seq; /* number of the collective in the group, from 1 */
	__u32 chunk;
	__u64 checksum; /* of the payload, and the seal of the header */
	__u8 stream;	/* CPU of the sender that sent it: frames of a stream do not overtake each other */
	__u8 hop;	/* RING_REDUCE: ranks whose sum this is; RING_RESULT: hops of the all-gather phase */
	__u8 sender;	/* ranks, which the addresses must agree with */
	__u8 receiver;
	__u8 flags;   /* enum ring_flag, enum pinch_flag */
	__u8 round;   /* how often the reduce-scatter phase of the chunk has been started over */
	__u16 length; /* of the payload, bytes; a multiple of 64 */
	__u16 tag;    /* of the tensor: ranks that reduce different ones must not add up */
	__u16 attempt; /* 0, then 1 more for each time that it is sent again */
	__u32 prev;   /* what the sender sent before it on the same stream, to the same rank; of a request: the round of its partial sum */
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct ring_frame) == 88, "14 of Ethernet, 20 of IPv4, 8 of UDP, 46 of ours");
_Static_assert(__builtin_offsetof(struct ring_frame, cookie) % 8 == 0, "one load");
_Static_assert(__builtin_offsetof(struct ring_frame, checksum) % 8 == 0, "one load");
