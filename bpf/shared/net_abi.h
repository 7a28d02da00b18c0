/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The headers below ours, as the standards define them. The kernel's own IPv4 header has bit
 * fields, whose place BTF readers cannot tell. */
#pragma once

#include <linux/types.h>

enum net_value {
	NET_ETHERTYPE_IPV4 = 0x0800,
	NET_IPV4_VERSION_IHL = 0x45, /* version 4, 5 words: no options */
	NET_IPV4_DONT_FRAGMENT = 0x4000,
	NET_IPV4_FRAGMENT = 0x3fff, /* mask: more fragments, or an offset */
	NET_IPV4_TTL = 64,
	NET_PROTOCOL_ICMP = 1,
	NET_PROTOCOL_TCP = 6,
	NET_PROTOCOL_UDP = 17,
};

struct net_eth {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
};

struct net_ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 length; /* length of the packet, from this header on */
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	/* one's complement sums have the byte order in which they were computed (RFC 1071) */
	__u16 check;
	__be32 source;
	__be32 destination;
};

struct net_udp {
	__be16 source;
	__be16 destination;
	__be16 length;
	__u16 check;
};

/* The addresses of another host. */
struct net_peer {
	__u8 mac[6];
	/* one's complement sum of the IPv4 header to this peer, without total length */
	__u16 ip_sum;
	__be32 ip;
};
