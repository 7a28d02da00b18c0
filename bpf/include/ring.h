/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the ring's programs share with the process of their host: constants, maps, counters.
 * Twin: testbed/collectives/ring_maps.py, checked against this object's BTF by tests/collectives/test_ring_maps.py.
 */
#pragma once

#include "wire.h"

#ifndef barrier
#define barrier() asm volatile("" ::: "memory")
#endif

#define RING_MAX_RANKS 32
#define RING_MAX_GROUPS 4096
#define RING_BLOCK 64		/* bytes; payloads are whole blocks, so that loops have few tests */
#define RING_MAX_BLOCKS 53	/* 3,392 bytes: what fits the largest MTU of single-buffer XDP on veth */
#define RING_ORDERS 1024	/* orders that may wait to be taken; a power of two */
#define RING_FAN_SMALL 8	/* frames that one bell can become */
#define RING_FAN_LARGE 32
#define RING_PARKING 256	/* frames that may wait for the local gradient */
#define RING_PARKING_TRIES 4	/* slots that a chunk may wait in */
#define RING_ASKS 32		/* chunks that a CPU may have to ask for; a power of two */

struct ring_peer {
	__u8 mac[ETH_ALEN];
	__u16 ip_sum; /* one's complement sum of the IPv4 header to this peer, without total length */
	__be32 ip;
};

/* Set before the program is loaded, so that the verifier knows them. */
struct ring_config {
	__u64 cookie;
	__u32 rank;
	__u32 ranks;
	__u32 group;
	__u32 chunk_bytes; /* payload of a frame, a multiple of RING_BLOCK; a tensor that is smaller sends less */
	__u32 chunks;	   /* capacity of the maps */
	__u32 upstream;	   /* who lacks a chunk asks: 0 its owner, 1 the rank before */
	__u32 gap;	   /* slots by which a result may be late before it is asked for; 0: only the timer asks */
	__u32 uplink;	   /* ifindex */
	__u32 cpus;	   /* that orders are spread over */
	struct ring_peer peers[RING_MAX_RANKS];
};

struct ring_tensor {
	__u32 total;  /* chunks */
	__u16 length; /* payload of a frame, bytes */
	__u16 tag;
};

/* One cache line that the process writes, one that the kernel writes. */
struct ring_control {
	__u64 progress; /* generation << 32 | chunks whose input is ready */
	struct ring_tensor tensors[2]; /* of even and odd generations; set before `progress` names the generation */
	__u32 wake_at;	/* wake the process when so many results are stored */
	__u32 ordered;	/* orders given since the start */
	__u32 quench_us; /* requests for a chunk that was sent or asked for less than this ago are ignored; 0: none is */
	__u32 settled;	/* generation of which the process has found all results that it needs to be what their checks say */
	__u32 pad0[6];
	__u64 next; /* generation << 32 | next slot to launch; slot s is chunk rank + ranks * s */
	__u32 stored; /* results of this generation */
	__u32 taken;  /* orders taken since the start */
	__u32 rtt_samples; /* of own chunks sent once, from launch to result (RFC 6298, Karn's rule), all since the start */
	__u32 rtt_max_us;
	__u64 rtt_sum_us;
	__u32 pad1[8];
};

struct ring_chunk {
	__u64 input_sum; /* of the words in `input`, by the process */
	__u64 result_sum;
	__u32 claimed; /* generation that a CPU has begun to store */
	__u32 done;    /* generation stored; 0: none; ~generation: its result has been refused */
	__u32 sent_us; /* when this rank last sent it as its owner, or asked for it, low 32 bits; 0: not since it is stored */
	__u32 attempt; /* of that */
};

/* How far the results of an owner have come without a hole: all before `slot`, and perhaps more. A hint, written without locks. */
struct ring_front {
	__u32 generation;
	__u32 slot;
};

/* What the process wants sent. One bell is multiplied, and each of its frames takes an order. */
enum ring_order_kind {
	ORDER_LAUNCH = 1, /* chunk `chunk` on its first lap */
	ORDER_REPLAY,	  /* the frame parked in slot `chunk` */
	ORDER_REQUEST,	  /* ask for chunk `chunk` */
	ORDER_PROBE,	  /* ask whether rank `chunk` is there */
};

struct ring_order {
	__u32 kind;
	__u32 generation;
	__u32 chunk;
	__u32 attempt; /* of a launch or probe */
};

/* What the programs want sent, on one CPU: given while frames are received, taken by frames that this very CPU receives next. */
struct ring_asks {
	__u32 given;
	__u32 taken;
	__u32 carried; /* for so many of those given a frame is under way that takes one */
	__u32 pad;
	struct ring_order orders[RING_ASKS];
};

enum ring_parked_state { PARKING_FREE, PARKING_FILLING, PARKING_PARKED, PARKING_REPLAYING };

struct ring_parked {
	__u32 state;
	__u32 generation;
	__u32 chunk;
	__u8 attempt;
	__u8 hop;
	__u16 length;
	__u16 tag;
	__u16 reserved[3];
	__u64 checksum;
};

enum ring_counter {
	RING_SENT,	      /* frames put on the wire */
	RING_SENT_BYTES,      /* their bytes from the Ethernet header on */
	RING_RESENT,	      /* of these, chunks sent anew and requests */
	RING_STORED,
	RING_ANSWERED,	      /* first-lap frames answered from a result */
	RING_DUPLICATE,	      /* second-lap frames whose result was there, and frames that are parked already */
	RING_PARKED,
	RING_BAD_COOKIE,
	RING_BAD_GENERATION,  /* too old or too new to be of use */
	RING_BAD_CHUNK,	      /* beyond the tensor */
	RING_BAD_LENGTH,
	RING_BAD_TENSOR,      /* another rank reduces another tensor */
	RING_BAD_RANK,	      /* a hop or rank that cannot be, or a sender that is no neighbour */
	RING_BAD_KIND,
	RING_BAD_CHECKSUM,
	RING_PARKING_FULL,
	RING_SPREAD,	      /* orders handed to another CPU */
	RING_GAPS,	      /* results that later ones have overtaken, asked for without the process */
	RING_OVERTAKEN,	      /* the state changed while a frame was worked on; the frame was dropped */
	RING_COUNTERS,
};
