// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Telemetry: where CPU time goes, and for whom. Compiled by BCC (testbed/telemetry/sampler.py).
 *
 * A perf event samples the stacks of each CPU. Softirq work is charged to the network namespace
 * that it is done for, not to the task that it interrupts. Whose it is, is known late: the
 * tracepoint napi_poll comes after the poll, and XDP programs run without an skb. So a sample
 * carries a number, and the poll at whose end it is found tells its owner under that number.
 * Nothing else is done on the way of a packet while only samples are taken.
 *
 * What samples cannot see (waits, system calls, drops) is counted by further tracepoints, which
 * cost more and are attached on their own. All are raw tracepoints, since these need neither
 * tracefs nor the layout of events.
 *
 * The headers may be those of another kernel, so no struct of the kernel is used: the loader reads
 * the offsets of their members from the running kernel's BTF and defines them as AT_*.
 */
#include "shared/telemetry_abi.h"

struct cpu {
	void *device; /* of the last skb in the poll under way, if there was one */
	u32 poll;
	u32 sampled; /* whether since the last poll */
	u64 since;   /* when the softirq work that is not yet counted began, ns */
	u32 netns;   /* for which it is */
	u32 softirq; /* its vector + 1; 0: none. Kept only while counting */
};

struct thread {
	u64 left;  /* when it left the CPU, ns; 0: it runs */
	u64 woken; /* when it was woken up since, ns; 0: not */
	u32 netns;
	u32 reason; /* why it left: a system call's number or enum telemetry_wait */
	u32 syscall;
	u32 pad;
};

BPF_RINGBUF_OUTPUT(samples, TELEMETRY_PAGES);
BPF_RINGBUF_OUTPUT(polls, TELEMETRY_POLL_PAGES);
BPF_ARRAY(lost, u64, 1);
BPF_HASH(nodes, u32, u32, TELEMETRY_NODES);
BPF_HASH(counts, struct telemetry_key, struct telemetry_count, TELEMETRY_COUNTS);
BPF_TABLE("lru_hash", u32, struct thread, threads, TELEMETRY_TASKS);
BPF_PERCPU_ARRAY(cpus, struct cpu, 1);

static inline void *pointer_at(void *base, u32 offset)
{
	void *found = 0;

	bpf_probe_read_kernel(&found, sizeof(found), base + offset);
	return found;
}

static inline u32 number_at(void *base, u32 offset)
{
	u32 found = 0;

	bpf_probe_read_kernel(&found, sizeof(found), base + offset);
	return found;
}

static inline u32 netns_of_task(void *task)
{
	void *proxy = pointer_at(task, AT_TASK_NSPROXY);

	return proxy ? number_at(pointer_at(proxy, AT_NSPROXY_NET), AT_NET_INUM) : 0;
}

static inline u32 netns_of_device(void *device)
{
	return device ? number_at(pointer_at(device, AT_DEVICE_NET), AT_NET_INUM) : 0;
}

static inline struct cpu *this_cpu(void)
{
	u32 zero = 0;

	return cpus.lookup(&zero);
}

static inline void count(u32 netns, u32 kind, u32 detail, u64 sum)
{
	struct telemetry_key key = { .netns = netns, .kind = kind, .detail = detail };
	struct telemetry_count none = {}, *found;

	if (!nodes.lookup(&netns))
		return;
	found = counts.lookup_or_try_init(&key, &none);
	if (!found)
		return;
	__sync_fetch_and_add(&found->count, 1);
	__sync_fetch_and_add(&found->sum, sum);
}

int take_sample(struct bpf_perf_event_data *ctx)
{
	u64 task = bpf_get_current_pid_tgid();
	struct telemetry_sample *sample;
	struct cpu *cpu = this_cpu();
	u32 zero = 0;
	long length;

	if (!cpu)
		return 0;
	sample = samples.ringbuf_reserve(sizeof(*sample));
	if (!sample) {
		lost.increment(zero);
		return 0;
	}
	sample->time = bpf_ktime_get_ns();
	sample->pid = task >> 32;
	sample->tid = task;
	sample->task_netns = netns_of_task((void *)bpf_get_current_task());
	sample->device_netns = netns_of_device(cpu->device);
	sample->poll = cpu->poll;
	sample->cpu = bpf_get_smp_processor_id();
	length = bpf_get_stack(ctx, sample->kernel, sizeof(sample->kernel), 0);
	sample->kernel_frames = length > 0 ? length / sizeof(u64) : 0;
	length = bpf_get_stack(ctx, sample->user, sizeof(sample->user), BPF_F_USER_STACK);
	sample->user_frames = length > 0 ? length / sizeof(u64) : 0;
	cpu->sampled = 1;
	samples.ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
	return 0;
}

int end_poll(struct bpf_raw_tracepoint_args *ctx)
{
	struct telemetry_poll *poll;
	struct cpu *cpu = this_cpu();
	u32 netns;

	if (!cpu)
		return 0;
	cpu->device = 0;
	if (!cpu->sampled)
		return 0;
	/* The backlog of a CPU is no device's: its skbs have told whose they are. */
	netns = netns_of_device(pointer_at((void *)ctx->args[0], AT_NAPI_DEV));
	if (netns) {
		poll = polls.ringbuf_reserve(sizeof(*poll));
		if (poll) {
			poll->cpu = bpf_get_smp_processor_id();
			poll->poll = cpu->poll;
			poll->netns = netns;
			poll->pad = 0;
			polls.ringbuf_submit(poll, BPF_RB_NO_WAKEUP);
		}
	}
	cpu->sampled = 0;
	cpu->poll++;
	return 0;
}

int note_device(struct bpf_raw_tracepoint_args *ctx)
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		cpu->device = pointer_at((void *)ctx->args[0], AT_SKB_DEV);
	return 0;
}

/* Counts the softirq work since the last call. */
static inline void settle(struct cpu *cpu, u32 netns)
{
	u64 now = bpf_ktime_get_ns();

	if (netns)
		count(netns, TELEMETRY_SOFTIRQ, cpu->softirq - 1, now - cpu->since);
	cpu->since = now;
}

int on_softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return 0;
	cpu->since = bpf_ktime_get_ns();
	cpu->netns = 0;
	cpu->softirq = ctx->args[0] + 1;
	return 0;
}

int on_softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct cpu *cpu = this_cpu();

	if (!cpu || !cpu->softirq)
		return 0;
	settle(cpu, cpu->netns);
	cpu->softirq = 0;
	return 0;
}

int on_napi_poll(struct bpf_raw_tracepoint_args *ctx)
{
	struct cpu *cpu = this_cpu();
	u32 netns;

	if (!cpu || !cpu->softirq)
		return 0;
	netns = netns_of_device(pointer_at((void *)ctx->args[0], AT_NAPI_DEV));
	settle(cpu, netns ? netns : cpu->netns);
	cpu->netns = 0;
	return 0;
}

int on_netif_receive_skb(struct bpf_raw_tracepoint_args *ctx)
{
	void *skb = (void *)ctx->args[0];
	u32 netns = netns_of_device(pointer_at(skb, AT_SKB_DEV));
	struct cpu *cpu = this_cpu();

	if (cpu && cpu->softirq && netns && cpu->netns != netns) {
		if (cpu->netns)
			settle(cpu, cpu->netns);
		cpu->netns = netns;
	}
	count(netns, TELEMETRY_RECEIVE, 0, number_at(skb, AT_SKB_LEN));
	return 0;
}

int on_net_dev_xmit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 netns = netns_of_device((void *)ctx->args[2]);
	struct cpu *cpu = this_cpu();

	/* A timer or a tasklet sends: what it sends tells for whom it works. */
	if (cpu && cpu->softirq && !cpu->netns)
		cpu->netns = netns;
	count(netns, TELEMETRY_TRANSMIT, 0, (u32)ctx->args[3]);
	return 0;
}

int on_kfree_skb(struct bpf_raw_tracepoint_args *ctx)
{
	u32 netns = netns_of_device(pointer_at((void *)ctx->args[0], AT_SKB_DEV));
	struct cpu *cpu = this_cpu();

	if (!netns && cpu && cpu->softirq)
		netns = cpu->netns;
	else if (!netns)
		netns = netns_of_task((void *)bpf_get_current_task());
	count(netns, TELEMETRY_DROP, ctx->args[2], 0);
	return 0;
}

int on_tcp_retransmit_skb(struct bpf_raw_tracepoint_args *ctx)
{
	void *net = pointer_at((void *)ctx->args[0], AT_SOCK_NET);

	count(number_at(net, AT_NET_INUM), TELEMETRY_RETRANSMIT, 0, 0);
	return 0;
}

/* The record of a thread of our nodes; NULL for others. */
static inline struct thread *thread_of(u32 tid, void *task)
{
	struct thread *found = threads.lookup(&tid), fresh = { .syscall = TELEMETRY_NO_SYSCALL };

	if (found)
		return found;
	fresh.netns = netns_of_task(task);
	if (!nodes.lookup(&fresh.netns))
		return 0;
	return threads.lookup_or_try_init(&tid, &fresh);
}

int on_sys_enter(struct bpf_raw_tracepoint_args *ctx)
{
	struct thread *thread =
		thread_of(bpf_get_current_pid_tgid(), (void *)bpf_get_current_task());

	if (thread)
		thread->syscall = ctx->args[1];
	return 0;
}

int on_sys_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread *thread = threads.lookup(&tid);
	long result = ctx->args[1];

	if (!thread || thread->syscall == TELEMETRY_NO_SYSCALL)
		return 0;
	count(thread->netns, TELEMETRY_SYSCALL, thread->syscall, result > 0 ? result : 0);
	thread->syscall = TELEMETRY_NO_SYSCALL;
	return 0;
}

static inline u32 log2_of(u64 value)
{
	u32 power = 0;

#pragma unroll
	for (u32 step = 32; step; step >>= 1)
		if (value >> step) {
			value >>= step;
			power += step;
		}
	return power;
}

int on_sched_switch(struct bpf_raw_tracepoint_args *ctx)
{
	void *before = (void *)ctx->args[1], *after = (void *)ctx->args[2];
	u32 left = number_at(before, AT_TASK_PID), entered = number_at(after, AT_TASK_PID);
	u64 now = bpf_ktime_get_ns();
	struct thread *thread = left ? thread_of(left, before) : 0;

	if (thread) {
		/* A task that is still runnable did not leave of its own accord. */
		thread->reason = ctx->args[0] || !ctx->args[3] ? TELEMETRY_PREEMPTED
							       : thread->syscall;
		thread->left = now;
		thread->woken = 0;
	}
	thread = threads.lookup(&entered);
	if (!thread || !thread->left)
		return 0;
	count(thread->netns, TELEMETRY_OFF_CPU, thread->reason, now - thread->left);
	if (thread->woken)
		count(thread->netns, TELEMETRY_WAKEUP, log2_of(now - thread->woken),
		      now - thread->woken);
	thread->left = 0;
	return 0;
}

int on_sched_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = number_at((void *)ctx->args[0], AT_TASK_PID);
	struct thread *thread = threads.lookup(&tid);

	if (thread && thread->left && !thread->woken)
		thread->woken = bpf_ktime_get_ns();
	return 0;
}
