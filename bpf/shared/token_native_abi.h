/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/tokens.c shares with Python: the process's side of an exchange by tokens.
 * Programs do not use it. */
#pragma once

#include "rows_native_abi.h"
#include "token_abi.h"

/* The result of tokens_wait. */
enum tokens_waited {
	TOKENS_TIME_UP,
	TOKENS_COMPLETE, /* everything has landed, and is intact */
	TOKENS_DAMAGED,	 /* some of what had landed was damaged, and has to be asked for */
	TOKENS_DIFFER,	 /* `failed` sends other rows than this rank expects */
	TOKENS_OVER,	 /* there will be no more exchanges */
};

/* What goes to a partner, and comes from it. */
struct token_partner {
	__u32 rank;
	__u32 first_row;   /* of its rows among this rank's halo rows */
	__u64 rows_out;	   /* number of rows for it */
	const __s64 *rows; /* their positions */
	__u64 rows_in;	   /* number of rows that it sends */
	__s64 *marked;	   /* positions of those that a message with marks has */
	__u64 count;	   /* number of rows in this exchange's message */
	__u64 bytes;	   /* of the message */
	__u64 packed;	   /* rows packed so far */
	__u32 flags_out;   /* enum pinch_flag, of these */
	__u32 flags_in;	   /* enum pinch_flag, of what has arrived */
	__u32 like;	   /* the first partner that gets the same rows */
	float step;	   /* of the message, if its rows have one in common */
	float needed;	   /* the least that is possible */
	__u32 final;	   /* it has been packed with the right one */
	__u32 tokens;	   /* frames of this exchange's message that return */
	__u32 pad;
};

/* Rows that have hardly changed are not sent again: what a rank remembers of those it has sent, by
 * position, and of those that it has received, by halo row. A message then begins with marks, a bit
 * for each row, in whole words: whether it has that row. */
struct token_cache {
	__u32 marks; /* whether messages have them */
	__u32 staleness;
	float bound;
	const __s64 *positions; /* of the rows that any partner gets */
	__u64 rows;		/* number of them */
	float *last;		/* as they were last sent; NaN: never yet */
	__u32 *age;		/* exchanges since then */
	__u8 *changed;		/* whether they are sent in this exchange */
	__u8 *large;		/* whether they have magnitudes of 2^LARGE or more */
	__u64 larges;		/* number of these */
	char *store;		/* rows as they have last been received; their steps are `steps` */
	__u64 lookups, hits;	/* of rows: all, and those that were not sent */
	__u64 saved;		/* rows not sent, for each partner */
};

struct tokens {
	struct token_control *control;
	struct token_out *outs;
	struct token_slot *slots;
	struct token_peer *peers;
	char *payloads, *landing;
	__u64 *order; /* frames in the order in which they are sent, of each parity */
	__u64 *consumer;
	const __u64 *producer;
	const struct token_config *config;
	struct token_partner *partners;
	const __u32 *partner_of; /* by frame */
	float *steps;  /* of this rank's halo rows; of each rank's, if they have one in common */
	__u32 stepped; /* rows have steps */
	__u32 meeting; /* this exchange has no rows: it shows that all are there */
	struct row_source source;
	struct token_cache cache;
	__u32 seq;
	__u32 returned; /* tokens that had come back when time was up last */
	__u32 flags;	/* output: enum pinch_flag, of all that has arrived and all that was sent */
	__u32 failed;	/* output: a rank */
	__u32 nonfinite; /* output: ranks with such values, one bit each */
	__s32 link;	 /* a packet socket */
	__s32 doorbell;	 /* the doorbell's program; -1: frames are sent through `link` */
	__s32 adder;	 /* the program that adds */
	__s32 events;
	__u64 sent, sent_bytes; /* frames of rows through `link` */
	__u64 quantize_ns, send_ns, wait_ns, take_ns;
};
