// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* wVegas, weighted Vegas (Cao et al. 2012). */
#include "coupled.h"
#include "vegas.h"

SEC("struct_ops")
int cong_avoid(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cc_round r = {};
	__u64 share = CC_ONE;
	struct walk w = {};

	if (!end_round(tp, ctx[1], ctx[2], &r))
		return 0;
	look(&w, tp);
	if (w.all.flows > 1 && w.all.sum)
		share = cc_share(cc_rate(tp->snd_cwnd, tp->srtt_us), w.all.sum);
	cc_wvegas(&r, share);
	apply(tp, &r, ctx[2]);
	return 0;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.ssthresh = (void *)ssthresh,
	.pkts_acked = (void *)pkts_acked,
	.name = "tabane_wvegas",
};
