// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What `testbed doctor` tries: the smallest programs that need each capability. Used by
 * testbed/probes/. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* The redirect's way out, as in the switch: index 0 names the port. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

/* Shared memory, as the tensors'; the probe of locked memory makes it larger than the limit. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} memory SEC(".maps");

/* A far end that redirected frames may enter: veth takes them only where its peer runs NAPI, as it
 * does for XDP. */
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
