// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * NewReno on each subflow, with a rate that it does not exceed: the rates of the subflows, and so their
 * shares, are those of a map, as long as their paths carry them.
 */
#include "coupled.h"
#include "newreno.h"

enum {
	MAX_RATES = 8,
	SO_MAX_PACING_RATE = 47,
	CHECK_EVERY = 20000, /* us */
};

#define UNLIMITED 0xffffffffU

/*
 * The rate of TCP payload in bytes per second of each subflow, in the order in which they joined the
 * connection; 0 is no limit. It is pinned, and may change at any time.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_RATES);
	__type(key, __u32);
	__type(value, __u32);
} rates SEC(".maps");

/* A walk to the place of a subflow in its connection. */
struct place {
	struct walk w;
	__u64 own;
	__u32 at;
};

static long seek(__u32 i __attribute__((unused)), struct place *p)
{
	__u32 window, srtt;
	struct tcp_sock *tp = step(&p->w, &window, &srtt);

	if (!tp || (__u64)tp == p->own)
		return 1;
	p->at++;
	return 0;
}

/* Applies the rate of the map, every now and then. */
SEC("struct_ops")
int pkts_acked(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct state *s = state_of(tp);
	struct place p = {.own = ctx[0]};
	__u32 limit = UNLIMITED, *rate;

	if (s->ratio.checked && tp->tcp_mstamp - s->ratio.checked < CHECK_EVERY)
		return 0;
	s->ratio.checked = tp->tcp_mstamp;
	p.at = unknown_zero;
	if (begin(&p.w, tp))
		bpf_loop(MAX_SUBFLOWS, seek, &p, 0);
	rate = bpf_map_lookup_elem(&rates, &p.at);
	if (rate && *rate)
		limit = *rate;
	if (limit == s->ratio.limit)
		return 0;
	if (!bpf_setsockopt((void *)ctx[0], SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof(limit)))
		s->ratio.limit = limit;
	return 0;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.ssthresh = (void *)ssthresh,
	.pkts_acked = (void *)pkts_acked,
	.name = "tabane_ratio",
};
