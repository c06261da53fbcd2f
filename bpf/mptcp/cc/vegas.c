// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Vegas on each subflow by itself, in the form of Linux' tcp_vegas. */
#include "vegas.h"

SEC("struct_ops")
int cong_avoid(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cc_round r = {};

	if (!end_round(tp, ctx[1], ctx[2], &r))
		return 0;
	cc_vegas(&r);
	apply(tp, &r, ctx[2]);
	return 0;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.ssthresh = (void *)ssthresh,
	.pkts_acked = (void *)pkts_acked,
	.name = "tabane_vegas",
};
