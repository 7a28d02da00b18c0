/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the ring's programs share with the process of their host: sizes, maps' elements, counters. */
#pragma once

#include "drop_abi.h"
#include "wire_abi.h"

enum ring_size {
	RING_BLOCK = 64,	/* bytes; payloads are whole blocks, so that loops have few tests */
	RING_MAX_BLOCKS = 53,	/* 3,392 bytes: what fits the largest MTU of single-buffer XDP on veth */
	RING_ORDERS = 1024,	/* orders that may wait to be taken; a power of two */
	RING_FAN_SMALL = 8,	/* frames that one bell can become */
	RING_FAN_LARGE = 32,
	RING_PARKING = 256,	/* frames that may wait for the local gradient */
	RING_PARKING_TRIES = 4, /* slots that a chunk may wait in */
	RING_ASKS = 64,		/* requests that a CPU may have to send; a power of two */
	RING_LOSSY_FOR = 256,	/* collectives for which partial sums are kept after a sign of loss */
};

/* Set before the program is loaded, so that the verifier knows them. */
struct ring_config {
	__u64 cookie;
	__u32 rank;
	__u32 ranks;
	__u32 group;
	__u32 chunk_bytes; /* payload of a frame, a multiple of RING_BLOCK; a tensor that is smaller sends less */
	__u32 chunks;	   /* capacity of the maps */
	__u32 kept;	   /* slots for partial sums that have been sent; a power of two */
	__u32 upstream;	   /* who lacks a frame asks: 0 the chunk's owner, 1 the rank before */
	__u32 gap;	   /* later frames of the same lane that must have come before a missing one is asked for; 0: only the timer asks */
	__u32 uplink;	   /* ifindex */
	__u32 cpus;	   /* that orders are spread over */
	struct net_peer peers[RING_MAX_RANKS];
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
	__u32 holdoff_us; /* between two requests for a frame, the first time, then twice as long each time; owners ignore what comes sooner */
	__u32 settled;	/* generation of which the process has verified all results */
	__u32 front;	/* first chunk whose result is missing, as far as the process has looked */
	__u32 pad0[5];
	__u64 next; /* generation << 32 | next slot to launch; slot s is chunk rank + ranks * s */
	__u64 flushed; /* lanes, a bit each, whose answers to probes have come from the rank before */
	__u32 stored; /* results of this generation */
	__u32 taken;  /* orders taken since the start */
	__u32 lossy;  /* generation in which this rank last saw a sign of loss; 0: it has not */
	__u32 pad1[9];
};

/* What a chunk's result is here. A generation's states come in this order, and begin anew with each round. */
enum ring_result_state {
	RING_RESULT_NONE,
	RING_RESULT_CLAIMED, /* a CPU writes it */
	RING_RESULT_DONE,
	RING_RESULT_REFUSED, /* the process has found that it is not what its check says */
	RING_RESULT_VERIFIED, /* the process has found that it is: it stays as it is, and is good for whoever lacks it, in whichever round */
};

/* The words `reduced` and `result` change by compare-and-exchange, and only ever forward: whoever was held up finds nothing to change. */
struct ring_chunk {
	__u64 input_sum; /* of the words in `input`, by the process */
	__u64 result_sum;
	__u64 reduced; /* generation << 32 | round: this rank's input is in the partial sum that it has sent */
	__u64 result;  /* generation << 32 | round << 8 | enum ring_result_state */
	__u32 before[2]; /* by stage: what was sent on the lane before this chunk's frame was sent first */
	__u32 lost[2];	 /* by stage: generation in which the frame to this rank is known to be lost */
	__u32 asked_us;	 /* when this rank last asked for a frame about it, or found that one is lost; low 32 bits */
	__u32 resent_us; /* when this rank last sent a frame about it again; 0: not */
	__u32 attempt;	 /* of the latest frame about it that was sent */
	__u32 pad;
};

/* A partial sum that was sent, for the rank behind, which may lack it. */
struct ring_kept {
	__u64 owner; /* generation << 32 | chunk: whose the slot is */
	__u64 valid; /* the same once the data is all there; 0 until then */
	__u64 sum;   /* of the data's words */
	__u32 round;
	__u32 pad;
};

/* One CPU's frames to the rank behind, which come there in this order. No other CPU writes it. */
struct ring_lane {
	__u32 generation;
	__u32 prev;	/* latest frame that was sent the first time, as `prev` of a frame has it */
	__u64 progress; /* frames that have brought something new, since the start */
	__u32 heard[RING_MAX_RANKS]; /* frames from each rank, since the start */
	__u32 pad[12];
};

/* What another rank has said of itself last. */
struct ring_rank {
	__u32 generation;
	__u32 settled; /* generation */
	__u32 told;    /* generation: it knows that this rank has settled that */
	__u32 front;
};

/* What the process wants sent. One bell is multiplied, and each of its frames takes an order. */
enum ring_order_kind {
	RING_ORDER_LAUNCH = 1, /* chunk `chunk` on its first lap, if it is not on it yet */
	RING_ORDER_REPLAY,	  /* the frame parked in slot `chunk` */
	RING_ORDER_REQUEST,	  /* ask for the frame about chunk `chunk` that is missing */
	RING_ORDER_RESTART,	  /* the result of `chunk` was refused in round `extra`: have lap one begin anew */
	RING_ORDER_PROBE,	  /* ask whether rank `chunk` is there; on CPU `extra` if there is one, the `attempt`th time */
};

struct ring_order {
	__u32 kind;
	__u32 generation;
	__u32 chunk;
	__u16 attempt;
	__u16 extra;
};

enum ring_order_extra {
	RING_ANYWHERE = 0xffff, /* of a probe: on whichever CPU takes the order */
};

/* A frame that is missing, as `prev` named it. */
struct ring_ask {
	__u32 generation;
	__u32 item;
	__u32 due_frame; /* to be asked for when so many frames have come */
	__u32 due_us;	 /* and not before this time */
	__u32 tries;
	__u32 pad;
};

/* First in, first out: from `taken` on a frame is under way for each that will ask for it, from `carried` on they wait. */
struct ring_queue {
	__u32 taken;
	__u32 carried;
	__u32 given;
	__u32 pad;
	struct ring_ask asks[RING_ASKS];
};

/* What the programs want to ask for, on one CPU. */
struct ring_asks {
	__u32 frames; /* that have come */
	__u32 pad;
	struct ring_queue fresh;
	struct ring_queue again; /* asked for before: the request or the answer may be lost, too */
};

enum ring_parked_state { RING_PARKING_FREE, RING_PARKING_FILLING, RING_PARKING_PARKED, RING_PARKING_REPLAYING };

struct ring_parked {
	__u32 state;
	__u32 generation;
	__u32 chunk;
	__u16 attempt;
	__u8 hop;
	__u8 round;
	__u16 length;
	__u16 tag;
	__u32 pad;
	__u64 sum; /* of the data's words */
};

/* The first are enum drop_reason. */
enum ring_counter {
	RING_SENT = DROP_REASONS, /* frames put on the wire */
	RING_SENT_BYTES, /* their bytes from the Ethernet header on */
	RING_RESENT,	 /* of these, chunks sent again, and requests */
	RING_STORED,
	RING_ANSWERED,	 /* results sent again */
	RING_PARKED,
	RING_SPREAD,	 /* orders handed to another CPU */
	RING_LOST,	 /* frames that later ones of their lane have overtaken */
	RING_RESTARTED,	 /* laps that began anew */
	RING_UNKEPT,	 /* partial sums for which there was no slot */
	RING_COUNTERS,
};
