// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Runs the arithmetic of bpf/lib/cc.h in the kernel on vectors that a test puts into a map, and
 * compares with internal/mptcp/cc.
 */
#include "cc.h"

enum {
	MAX_FLOWS = 8,
	MAX_VECTORS = 4096,
};

enum control {
	CONTROL_NEWRENO,
	CONTROL_LIA,
	CONTROL_OLIA,
	CONTROL_BALIA,
	CONTROL_VEGAS,
	CONTROL_WVEGAS,
	CONTAINMENT,
};

struct subflow {
	__u32 window, srtt;              /* in segments and 1/8 us */
	__u32 threshold;                 /* in segments */
	__u32 delivered, loss, previous; /* OLIA's, in segments */
};

/* A connection, and what one of its subflows does: in to out. */
struct vector {
	__u32 control;
	__u32 flows, own;
	struct subflow flow[MAX_FLOWS];
	__u32 threshold, base, rtt, target, queue, limited; /* Vegas and wVegas */
	__u32 mss;                                          /* of the bound of unsent data */
	__u32 prior, last, reduced;                         /* containment, of the window of the first subflow */

	/* The increase for a segment acknowledged, in 2^-32, and ssthresh after a loss. */
	__s64 each;
	__u32 lost;
	/* The round of Vegas and wVegas. */
	__u32 window_out, threshold_out, target_out, queue_out, slow_start;
	__u32 repaired;
	__u32 lowat, buffer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VECTORS);
	__type(key, __u32);
	__type(value, struct vector);
} vectors SEC(".maps");

const struct vector *_vector __attribute__((unused));

struct pass {
	__u32 vector;
	struct cc_shares all;
	struct cc_olia o;
	__u32 own, srtt, lead;
	__u64 rate;
};

static __always_inline const struct subflow *flow(const struct pass *p, __u32 i)
{
	const struct vector *v = bpf_map_lookup_elem(&vectors, &p->vector);

	if (!v || i >= MAX_FLOWS || i >= v->flows || !v->flow[i].window || !v->flow[i].srtt)
		return 0;
	return &v->flow[i];
}

static long first(__u32 i, struct pass *p)
{
	const struct subflow *f = flow(p, i);

	if (!f)
		return 0;
	cc_add(&p->all, f->window, f->srtt);
	cc_olia_compare(&p->o, f->window, cc_olia_delivered(f->delivered, f->loss, f->previous), f->srtt);
	return 0;
}

static long second(__u32 i, struct pass *p)
{
	const struct subflow *f = flow(p, i);

	if (f)
		cc_olia_count(&p->o, f->window, cc_olia_delivered(f->delivered, f->loss, f->previous), f->srtt);
	return 0;
}

static long third(__u32 i, struct pass *p)
{
	const struct subflow *f = flow(p, i);

	if (f && i != p->own)
		p->lead = cc_max(p->lead, cc_lead(p->rate, p->srtt, cc_rate(f->window, f->srtt), f->srtt >> 3, cc_less(f->window, f->threshold)));
	return 0;
}

static long compute(__u32 i, void *context __attribute__((unused)))
{
	struct pass p = {.vector = i, .o = {.best_square = 1}};
	const struct subflow *f;
	struct cc_round r = {};
	__u32 window, srtt;
	struct vector *v;
	__u64 rate;

	v = bpf_map_lookup_elem(&vectors, &i);
	if (!v || !v->flows)
		return 0;
	if (v->control == CONTAINMENT) {
		struct cc_contained c = {
			.window = v->flow[0].window, .threshold = v->threshold, .prior = v->prior, .last = v->last, .reduced = v->reduced,
		};

		v->repaired = cc_contain(&c);
		v->window_out = c.window;
		v->threshold_out = c.threshold;
		return 0;
	}
	f = flow(&p, v->own);
	if (!f)
		return 0;
	bpf_loop(MAX_FLOWS, first, &p, 0);
	bpf_loop(MAX_FLOWS, second, &p, 0);
	window = f->window;
	srtt = f->srtt;
	rate = cc_rate(window, srtt);
	v->lost = cc_half(window, CC_LEAST);
	p.own = v->own;
	p.srtt = srtt;
	p.rate = rate;
	bpf_loop(MAX_FLOWS, third, &p, 0);
	v->lowat = cc_lowat(window, v->mss, srtt, p.lead);
	v->buffer = cc_buffer(window, v->mss);
	r.window = window;
	r.threshold = v->threshold;
	r.base = v->base;
	r.rtt = v->rtt;
	r.target = v->target;
	r.queue = v->queue;
	r.limited = v->limited;
	switch (v->control) {
	case CONTROL_NEWRENO:
		v->each = cc_newreno(window);
		break;
	case CONTROL_LIA:
		v->each = cc_lia(&p.all, window);
		break;
	case CONTROL_OLIA:
		v->each = cc_olia(&p.all, &p.o, window, cc_olia_delivered(f->delivered, f->loss, f->previous), srtt);
		v->lost = cc_half(window, p.all.flows > 1 ? CC_LEAST_COUPLED : CC_LEAST);
		break;
	case CONTROL_BALIA:
		v->each = cc_balia(&p.all, rate, window);
		v->lost = cc_balia_threshold(&p.all, rate, window);
		break;
	case CONTROL_VEGAS:
		if (r.rtt && r.base && r.base <= r.rtt)
			cc_vegas(&r);
		break;
	case CONTROL_WVEGAS:
		if (r.rtt && r.base && r.base <= r.rtt && p.all.sum)
			cc_wvegas(&r, cc_share(rate, p.all.sum));
		break;
	}
	v->window_out = r.window;
	v->threshold_out = r.threshold;
	v->target_out = r.target;
	v->queue_out = r.queue;
	v->slow_start = r.slow_start;
	return 0;
}

SEC("syscall")
int run(void *ctx __attribute__((unused)))
{
	bpf_loop(MAX_VECTORS, compute, 0, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
