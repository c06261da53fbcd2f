// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* OLIA, opportunistic linked increases (Khalili et al. 2012). */
#include "coupled.h"

/* A walk that compares subflows. */
struct comparison {
	struct walk w;
	struct cc_olia o;
	__u64 ops; /* of the control whose state is read */
};

/* l of a subflow of this control. */
static __always_inline __u64 delivered(struct tcp_sock *tp)
{
	const struct state *s = (const struct state *)tp->inet_conn.icsk_ca_priv;

	return cc_olia_delivered(tp->delivered, s->olia.loss, s->olia.previous);
}

/* l of a subflow, 0 if another control owns its state. */
static __always_inline __u64 delivered_by(const struct comparison *c, struct tcp_sock *tp)
{
	return (__u64)tp->inet_conn.icsk_ca_ops == c->ops ? delivered(tp) : 0;
}

static long compare(__u32 i __attribute__((unused)), struct comparison *c)
{
	__u32 window, srtt;
	struct tcp_sock *tp = step(&c->w, &window, &srtt);

	if (!tp)
		return 1;
	if (!((__u64)window * srtt))
		return 0;
	cc_add(&c->w.all, window, srtt);
	cc_olia_compare(&c->o, window, delivered_by(c, tp), srtt);
	return 0;
}

static long count(__u32 i __attribute__((unused)), struct comparison *c)
{
	__u32 window, srtt;
	struct tcp_sock *tp = step(&c->w, &window, &srtt);

	if (!tp)
		return 1;
	if ((__u64)window * srtt)
		cc_olia_count(&c->o, window, delivered_by(c, tp), srtt);
	return 0;
}

SEC("struct_ops")
int cong_avoid(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	__u32 left = avoid(tp, ctx[2]);
	struct comparison c = {};
	struct tcp_sock *own;
	__u64 first;

	if (!left)
		return 0;
	c.o.best_square = 1;
	c.o.large = c.o.good = unknown_zero;
	/*
	 * Not through the context: for a pointer read from that, on each path to the read, the verifier searches all of
	 * the kernel's types by name, which took three quarters of the time to load this control.
	 */
	own = bpf_rdonly_cast(tp, TYPE_ID(struct tcp_sock));
	c.ops = (__u64)own->inet_conn.icsk_ca_ops;
	if (tp->srtt_us && begin(&c.w, tp)) {
		first = c.w.next;
		bpf_loop(MAX_SUBFLOWS, compare, &c, 0);
		c.w.next = first;
		bpf_loop(MAX_SUBFLOWS, count, &c, 0);
	}
	grow(tp, cc_olia(&c.w.all, &c.o, tp->snd_cwnd, delivered(tp), tp->srtt_us), left);
	return 0;
}

SEC("struct_ops")
int ssthresh(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct state *s = state_of(tp);
	__u32 now = tp->delivered;
	struct walk w = {};

	/* A new interval between losses, unless nothing was delivered in the present one. */
	if (now != s->olia.loss) {
		s->olia.previous = s->olia.loss;
		s->olia.loss = now;
	}
	look(&w, tp);
	return threshold(tp, cc_half(tp->snd_cwnd, w.all.flows > 1 ? CC_LEAST_COUPLED : CC_LEAST));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.ssthresh = (void *)ssthresh,
	.name = "tabane_olia",
};
