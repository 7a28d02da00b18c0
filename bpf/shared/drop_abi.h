/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Why a program has done without a frame, in ring and exchange alike. Counters of either begin with
 * these. */
#pragma once

enum drop_reason {
	DROP_DUPLICATE,	   /* it brings nothing new */
	DROP_BAD_COOKIE,   /* of another session, version or group */
	DROP_BAD_RECEIVER, /* for another rank */
	DROP_BAD_SEQ,	   /* too old or too new to be of use */
	DROP_BAD_CHUNK,	   /* beyond the tensor, or no frame that the sender can have sent */
	DROP_BAD_LENGTH,
	DROP_BAD_TENSOR, /* the sender works on another tensor */
	DROP_BAD_RANK,	 /* a hop that cannot be, or a sender that has no business here */
	DROP_BAD_KIND,
	DROP_BAD_CHECKSUM,
	DROP_NOT_HELD, /* a request for what this rank does not have either */
	DROP_EARLY_FULL,
	DROP_OVERTAKEN, /* the state changed while the frame was worked on */
	DROP_CONTENDED, /* another CPU was faster, again and again */
	DROP_REASONS,
};
