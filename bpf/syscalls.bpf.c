// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Counts the system calls of all threads of one process. User space reads the count from the map's
 * memory, without a system call.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 process; /* tgid, as the initial pid namespace numbers it */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

SEC("raw_tp/sys_enter")
int count_calls(void *ctx)
{
	__u32 zero = 0;
	__u64 *count;

	if (bpf_get_current_pid_tgid() >> 32 != process)
		return 0;
	count = bpf_map_lookup_elem(&calls, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
