/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Frames of the ring and of exchanges: recognizing, sealing and addressing them. Reference model:
 * testbed/protocol/wire.py. */
#pragma once

#include "lib/bpf.h"
#include "shared/wire_abi.h"

/* Words of the header, which the seal mixes. */
#define FRAME_WORD(frame, field) \
	(*(const __u64 *)((const void *)(frame) + __builtin_offsetof(struct ring_frame, field)))

/* The initial value of a checksum, so that a frame is only valid with exactly this header:
 * identity, sender and receiver. It covers every field of the header except the checksum; the
 * headers below are compared with their expected values. For each word the mix is a bijection, so
 * an error within one word is always detected; other errors are missed once in 2^64. Multipliers:
 * splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
 */
static __always_inline __u64 frame_seal(const struct ring_frame *frame)
{
	__u64 x = FRAME_WORD(frame, seq) * 0xbf58476d1ce4e5b9ull + FRAME_WORD(frame, stream);

	x = (x ^ x >> 30) * 0x94d049bb133111ebull + FRAME_WORD(frame, tag);
	x = (x ^ x >> 27) * 0x9e3779b97f4a7c15ull + frame->cookie +
	    ((__u64)frame->kind << 16 | frame->group);
	return x ^ x >> 31;
}

/* The frame's headers if it is one of ours, else NULL. */
static __always_inline struct ring_frame *frame_parse(void *data, void *data_end)
{
	struct ring_frame *frame = data;

	if ((void *)(frame + 1) > data_end)
		return NULL;
	if (frame->eth.type != bpf_htons(NET_ETHERTYPE_IPV4) ||
	    frame->ip.version_ihl != NET_IPV4_VERSION_IHL ||
	    frame->ip.protocol != NET_PROTOCOL_UDP ||
	    frame->udp.destination != bpf_htons(RING_PORT) || frame->magic != RING_MAGIC)
		return NULL;
	return frame;
}

/* Fill in all headers below ours, for a frame with `length` bytes of payload. */
static __always_inline void frame_address(struct ring_frame *f,
					  const volatile struct net_peer *from,
					  const volatile struct net_peer *to, __u32 length)
{
	__u16 total = bpf_htons(sizeof(*f) - sizeof(f->eth) + length);
	__u32 sum;

	*(__u16 *)&f->eth.destination[0] = *(const volatile __u16 *)&to->mac[0];
	*(__u16 *)&f->eth.destination[2] = *(const volatile __u16 *)&to->mac[2];
	*(__u16 *)&f->eth.destination[4] = *(const volatile __u16 *)&to->mac[4];
	*(__u16 *)&f->eth.source[0] = *(const volatile __u16 *)&from->mac[0];
	*(__u16 *)&f->eth.source[2] = *(const volatile __u16 *)&from->mac[2];
	*(__u16 *)&f->eth.source[4] = *(const volatile __u16 *)&from->mac[4];
	f->eth.type = bpf_htons(NET_ETHERTYPE_IPV4);
	*(__u16 *)&f->ip = bpf_htons(NET_IPV4_VERSION_IHL << 8);
	f->ip.length = total;
	f->ip.id = 0;
	f->ip.fragment = bpf_htons(NET_IPV4_DONT_FRAGMENT);
	f->ip.ttl = NET_IPV4_TTL;
	f->ip.protocol = NET_PROTOCOL_UDP;
	sum = to->ip_sum + total;
	sum = (sum & 0xffff) + (sum >> 16);
	f->ip.check = ~((sum & 0xffff) + (sum >> 16));
	f->ip.source = from->ip;
	f->ip.destination = to->ip;
	f->udp.source = bpf_htons(RING_PORT);
	f->udp.destination = bpf_htons(RING_PORT);
	f->udp.length = bpf_htons(sizeof(*f) - sizeof(f->eth) - sizeof(f->ip) + length);
	f->udp.check = 0;
}
