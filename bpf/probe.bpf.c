// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What `testbed doctor` loads: the smallest programs that need each capability. Used by
 * testbed/probes/. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* The target of the redirect, as in the switch: index 0 names the port. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

/* Shared memory like that of tensors; the probe for locked memory makes it larger than the limit.
 * */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} memory SEC(".maps");

/* Attached to the far end so that it accepts redirected frames: veth accepts them only if the peer
 * runs NAPI, as it does for XDP. */
SEC("xdp")
int probe_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp")
int probe_redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&ports, 0, XDP_DROP);
}

/* Mark the first byte after the Ethernet header, so that the far end can tell that this program has
 * run. */
SEC("tc")
int probe_mark(struct __sk_buff *skb)
{
	const __u8 mark = 0x5a;

	bpf_skb_store_bytes(skb, ETH_HLEN, &mark, sizeof(mark), 0);
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
