// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What `testbed doctor` tries for jumbo frames: a program for frames with fragments, and a slice of
 * the first of them. An object of its own, because kernels that lack either refuse it. Used by
 * testbed/probes/bpf.py.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum { LINEAR = 3520, PAGE = 4096 };

extern int bpf_dynptr_from_xdp(struct xdp_md *ctx, __u64 flags, struct bpf_dynptr *frame) __ksym;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *frame, __u32 offset, void *buffer,
				   __u32 buffer__szk) __ksym;

/* Mark the last byte of the first page behind the linear part. */
SEC("xdp.frags")
int probe_fragment(struct xdp_md *ctx)
{
	struct bpf_dynptr frame;
	__u8 *page;

	if (bpf_dynptr_from_xdp(ctx, 0, &frame))
		return XDP_DROP;
	page = bpf_dynptr_slice_rdwr(&frame, LINEAR, NULL, PAGE);
	if (!page)
		return XDP_DROP;
	page[PAGE - 1] = 0x5a;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
