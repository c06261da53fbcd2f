// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The kernel's own Cubic (RFC 9438), whose functions it offers to eBPF, so that the bound of unsent data
 * and the statistics of the other controls can be had with it.
 */
#define KERNEL_STATE 64 /* bytes, at least those of struct bictcp; the loader checks that */
#include "coupled.h"

enum tcp_ca_event {
	CA_EVENT_TX_START = 0,
};

KFUNC void cubictcp_init(struct sock *sk);
KFUNC void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event);
KFUNC void cubictcp_state(struct sock *sk, __u8 state);
KFUNC void cubictcp_acked(struct sock *sk, const struct ack_sample *sample);
KFUNC void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked);
KFUNC __u32 cubictcp_recalc_ssthresh(struct sock *sk);

static __always_inline void kernel_init(struct sock *sk)
{
	cubictcp_init(sk);
}

static __always_inline void kernel_set_state(struct sock *sk, __u8 state)
{
	cubictcp_state(sk, state);
}

/* The kernel's state. */
struct bictcp {
	__u32 cnt; /* segments acknowledged for each that the window grows by */
} KERNEL;

SEC("struct_ops")
int cong_avoid(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	const struct bictcp *cubic = (const struct bictcp *)tp->inet_conn.icsk_ca_priv;

	cubictcp_cong_avoid((void *)ctx[0], ctx[1], ctx[2]);
	if (tp->snd_cwnd >= tp->snd_ssthresh)
		state_of(tp)->each = CC_ONE / cc_max(cubic->cnt, 1);
	return 0;
}

SEC("struct_ops")
int cwnd_event(__u64 *ctx)
{
	cubictcp_cwnd_event((void *)ctx[0], ctx[1]);
	return 0;
}

SEC("struct_ops")
int pkts_acked(__u64 *ctx)
{
	cubictcp_acked((void *)ctx[0], (void *)ctx[1]);
	return 0;
}

SEC("struct_ops")
int ssthresh(__u64 *ctx)
{
	return threshold((void *)ctx[0], cubictcp_recalc_ssthresh((void *)ctx[0]));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.cwnd_event = (void *)cwnd_event,
	.pkts_acked = (void *)pkts_acked,
	.ssthresh = (void *)ssthresh,
	.name = "tabane_cubic",
};
