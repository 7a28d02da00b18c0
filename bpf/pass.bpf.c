// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Passes every frame: for a veth whose peer sends back frames by XDP, which arrive only at a device
 * that has a program itself (veth_xdp_flush in drivers/net/veth.c).
 */
#include "lib/bpf.h"

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
