/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/mesh.c shares with Python, and the header of its messages. */
#pragma once

#include "rows_native_abi.h"

enum mesh_kind { MESH_REQUEST = 1, MESH_ROWS, MESH_NOTE };
enum mesh_step { MESH_REQUESTING, MESH_MOVING, MESH_DONE };
enum mesh_outcome {
	MESH_FINE,
	MESH_GONE,
	MESH_SILENT,
	MESH_FOREIGN,
	MESH_UNKNOWN_VERTEX,
	MESH_NOTED,
	MESH_WAITING, /* only in notes */
};

/* Precedes each message, in host byte order, because all ranks run on one machine. */
struct mesh_header {
	__u16 kind;	/* enum mesh_kind */
	__u16 tag;	/* of the rows' format, which must be the same on all ranks */
	__u32 exchange; /* number of the exchange, from 1; in a note: an outcome */
	__u64 bytes; /* bytes that follow; in a note, which is only a header: the rank at fault */
};

/* One direction of a connection. */
struct mesh_flow {
	__u32 step;    /* enum mesh_step */
	__u32 blocked; /* the socket accepted less than it was given */
	__u64 done;    /* bytes of the step's message, its header included */
	struct mesh_header header;
};

struct mesh_peer {
	__s32 fd; /* blocking, with SO_RCVTIMEO */
	__u32 pad;
	__u64 needed; /* rows to receive */
	/* where the message of rows is stored: rows, their steps, and the largest magnitude that
	 * any of them is made of, as the bits of a float */
	char *into;
	const __s64 *requests; /* pull: numbers of the vertices of these rows */
	__u64 serves;	       /* rows to send */
	/* their positions; pull: room for the peer's numbers, which become positions
	 */
	__s64 *rows;
	char *chunk;	/* room for chunk_rows rows */
	__u64 gathered; /* bytes of rows gathered so far */
	float *steps;	/* room for the steps of all rows, and the largest magnitude */
	struct mesh_flow out, in;
};

struct mesh {
	__u32 peers;
	__u32 pull;
	__u32 exchange;
	__u32 absmax; /* output: the largest magnitude of what this rank has sent, likewise */
	__s32 timeout_ms;
	__u32 failed; /* output: the peer to which an outcome other than MESH_FINE refers */
	struct row_source source;
	__u32 stepped;		/* rows have steps */
	__u32 tag;		/* of the rows' format */
	__u64 chunk_rows;	/* rows gathered at once */
	const __s32 *positions; /* pull: by vertex; -1: not this rank's */
	__s64 vertices;		/* entries in `positions` */
	__u64 send_ns;		/* time spent gathering and sending, cumulative */
	struct mesh_peer *peer;
};
