/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/parts.c shares with Python: ranks ask the owners of vertices for neighbours
 * and features, over connected TCP sockets. */
#pragma once

#include <linux/types.h>

enum parts_size {
	PARTS_MAGIC = 0x53545250, /* "PRTS" */
	PARTS_PEERS = 32,
	PARTS_FANOUT = 64,	  /* neighbours that are drawn of a vertex, at most */
	PARTS_VERTICES = 1 << 26, /* of a request, at most */
};

enum parts_kind {
	PARTS_SAMPLE = 1, /* neighbours: a byte for each vertex, how many; whole words; then all */
	PARTS_ROWS,	  /* features: a row for each vertex */
};

/* What is wrong with a peer. */
enum parts_outcome {
	PARTS_FINE,
	PARTS_GONE,    /* the connection is closed */
	PARTS_SILENT,  /* nothing has come for `timeout_ms` */
	PARTS_FOREIGN, /* it answers something else than what it was asked */
	PARTS_REFUSED, /* it does not own a vertex that it was asked about */
};

/* Followed by the numbers of vertices, 32 bits each. */
struct parts_request {
	__u32 magic;
	__u16 kind;
	__u16 fanout;
	__u64 count;
	__u64 key; /* of draws */
};

/* Followed by data, unless the request is refused. */
struct parts_reply {
	__u32 magic;
	__u32 status; /* PARTS_FINE or PARTS_REFUSED */
	__u64 bytes;
};

/* The part of a graph that a rank owns. */
struct part {
	const __s64 *indptr;
	const __s32 *indices; /* neighbours, by their numbers in the graph */
	const __s32 *rows;    /* by vertex of the graph: its row here; -1: another rank's */
	__u64 vertices;	      /* of the graph */
	const char *features;
	__u64 row_bytes;
};

/* Threads that answer, one for each connection. */
struct parts_server {
	struct part part;
	__u32 connections;
	__u32 pad;
	__s32 fds[PARTS_PEERS];
	__u64 threads[PARTS_PEERS];
	__u64 requests, bytes; /* answered */
};

/* What a peer is asked. */
struct parts_peer {
	__s32 fd;
	__u32 replied;	       /* whether its reply's header has come */
	const __s32 *vertices; /* what it is asked about */
	__u64 count;	       /* number of them; 0: it is not asked */
	char *into;	       /* where its reply goes */
	__u64 room;
	__u64 sent, received; /* bytes, headers included */
	struct parts_request request;
	struct parts_reply reply;
};

struct parts {
	__u32 peers;
	__u32 failed; /* output: index of a peer */
	__s32 timeout_ms;
	__u32 pad;
	struct parts_peer *peer;
	__u64 relays; /* calls in which any peer was asked */
	__u64 sent_bytes, received_bytes;
};
