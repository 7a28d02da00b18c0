// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The fault programs: they carry out the fate of each frame that a host sends, at the switch port
 * that the host is attached to.
 *
 * impair_xdp replaces the switch's own program and forwards in the same way. impair_tc is for ports
 * whose frames go on to the bridge. Both need the switch's forwarding table for copies and delayed
 * frames, which do not pass through the bridge.
 */
#include "forward.h"
#include "impair.h"

#include <linux/pkt_cls.h>

/* ifindex of the delay line's ingress device. */
__u32 hold_ifindex;

/* By port * (FATE_MAX_COPIES + 1) + copies: a devmap that names the port once, and once more for
 * each copy. The devmaps of port 0, which does not exist, name every port in this way, for a switch
 * that floods.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SWITCH_MAX_PORTS *(FATE_MAX_COPIES + 1));
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_DEVMAP);
			__uint(max_entries, FATE_MAX_COPIES + 1);
			__uint(key_size, sizeof(__u32));
			__uint(value_size, sizeof(__u32));
		});
} fans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} entrance SEC(".maps");

static __always_inline bool must_wait(const struct fault_verdict *verdict)
{
	return verdict->delayed || verdict->behind;
}

/* Copies of frames with fragments are left to the delay line, which sends them at once. */
static __always_inline bool must_leave_copies(const struct fault_verdict *verdict, __u32 length)
{
	return verdict->copies && length > SWITCH_LINEAR;
}

static __always_inline int hold_xdp(struct xdp_md *ctx, struct fault_verdict *verdict,
				    const struct fault_packet *packet, struct fault_link *link,
				    __u32 egress)
{
	struct delay_header *header;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*header)))
		goto unplaced;
	header = (void *)(long)ctx->data;
	if ((void *)(header + 1) > (void *)(long)ctx->data_end)
		goto unplaced;
	fault_delay(header, verdict, packet, link, ctx->ingress_ifindex, egress);
	return bpf_redirect_map(&entrance, 0, XDP_DROP);
unplaced:
	__sync_fetch_and_add(&link->unplaced, 1);
	return XDP_DROP;
}

static __always_inline int fan_out(struct xdp_md *ctx, __u32 length, __u32 copies,
				   struct switch_destination *to, struct fault_link *link)
{
	bool flood = switch_floods();
	__u32 index = (flood ? 0 : to->port) * (FATE_MAX_COPIES + 1) + copies;
	void *fan = bpf_map_lookup_elem(&fans, &index);

	if (!fan) {
		__sync_fetch_and_add(&link->unplaced, 1);
		return switch_forward(ctx);
	}
	if (flood) {
		switch_count_others(ctx->ingress_ifindex, copies + 1, (copies + 1) * length);
		return bpf_redirect_map(fan, 0, SWITCH_ALL_OTHERS);
	}
	switch_count(to->port, copies + 1, (copies + 1) * length);
	return bpf_redirect_map(fan, 0, BPF_F_BROADCAST);
}

/* At both hooks a frame meets the same fate, and only the helpers that reach it differ. */
static __always_inline int impair_load(void *ctx, bool xdp, __u32 at, void *to, __u32 size)
{
	return xdp ? bpf_xdp_load_bytes(ctx, at, to, size) : bpf_skb_load_bytes(ctx, at, to, size);
}

static __always_inline int impair_store(void *ctx, bool xdp, __u32 at, void *from, __u32 size)
{
	return xdp ? bpf_xdp_store_bytes(ctx, at, from, size)
		   : bpf_skb_store_bytes(ctx, at, from, size, 0);
}

/* Decide a frame's fate, and flip the bits that it says. */
static __always_inline enum fault_way impair_decide(void *ctx, bool xdp, struct fault_head *head,
						    struct fault_packet *packet,
						    struct fault_link **link,
						    struct fault_verdict **verdict)
{
	__u32 i, size = fault_head_size(head->length);
	enum fault_way way;
	__u8 byte;

	/* for the verifier: before Linux 6.8 it does not see that what is not 0 is at least 1 */
	barrier_var(size);
	if (size < ETH_HLEN || impair_load(ctx, xdp, 0, &head->frame, size))
		return FAULT_NONE;
	head->size = size;
	way = fault_decide(head, packet, link, verdict);
	if (way != FAULT_MEET)
		return way;
	if (!*verdict || !*link) /* for the verifier */
		return FAULT_NONE;
	for (i = 0; i < FATE_MAX_BITS && i < (*verdict)->bits; i++) {
		__u32 bit = (*verdict)->flips[i];

		if (impair_load(ctx, xdp, bit / 8, &byte, 1))
			continue;
		byte ^= 1 << bit % 8;
		impair_store(ctx, xdp, bit / 8, &byte, 1);
	}
	return FAULT_MEET;
}

SEC("xdp.frags")
int impair_xdp(struct xdp_md *ctx)
{
	struct fault_head head = {};
	struct fault_packet packet = {};
	struct switch_destination *to;
	struct fault_verdict *verdict = NULL;
	struct fault_link *link = NULL;

	head.length = bpf_xdp_get_buff_len(ctx);
	switch (impair_decide(ctx, true, &head, &packet, &link, &verdict)) {
	case FAULT_NONE:
		return switch_forward(ctx);
	case FAULT_LOSE:
		return XDP_DROP;
	case FAULT_MEET:
		break;
	}
	to = bpf_map_lookup_elem(&forwarding, head.frame.eth.destination);
	if (to && (must_wait(verdict) || must_leave_copies(verdict, head.length)))
		return hold_xdp(ctx, verdict, &packet, link, to->ifindex);
	fault_passed(link);
	if (to && verdict->copies)
		return fan_out(ctx, head.length, verdict->copies & FATE_MAX_COPIES, to, link);
	return switch_forward(ctx);
}

static __always_inline int hold_tc(struct __sk_buff *skb, struct fault_verdict *verdict,
				   const struct fault_packet *packet, struct fault_link *link,
				   __u32 egress)
{
	struct delay_header header;

	if (bpf_skb_change_head(skb, sizeof(header), 0)) {
		__sync_fetch_and_add(&link->unplaced, 1);
		return TC_ACT_SHOT;
	}
	fault_delay(&header, verdict, packet, link, skb->ifindex, egress);
	bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0);
	return bpf_redirect(hold_ifindex, 0);
}

/* On a switch that floods, a copy also leaves through all other ports, except the ingress port. */
static __noinline int clone_to_others(struct __sk_buff *skb, __u32 egress)
{
	__u32 port, ingress = skb->ifindex, ifindex;

	for (port = 1; port < SWITCH_MAX_PORTS; port++) {
		ifindex = switch_ifindex(port);
		if (ifindex && ifindex != ingress && ifindex != egress)
			bpf_clone_redirect(skb, ifindex, 0);
	}
	return 0;
}

SEC("tc")
int impair_tc(struct __sk_buff *skb)
{
	struct fault_head head = {};
	struct fault_packet packet = {};
	struct switch_destination *to;
	struct fault_verdict *verdict = NULL;
	struct fault_link *link = NULL;
	__u32 i;

	head.length = skb->len;
	switch (impair_decide(skb, false, &head, &packet, &link, &verdict)) {
	case FAULT_NONE:
		return TC_ACT_UNSPEC;
	case FAULT_LOSE:
		return TC_ACT_SHOT;
	case FAULT_MEET:
		break;
	}
	to = bpf_map_lookup_elem(&forwarding, head.frame.eth.destination);
	if (to && must_wait(verdict))
		return hold_tc(skb, verdict, &packet, link, to->ifindex);
	fault_passed(link);
	for (i = 0; to && i < FATE_MAX_COPIES && i < verdict->copies; i++) {
		if (bpf_clone_redirect(skb, to->ifindex, 0))
			__sync_fetch_and_add(&link->unplaced, 1);
		if (switch_floods())
			clone_to_others(skb, to->ifindex);
	}
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
