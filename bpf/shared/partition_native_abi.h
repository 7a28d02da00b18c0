/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What testbed/native/partition.c shares with Python. */
#pragma once

#include <linux/types.h>

enum partition_size {
	PARTITION_MAX_PARTS = 1024,
	PARTITION_UNASSIGNED = 0xffff, /* a vertex without a master so far */
	PARTITION_HUB = 1000,	       /* a vertex of a higher degree is a hub */
};

/* Who owns an edge; see testbed/gnn/streaming/policies.py for the formulas. */
enum partition_owner {
	PARTITION_GIVEN, /* owners are there already */
	PARTITION_SOURCE,
	PARTITION_TARGET,
	PARTITION_HYBRID_OUT,
	PARTITION_HYBRID_IN,
	PARTITION_CARTESIAN,
	PARTITION_LOWER,
};

struct partition {
	__u32 parts;
	__u32 words;   /* 64-bit words of a vertex's row in held */
	__u32 columns; /* of the grid of parts (Cartesian) */
	__u32 hub;     /* degrees above are a hub's (hybrid) */
	const __u16 *masters;
	const __u32 *degrees; /* or NULL where owner does not look at them */
	__u64 *held;	      /* bit h of row v: part h holds vertex v */
};

/* What HDRF has seen of the stream. */
struct hdrf {
	__u32 parts;
	__u32 words;	/* as above */
	__u16 *masters; /* a vertex's becomes the owner of its first edge */
	__u64 *held;
	__u32 *degrees; /* so far */
	__u64 *sizes;	/* edges of each part so far */
};

/* Vertices first..last-1 of a round, which others assign the rest of at the same time. */
struct fennel {
	__u32 parts;
	__u32 hub;
	__u64 first;
	__u64 last;
	__u64 round_first;
	__u64 round_last;
	double weight;	     /* alpha gamma */
	double per_edge;     /* vertices per edge */
	const __s64 *indptr; /* of vertices first..last, into indices */
	const __u32 *indices;
	const __u64 *bounds; /* part h has first vertex bounds[h] by range */
	__u16 *masters;
	double *nodes; /* of each part; this call adds to them, and so to edges */
	double *edges;
	double *penalties; /* room for one per part */
	__u32 *neighbours; /* likewise, zeroed */
};

struct rmat {
	__u64 seed;
	__u32 scale;
	__u32 a; /* out of 65,536: an edge of a level goes to the first quadrant */
	__u32 ab;
	__u32 abc;
};
