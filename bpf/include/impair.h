/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What both fault programs do with a frame, apart from their different helpers: identity, fate,
 * counters, log. */
#pragma once

#include "fate.h"
#include "impair_maps.h"

/* The start of a frame, copied to the stack, because in an skb it need not be contiguous. */
struct fault_head {
	struct ring_frame frame;
	__u32 size;   /* bytes that were copied */
	__u32 length; /* length of the whole frame */
};

/* The number of bytes of a frame to copy into its head; 0 if it is too short to be a frame. */
static __always_inline __u32 fault_head_size(__u32 length)
{
	__u32 size = length < sizeof(struct ring_frame) ? length : sizeof(struct ring_frame);

	/* the verifier must track the bounds of the value returned, not of its source */
	barrier_var(size);
	return size >= ETH_HLEN && size <= sizeof(struct ring_frame) ? size : 0;
}

static __always_inline bool fault_identify_flow(const struct fault_head *head,
						struct fault_packet *packet,
						struct fault_link *link)
{
	const struct ring_frame *frame = &head->frame;
	struct fault_flow_key key = {
		.sender = packet->sender,
		.receiver = packet->receiver,
		.protocol = frame->ip.protocol,
		.source = frame->ip.source,
		.destination = frame->ip.destination,
	};
	struct fault_flow fresh = {}, *flow;

	if ((frame->ip.version_ihl & 15) == 5 &&
	    !(frame->ip.fragment & bpf_htons(NET_IPV4_FRAGMENT)) &&
	    (key.protocol == NET_PROTOCOL_TCP || key.protocol == NET_PROTOCOL_UDP))
		/* TCP's ports are in the same place */
		key.ports = (__u32)frame->udp.source << 16 | frame->udp.destination;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow) {
		fresh.number = __sync_fetch_and_add(&link->flows, 1);
		bpf_map_update_elem(&flows, &key, &fresh, BPF_NOEXIST);
		flow = bpf_map_lookup_elem(&flows, &key);
		if (!flow)
			return false;
	}
	packet->kind = FAULT_FOREIGN | key.protocol;
	packet->seq = flow->number;
	packet->chunk = __sync_fetch_and_add(&flow->packets, 1);
	return true;
}

/* Find out a frame's identity; false if it has none. */
static __always_inline bool fault_identify(struct fault_head *head, struct fault_packet *packet,
					   struct fault_link **link)
{
	const __u32 *sender, *receiver;
	struct ring_frame *frame;
	__u32 index;

	if (head->size < sizeof(struct net_eth) + sizeof(struct net_ipv4) + sizeof(__u32) ||
	    head->frame.eth.type != bpf_htons(NET_ETHERTYPE_IPV4))
		return false;
	sender = bpf_map_lookup_elem(&hosts, head->frame.eth.source);
	receiver = bpf_map_lookup_elem(&hosts, head->frame.eth.destination);
	if (!sender || !receiver)
		return false;
	packet->sender = *sender % FATE_MAX_HOSTS;
	packet->receiver = *receiver % FATE_MAX_HOSTS;
	index = packet->sender * FATE_MAX_HOSTS + packet->receiver;
	*link = bpf_map_lookup_elem(&links, &index);
	if (!*link)
		return false;
	__sync_fetch_and_add(&(*link)->frames, 1);
	frame = head->size == sizeof(*frame) ? frame_parse(&head->frame, &head->frame + 1) : NULL;
	if (!frame)
		return fault_identify_flow(head, packet, *link);
	packet->kind = frame->kind & ~FAULT_FOREIGN;
	packet->group = frame->group;
	packet->seq = frame->seq;
	packet->chunk = frame->chunk;
	packet->hop = frame->hop;
	packet->attempt = frame->attempt;
	return true;
}

/* Does a limit drop a frame? */
static __always_inline bool fault_limited(__u32 index, __u32 length, __u64 now)
{
	struct fault_limit *limit = bpf_map_lookup_elem(&limits, &index);
	__u64 before, full;
	int i;

	if (!limit || !limit->rate)
		return false;
	for (i = 0; i < 4; i++) { /* another CPU may be faster, but not every time */
		before = limit->full;
		full = (before > now ? before : now) + length * 8000000000ull / limit->rate;
		if (full > now + limit->burst)
			return true;
		if (__sync_val_compare_and_swap(&limit->full, before, full) == before)
			return false;
	}
	return false;
}

/* Log the rules that a frame has met, and count them by rule and link. */
static __always_inline void fault_log(struct fault_verdict *verdict,
				      const struct fault_packet *packet, __u32 length,
				      struct fault_link *link, bool trace, __u64 now)
{
	struct fault_record record = {
		.time = now, .packet = *packet, .length = length, .fired = verdict->fired
	};
	__u32 i, number;
	__u64 *count;

	if (!verdict->fired && trace &&
	    bpf_ringbuf_output(&records, &record, sizeof(record), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&link->lost, 1);
	for (i = 0; i < FATE_MAX_RULES && i < verdict->fired; i++) {
		struct fault_fired *one = &verdict->firings[i];

		record.argument = one->argument;
		record.rule = one->rule;
		record.action = one->action;
		record.order = i;
		if (bpf_ringbuf_output(&records, &record, sizeof(record), BPF_RB_NO_WAKEUP))
			__sync_fetch_and_add(&link->lost, 1);
		number = one->rule * FAULT_LINKS + packet->sender * FATE_MAX_HOSTS +
			 packet->receiver;
		count = bpf_map_lookup_elem(&fired, &number);
		if (count)
			*count += 1;
	}
}

/* A frame passes on its link: another one that waits for it may be due. */
static __always_inline void fault_passed(struct fault_link *link)
{
	__u64 passed = __sync_fetch_and_add(&link->delay.passed, 1) + 1;

	if (*(volatile __u64 *)&link->delay.holding)
		bpf_ringbuf_output(&wakeups, &passed, sizeof(passed), 0);
}

enum fault_way {
	FAULT_NONE, /* as if there were no faults */
	FAULT_LOSE,
	FAULT_MEET, /* what the verdict says */
};

/* Decide what to do with the frame that has this head. */
static __always_inline enum fault_way fault_decide(struct fault_head *head,
						   struct fault_packet *packet,
						   struct fault_link **link,
						   struct fault_verdict **verdict)
{
	__u64 now = bpf_ktime_get_ns(), *mask;
	struct fault_rules *all;
	__u32 zero = 0, sender;

	if (!fault_identify(head, packet, link))
		return FAULT_NONE;
	sender = packet->sender;
	mask = bpf_map_lookup_elem(&blocked, &sender);
	if (mask && *mask >> packet->receiver & 1) {
		__sync_fetch_and_add(&(*link)->blocked, 1);
		return FAULT_LOSE;
	}
	if (fault_limited(2 * packet->sender, head->length, now) ||
	    fault_limited(2 * packet->receiver + 1, head->length, now)) {
		__sync_fetch_and_add(&(*link)->limited, 1);
		return FAULT_LOSE;
	}
	all = bpf_map_lookup_elem(&rules, &zero);
	*verdict = bpf_map_lookup_elem(&verdicts, &zero);
	if (!all || !*verdict)
		return FAULT_NONE;
	fate_judge(all, packet, head->length, *verdict);
	fault_log(*verdict, packet, head->length, *link, all->trace, now);
	if ((*verdict)->drop)
		return FAULT_LOSE;
	return FAULT_MEET;
}

/* Fill in the header of a frame that is delayed. */
static __always_inline void fault_delay(struct delay_header *header, struct fault_verdict *verdict,
					const struct fault_packet *packet, struct fault_link *link,
					__u32 ingress, __u32 egress)
{
	__u64 now = bpf_ktime_get_ns();
	int i;

	__builtin_memset(header, 0, sizeof(*header));
	header->eth.type = bpf_htons(DELAY_ETHERTYPE);
	header->copies = verdict->copies + 1;
	header->ifindex = egress;
	header->ingress = ingress;
	header->link = packet->sender * FATE_MAX_HOSTS + packet->receiver;
	if (verdict->behind) {
		__sync_fetch_and_add(&link->delay.holding, 1);
		header->release = link->delay.passed + verdict->behind;
		header->latest = now + verdict->within;
	}
	for (i = 0; i < DELAY_COPIES; i++)
		header->due[i] = verdict->delays[i] ? now + verdict->delays[i] : 0;
}
