// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* BALIA, the balanced linked adaptation (Peng et al. 2016). */
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
	grow(tp, cc_balia(&w.all, cc_rate(tp->snd_cwnd, tp->srtt_us), tp->snd_cwnd), left);
	return 0;
}

SEC("struct_ops")
int ssthresh(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct walk w = {};

	look(&w, tp);
	return threshold(tp, cc_balia_threshold(&w.all, cc_rate(tp->snd_cwnd, tp->srtt_us), tp->snd_cwnd));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.ssthresh = (void *)ssthresh,
	.name = "tabane_balia",
};
