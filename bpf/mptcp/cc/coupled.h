/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The other subflows of a connection, for the controls that couple them. Needs MPTCP. */
#ifndef TABANE_COUPLED_H
#define TABANE_COUPLED_H

#define LOOKS
#include "congestion.h"

struct mptcp_sock {
	struct list_head conn_list;
} KERNEL;

struct mptcp_subflow_context {
	struct list_head node;
	struct sock *tcp_sock;
	struct sock *conn;
	__u32 request_bkup : 1;
	__u8 backup : 1;
} KERNEL;

KFUNC void *bpf_rdonly_cast(const void *object, __u32 type);

/*
 * A walk over the subflows of a connection. Pointers are numbers in it, since the verifier loses
 * their types when they are kept on the stack.
 */
struct walk {
	__u64 next, head;
	struct cc_shares all;
};

#define MAX_SUBFLOWS 16

/*
 * 0, which the verifier does not know. It would follow each value of a counter that starts with a
 * constant through all branches of a walk, up to its limit of a million instructions.
 */
volatile __u32 unknown_zero;

/* The subflow that the walk is at, or 0 at the end, and its window and SRTT, 0 if it takes no part. */
static __always_inline struct tcp_sock *step(struct walk *w, __u32 *window, __u32 *srtt)
{
	struct mptcp_subflow_context *subflow;
	struct tcp_sock *tp;
	__u8 state;

	if (w->next == w->head || !w->next)
		return 0;
	subflow = bpf_rdonly_cast((void *)(w->next - OFFSET_OF(struct mptcp_subflow_context, node)), TYPE_ID(struct mptcp_subflow_context));
	tp = bpf_rdonly_cast(subflow->tcp_sock, TYPE_ID(struct tcp_sock));
	w->next = (__u64)subflow->node.next;
	state = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state;
	*window = tp->snd_cwnd * ((1U << TCP_ESTABLISHED | 1U << TCP_CLOSE_WAIT) >> (state & 31) & 1);
	*srtt = tp->srtt_us;
	return tp;
}

static long visit(__u32 i __attribute__((unused)), struct walk *w)
{
	__u32 window, srtt;

	if (!step(w, &window, &srtt))
		return 1;
	if ((__u64)window * srtt)
		cc_add(&w->all, window, srtt);
	return 0;
}

/* Begins a walk. It reports false when the socket is the only one of its connection. */
static __always_inline _Bool begin(struct walk *w, struct tcp_sock *tp)
{
	struct mptcp_subflow_context *own;
	struct mptcp_sock *msk;

	if (!tp->is_mptcp)
		return 0;
	own = bpf_rdonly_cast(tp->inet_conn.icsk_ulp_data, TYPE_ID(struct mptcp_subflow_context));
	msk = bpf_rdonly_cast(own->conn, TYPE_ID(struct mptcp_sock));
	w->all.flows = unknown_zero;
	w->head = (__u64)msk + OFFSET_OF(struct mptcp_sock, conn_list);
	w->next = (__u64)msk->conn_list.next;
	return 1;
}

/* The shares of the subflows of the connection. Their values may be of slightly different times. */
static __always_inline void look(struct walk *w, struct tcp_sock *tp)
{
	if (tp->srtt_us && begin(w, tp))
		bpf_loop(MAX_SUBFLOWS, visit, w, 0);
}

/* A walk for the lead over the other subflows, in us. */
struct ahead {
	struct walk w;
	__u64 own, rate;
	__u32 srtt, lead;
};

static long precede(__u32 i __attribute__((unused)), struct ahead *a)
{
	struct mptcp_subflow_context *subflow;
	struct tcp_sock *tp;
	__u32 window, srtt;
	__u64 at = a->w.next;

	tp = step(&a->w, &window, &srtt);
	if (!tp)
		return 1;
	subflow = bpf_rdonly_cast((void *)(at - OFFSET_OF(struct mptcp_subflow_context, node)), TYPE_ID(struct mptcp_subflow_context));
	if ((__u64)tp != a->own && (__u64)window * srtt && !BIT_FIELD(subflow, backup) && !BIT_FIELD(subflow, request_bkup))
		a->lead = cc_max(a->lead, cc_lead(a->rate, a->srtt, cc_rate(window, srtt), tp->rtt_min.s[0].v, cc_less(tp->snd_cwnd, tp->snd_ssthresh)));
	return 0;
}

static __u32 lead_of(struct tcp_sock *tp)
{
	struct ahead a = {.own = (__u64)tp, .srtt = tp->srtt_us};

	if (!begin(&a.w, tp))
		return 0;
	a.rate = cc_rate(tp->snd_cwnd, a.srtt);
	bpf_loop(MAX_SUBFLOWS, precede, &a, 0);
	return a.lead;
}

#endif
