/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/pinch.c shares with Python: the process's side of an exchange. Programs know
 * nothing of it. */
#pragma once

#include "pinch_abi.h"

/* How pinch_wait has ended. */
enum pinch_waited {
	PINCH_TIME_UP,
	PINCH_COMPLETE,
	PINCH_UNFIT, /* all ranks have entered, and payloads do not hold */
	PINCH_OVER,  /* there will be no more exchanges */
};

struct pinch_format {
	__u32 bytes; /* of a lane: 2 or 4 */
	__u32 dim;
	__u32 words;   /* of a vertex in a frame */
	__u32 parts;   /* frames that an embedding takes */
	__u32 rows;    /* vertices in a full frame */
	__u32 stride;  /* bytes from one payload to the next */
	__u32 maximum; /* accumulators hold maxima, not sums */
	__s32 limit;   /* largest magnitude of a lane */
};

/* One rank's end: its maps, its doorbell, and how time is spent. */
struct pinch {
	struct pinch_format format;
	struct pinch_control *control;
	char *payloads;
	struct pinch_frame *frames;
	const char *kicks;	    /* one a flow */
	const char *handshake_kick; /* has handshakes sent */
	struct pinch_peer *peers;
	struct pinch_flow *flows;
	const __u64 *frames_to; /* each rank */
	__u64 *seen, *acked, *hub_queue;
	struct pinch_sent *sent;
	__u64 *consumer;
	const __u64 *producer;
	__u32 kick_count, kick_length, handshake_kick_length;
	__u32 rank, ranks, flow_count;
	__u32 seen_words, acked_words, hub_places, sent_records;
	__s32 doorbell, events;
	__u64 quantize_ns, send_ns, wait_ns;
};
