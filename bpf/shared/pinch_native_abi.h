/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/pinch.c shares with Python: the process's side of an exchange. Programs do
 * not use it. */
#pragma once

#include "pinch_abi.h"

/* The result of pinch_wait. */
enum pinch_waited {
	PINCH_TIME_UP,
	PINCH_COMPLETE,
	PINCH_UNFIT, /* all ranks have entered, but payloads are not valid */
	PINCH_OVER,  /* there will be no more exchanges */
};

enum pinch_filling {
	PINCH_FILL = 64, /* frames, at least, that the process fills before it publishes them */
	PINCH_FEW = 16,	 /* frames that are filled before handshakes are sent: no kick follows */
	PINCH_FILLS = 4, /* times, about, that it publishes frames; a kick may follow each */
};

struct pinch_format {
	__u32 bytes; /* bytes of a lane: 2 or 4 */
	__u32 dim;
	__u32 words;   /* words of a vertex in a frame */
	__u32 parts;   /* frames that an embedding takes */
	__u32 rows;    /* vertices in a full frame */
	__u32 stride;  /* distance from one payload to the next, bytes */
	__u32 maximum; /* accumulators hold maxima, not sums */
	__s32 limit;   /* largest magnitude of a lane */
	__u32 plain;   /* rows are sent as they are, float32 */
	__u32 packed;  /* sums of 32-bit lanes have 32 bits; a target may have several */
};

/* The frames that have landed, and the rows that this rank needs of them. */
struct pinch_landings {
	const char *frames;  /* `pinch_landing` */
	const __u64 *landed; /* `pinch_landed` */
	const __u32 *first;  /* of each rank's rows, in `halo_of` */
	/* number of the halo row, by rank and position there; -1: not needed */
	const __s32 *halo_of;
	const float **rows; /* where each halo row is */
	float *matrix;	    /* room for all halo rows, if they travel in parts; or NULL */
	__u32 banks;
	__u32 slots; /* of a bank */
	__u32 stride;
	__u32 halo;
	__u64 redundant; /* rows that have landed but are not needed, cumulative */
};

/* One rank's process: its maps, its doorbell, and where its time goes. */
struct pinch {
	struct pinch_format format;
	struct pinch_control *control;
	char *payloads;
	struct pinch_frame *frames;
	const char *kicks;	    /* one kick per flow */
	const char *handshake_kick; /* the kick that makes the programs send handshakes */
	struct pinch_peer *peers;
	struct pinch_flow *flows;
	const __u64 *schedule;
	const __u64 *frames_to; /* number of frames, by rank */
	__u64 *seen, *acked, *hub_queue;
	__u64 *landed;
	__u32 banks, capacity;
	struct pinch_sent *sent;
	__u64 *consumer;
	const __u64 *producer;
	__u32 kick_count, kick_length, handshake_kick_length;
	__u32 rank, ranks, flow_count;
	__u32 seen_words, acked_words, hub_places, sent_records;
	__s32 doorbell, events;
	__u64 quantize_ns, send_ns, wait_ns;
};
