/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Why a program has dropped a frame, in both the ring and exchanges. The counters of both begin
 * with these. */
#pragma once

enum drop_reason {
	DROP_DUPLICATE,	   /* its content has already arrived */
	DROP_BAD_COOKIE,   /* of another session, version or group */
	DROP_BAD_RECEIVER, /* for another rank */
	DROP_BAD_SEQ,	   /* too old or too new to be used */
	DROP_BAD_CHUNK,	   /* beyond the tensor, or a frame that the sender cannot have sent */
	DROP_BAD_LENGTH,
	DROP_BAD_TENSOR, /* the sender reduces another tensor */
	DROP_BAD_RANK,	 /* an impossible hop, or a sender that must not send to this rank */
	DROP_BAD_KIND,
	DROP_BAD_CHECKSUM,
	DROP_NOT_HELD, /* a request for data that this rank does not have either */
	DROP_EARLY_FULL,
	DROP_OVERTAKEN, /* the state changed while the frame was being processed */
	DROP_CONTENDED, /* other CPUs won every race for the state */
	DROP_REASONS,
};
