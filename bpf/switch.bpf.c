// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A layer 2 switch with static forwarding: destination MAC -> port -> redirect.
 *
 * Attached to every port of a switch whose ports are also ports of a Linux bridge. Frames that this
 * program does not redirect (broadcast, multicast, unknown destinations, frames that would leave
 * through their ingress port) go to the bridge, which has the same static table. While the table is
 * lost, the bridge gets nothing: the program itself floods every frame.
 */
#include "forward.h"

SEC("xdp.frags")
int l2_switch(struct xdp_md *ctx)
{
	return switch_forward(ctx);
}

char _license[] SEC("license") = "Dual MIT/GPL";
