/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* NewReno (RFC 5681, RFC 6582) on each subflow independently. Included once by a control. */
#ifndef TABANE_NEWRENO_H
#define TABANE_NEWRENO_H

#include "congestion.h"

SEC("struct_ops")
int cong_avoid(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	__u32 left = avoid(tp, ctx[2]);

	if (left)
		grow(tp, cc_newreno(tp->snd_cwnd), left);
	return 0;
}

SEC("struct_ops")
int ssthresh(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];

	return threshold(tp, cc_half(tp->snd_cwnd, CC_LEAST));
}

#endif
