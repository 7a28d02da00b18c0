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
	/* all-gather: the complete sum; the last hop is to the rank two before the owner */
	RING_RESULT = 2,
	RING_NACK = 3, /* the sender lacks a frame of this chunk */
	/* is the receiver up? seq = what the sender has entered, chunk = its first missing result
	 */
	RING_PROBE = 4,
	/* the answer, with the same fields; in one to the rank after, `prev` is the stream's last
	   frame */
	RING_ALIVE = 5,
	RING_DOORBELL = 16, /* the process has posted work requests */
};

/* Both protocols share the byte, so the numbers differ from the ring's. */
enum pinch_kind {
	/* embeddings; chunk = the sender's number of the frame, prev = its number in the stream */
	PINCH_EMBED = 6,
	/* a bitmap of frames around `chunk`; stream and prev are those of the frame it answers */
	PINCH_ACK = 7,
	/* handshake: the sender has entered an exchange; the payload is one word */
	PINCH_HANDSHAKE = 8,
	PINCH_ASK = 9,	     /* has frame `chunk` arrived? stream and prev as in PINCH_EMBED */
	PINCH_DOORBELL = 17, /* there are frames to send */
	PINCH_WORK = 18,     /* there are hubs to continue with */
	PINCH_SEND_HANDSHAKES = 19, /* there are handshakes to send */
};

/* Doorbell frames (kinds from RING_DOORBELL on) never leave their host: its process or its own
 * programs make them, and `receiver` is its rank. Only these header fields are meaningful in them:
 *
 * RING_DOORBELL: flags (RING_FLAG_SPREAD). When a work request for a probe moves to another CPU,
 * the frame becomes a RING_PROBE whose chunk and attempt are those of the work request.
 * PINCH_DOORBELL with sender == receiver, a kick: stream = the CPU that is to send its flow; with
 * PINCH_FLAG_ALL there is one kick for each flow, and the program at the far end fills in `stream`.
 * PINCH_DOORBELL with another sender: it was that rank's PINCH_ACK, and keeps its seq, chunk,
 * stream and prev. PINCH_SEND_HANDSHAKES: attempt = 0 for the first handshake of an exchange, else
 * how often it has been repeated. PINCH_WORK: none.
 */

enum ring_flag {
	RING_FLAG_RESULT = 1, /* nack: the result is missing, not the partial sum */
	RING_FLAG_SPREAD = 2, /* doorbell: there is work for more than one CPU */
	/* probe, answer: the sender's process has verified all results of `seq` */
	RING_FLAG_VERIFIED = 4,
	RING_FLAG_RESTART = 8, /* nack: start the chunk's reduce-scatter phase over */
	/* answer: the sender knows that the receiver has verified all results of the number in
	   `tag` */
	RING_FLAG_VERIFIED_ACK = 16,
	RING_FLAG_EARLIER = 32, /* `prev` belongs to the sequence number before */
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

/* One flat struct: veth aligns frames to 64 bytes, and clang sees only in a flat struct that
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
	__u32 chunk;
	__u64 checksum; /* the payload's sum plus the header's seal */
	/* CPU that sent the frame, or is to (kick); frames of one stream stay in order */
	__u8 stream;
	/* RING_REDUCE: ranks whose sum this is; RING_RESULT: hops of the all-gather phase */
	__u8 hop;
	__u8 sender; /* ranks; the IP addresses must match them */
	__u8 receiver;
	__u8 flags;   /* enum ring_flag, enum pinch_flag */
	__u8 round;   /* how often the reduce-scatter phase of the chunk has been started over */
	__u16 length; /* length of the payload in bytes, a multiple of 64 */
	/* tag of the tensor, because ranks must not add up different ones; VERIFIED_ACK: the lower
	 * half of the number acknowledged */
	__u16 tag;
	__u16 attempt; /* 0, then one more for each retransmission */
	/* the frame before it on its stream, to the same rank; nack: the round of the sender's
	 * partial sum */
	__u32 prev;
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct ring_frame) == 88, "14 of Ethernet, 20 of IPv4, 8 of UDP, 46 of ours");
_Static_assert(__builtin_offsetof(struct ring_frame, cookie) % 8 == 0, "one load");
_Static_assert(__builtin_offsetof(struct ring_frame, checksum) % 8 == 0, "one load");
