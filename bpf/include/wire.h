/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What stands on the wire: Ethernet, IPv4, UDP, and the ring's header. Twin: testbed/protocol/wire.py.
 *
 * The ring's fields are little endian, as the lanes in the payload are: every host of a testbed is the same machine, and a
 * 64-bit add on the payload must not swap bytes. UDP's checksum is 0 (RFC 768: none); the ring's own covers payload and header end to end.
 */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define RING_PORT 17170
#define RING_MAGIC 0x4152 /* "RA" as it stands on the wire */
#define RING_VERSION 2

enum ring_kind {
	/* Between hosts. */
	RING_REDUCE = 1,  /* lap one: a partial sum; hop = ranks that have added theirs */
	RING_RESULT = 2,  /* lap two: the whole sum; ends at the rank two before the chunk's owner */
	RING_REQUEST = 3, /* the sender lacks a frame about this chunk */
	RING_PROBE = 4,   /* is anybody there? generation = the one entered, chunk = the first whose result is missing */
	RING_ALIVE = 5,   /* yes; likewise. To the rank behind, `prev` is the latest frame that it was sent on this lane */
	PINCH_EMBED = 6,  /* embeddings of vertices; chunk = the sender's number of the frame, prev = of all that it has sent on the lane */
	PINCH_ACK = 7,    /* frames around `chunk` that the sender has, as bitmap words; lane and prev are those of the frame that asked */
	PINCH_HELLO = 8,  /* the sender has entered an exchange; what it brings is a word */
	PINCH_ASK = 9,    /* has frame `chunk` come? lane and prev as PINCH_EMBED has them */
	/* From a host's own process to its own kernel, over the doorbell only: there are orders to take. */
	RING_BELL = 16,
	PINCH_BELL = 17, /* there are frames to send */
	PINCH_WORK = 18, /* there are vertices with many neighbours to go on with */
	PINCH_GREET = 19, /* there are ranks to say hello to */
};

#define RING_FLAG_RESULT 1  /* of a request: what is missing is the result, not the partial sum */
#define RING_FLAG_SPREAD 2  /* of a bell: its frames are worth more than one CPU */
#define RING_FLAG_SETTLED 4 /* of a probe and its answer: the sender's process has verified all results of this generation */
#define RING_FLAG_TOLD 16   /* of an answer: the probe said that its sender has settled */
#define RING_FLAG_EARLIER 32 /* `prev` is of the generation before */
#define RING_FLAG_RESTART 8 /* of a request: nobody keeps the partial sum, or the result was refused; lap one has to begin anew */

#define RING_NOTHING 0xffffffff /* in `prev`: nothing of this generation was sent on the lane before */
#define RING_STAGE_BIT 1	/* of `prev`: RING_RESULT, not RING_REDUCE; then 8 bits of the round, then the chunk */
#define RING_ROUND_SHIFT 1
#define RING_CHUNK_SHIFT 9
#define RING_MAX_CHUNKS ((1 << (32 - RING_CHUNK_SHIFT)) - 1)

/* One struct for the whole frame, not a nested one for the header: only so does clang see that veth's 64-byte boundary makes
 * `cookie` and `checksum` aligned, and loads them in one instruction instead of byte by byte.
 */
struct ring_frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	/* The header of both protocols, 46 bytes. */
	__u16 magic;
	__u8 version;
	__u8 kind;	  /* enum ring_kind */
	__u16 group;	  /* index of the group on its hosts */
	__u64 cookie;	  /* random, agreed when the group forms; keeps other sessions' frames out */
	__u32 generation; /* number of the collective in the group, from 1 */
	__u32 chunk;
	__u64 checksum; /* of the payload, and the seal of the header */
	__u8 lane;	/* CPU of the sender that sent it: frames of a lane do not overtake each other */
	__u8 hop;	/* RING_REDUCE: ranks whose sum this is; RING_RESULT: hops of lap two */
	__u8 sender;	/* ranks, which the addresses must agree with */
	__u8 receiver;
	__u8 flags;
	__u8 round;   /* how often lap one of the chunk has begun anew */
	__u16 length; /* of the payload, bytes; a multiple of 64 */
	__u16 tag;    /* of the tensor: ranks that reduce different ones must not add up */
	__u16 attempt; /* 0, then 1 more for each time that it is sent again */
	__u32 prev;   /* what the sender sent before it on the same lane, to the same rank; of a request: the round of its partial sum */
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct ring_frame) == 88, "twin: testbed/protocol/wire.py");
_Static_assert(__builtin_offsetof(struct ring_frame, cookie) % 8 == 0, "one load");
_Static_assert(__builtin_offsetof(struct ring_frame, checksum) % 8 == 0, "one load");

/* Words of the header, which the seal mixes. */
#define SEAL_WORD(frame, field) (*(const __u64 *)((const void *)(frame) + __builtin_offsetof(struct ring_frame, field)))

/* What a checksum begins with, so that a frame adds up only as the one that its header says it is, from whom it says and for whom it says. It
 * covers every field of the header but the checksum; what lies below is compared with what it must be. For each word the mix is a bijection, so an
 * error within one word is always seen; other errors are missed once in 2^64. Multipliers: splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
 */
static __always_inline __u64 frame_seal(const struct ring_frame *frame)
{
	__u64 x = SEAL_WORD(frame, generation) * 0xbf58476d1ce4e5b9ull + SEAL_WORD(frame, lane);

	x = (x ^ x >> 30) * 0x94d049bb133111ebull + SEAL_WORD(frame, tag);
	x = (x ^ x >> 27) * 0x9e3779b97f4a7c15ull + frame->cookie + ((__u64)frame->kind << 16 | frame->group);
	return x ^ x >> 31;
}

/* The frame's headers when it is one of ours, else NULL. */
static __always_inline struct ring_frame *ring_parse(void *data, void *data_end)
{
	struct ring_frame *frame = data;

	if ((void *)(frame + 1) > data_end)
		return NULL;
	if (frame->eth.h_proto != bpf_htons(ETH_P_IP) || frame->ip.version != 4 || frame->ip.ihl != 5 ||
	    frame->ip.protocol != IPPROTO_UDP || frame->udp.dest != bpf_htons(RING_PORT) ||
	    frame->magic != RING_MAGIC)
		return NULL;
	return frame;
}
