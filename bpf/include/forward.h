/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* A switch's static forwarding: destination MAC -> port. Its maps are filled by
 * testbed/datapath/switch.py.
 *
 * While the switch has lost its table (the event `flood`), a frame leaves through all ports except
 * its ingress port. A frame with fragments, which XDP cannot copy, leaves through the right port
 * alone.
 */
#pragma once

#include <linux/if_ether.h>

#include "lib/bpf.h"
#include "shared/switch_abi.h"

#define SWITCH_ALL_OTHERS (BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS)

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

/* The same ifindexes, 0 where there is no port. Only one type of program can use a devmap, and TC
 * programs have to walk the ports, too. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SWITCH_MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} indices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SWITCH_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct switch_counters);
} counters SEC(".maps");

/* Not 0: the table is lost. The controller creates this map and may write to it at any time; all
 * programs of a switch share it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} flooding SEC(".maps");

static __always_inline bool switch_floods(void)
{
	__u32 zero = 0;
	__u64 *lost = bpf_map_lookup_elem(&flooding, &zero);

	return lost && *(volatile __u64 *)lost;
}

static __always_inline void switch_count(__u32 port, __u64 frames, __u64 bytes)
{
	struct switch_counters *counter = bpf_map_lookup_elem(&counters, &port);

	if (counter) {
		counter->frames += frames;
		counter->bytes += bytes;
	}
}

/* The ifindex of a port; 0 if the switch has no port with this number. */
static __always_inline __u32 switch_ifindex(__u32 port)
{
	__u32 *ifindex = bpf_map_lookup_elem(&indices, &port);

	return ifindex ? *ifindex : 0;
}

/* Count a frame on all ports except the one with ifindex `ingress`. */
static __noinline int switch_count_others(__u32 ingress, __u64 frames, __u64 bytes)
{
	__u32 port, ifindex;

	for (port = 1; port < SWITCH_MAX_PORTS; port++) {
		ifindex = switch_ifindex(port);
		if (ifindex && ifindex != ingress)
			switch_count(port, frames, bytes);
	}
	return 0;
}

/* Forward a frame to its destination's port, or to the bridge if the table has no entry. If the
 * table is lost, flood the frame. */
static __always_inline int switch_forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 length = bpf_xdp_get_buff_len(ctx);
	struct switch_destination *to;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > data_end)
		return XDP_DROP;
	if (length <= SWITCH_LINEAR && switch_floods()) {
		switch_count_others(ctx->ingress_ifindex, 1, length);
		return bpf_redirect_map(&ports, 0, SWITCH_ALL_OTHERS);
	}
	to = bpf_map_lookup_elem(&forwarding, eth->h_dest);
	if (!to || to->ifindex == ctx->ingress_ifindex) {
		switch_count(SWITCH_TO_BRIDGE, 1, length);
		return XDP_PASS;
	}
	switch_count(to->port, 1, length);
	/* passes if the port is not in the map */
	return bpf_redirect_map(&ports, to->port, XDP_PASS);
}
