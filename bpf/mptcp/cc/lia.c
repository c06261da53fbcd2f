// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* LIA, the coupled control of RFC 6356. Losses are NewReno's. */
#include "coupled.h"

SEC("struct_ops")
int cong_avoid(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	__u32 left = avoid(tp, ctx[2]);
	struct walk w = {};

	if (!left)
		return 0;
	look(&w, tp);
	grow(tp, cc_lia(&w.all, tp->snd_cwnd), left);
	return 0;
}

SEC("struct_ops")
int ssthresh(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];

	return threshold(tp, cc_half(tp->snd_cwnd, CC_LEAST));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.ssthresh = (void *)ssthresh,
	.name = "tabane_lia",
};
