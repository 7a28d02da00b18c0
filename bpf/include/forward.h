/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* A switch's static forwarding: destination MAC -> port. Its maps are filled by testbed/fabric/datapath.py. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_helpers.h>

#define SWITCH_MAX_PORTS 64 /* ports are numbered from 1 */
#define SWITCH_TO_BRIDGE 0  /* the counters' element for frames that were passed */

struct switch_destination {
	__u32 port;
	__u32 ifindex;
};

struct switch_counters {
	__u64 frames;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__uint(key_size, ETH_ALEN);
	__type(value, struct switch_destination);
} forwarding SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, SWITCH_MAX_PORTS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SWITCH_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct switch_counters);
} counters SEC(".maps");

static __always_inline void switch_count(__u32 port, __u64 frames, __u64 bytes)
{
	struct switch_counters *counter = bpf_map_lookup_elem(&counters, &port);

	if (counter) {
		counter->frames += frames;
		counter->bytes += bytes;
	}
}

/* Send a frame where its destination is; what the table does not know takes the bridge. */
static __always_inline int switch_forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct switch_destination *to;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > data_end)
		return XDP_DROP;
	to = bpf_map_lookup_elem(&forwarding, eth->h_dest);
	if (!to || to->ifindex == ctx->ingress_ifindex) {
		switch_count(SWITCH_TO_BRIDGE, 1, data_end - data);
		return XDP_PASS;
	}
	switch_count(to->port, 1, data_end - data);
	return bpf_redirect_map(&ports, to->port, XDP_PASS); /* passes if the port is not in the map */
}
