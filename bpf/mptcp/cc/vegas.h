/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Rounds of a round-trip time with their minima, for the controls that compare delays. */
#ifndef TABANE_VEGAS_H
#define TABANE_VEGAS_H

#include "congestion.h"

SEC("struct_ops")
int pkts_acked(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	const struct ack_sample *sample = (const struct ack_sample *)ctx[1];
	struct state *s = state_of(tp);
	__s32 rtt = sample->rtt_us;

	if (rtt <= 0)
		return 0;
	if (!s->vegas.base || (__u32)rtt < s->vegas.base)
		s->vegas.base = rtt;
	if (!s->vegas.samples || (__u32)rtt < s->vegas.least)
		s->vegas.least = rtt;
	s->vegas.samples++;
	return 0;
}

static __always_inline void begin_round(struct tcp_sock *tp)
{
	struct state *s = state_of(tp);

	s->vegas.started = 1;
	s->vegas.round = tp->snd_nxt;
	s->vegas.samples = 0;
}

/*
 * The first part of cong_avoid: outside of the end of a round only slow start goes on, and a round with
 * few samples is NewReno's. It reports whether r is to be decided.
 */
static __always_inline _Bool end_round(struct tcp_sock *tp, __u32 ack, __u32 acked, struct cc_round *r)
{
	struct state *s = state_of(tp);
	__u32 samples = s->vegas.samples;

	if (!s->vegas.started)
		begin_round(tp);
	if ((__s32)(ack - s->vegas.round) <= 0) {
		if (tp->snd_cwnd < tp->snd_ssthresh && window_limits(tp))
			tcp_slow_start(tp, acked);
		return 0;
	}
	r->window = tp->snd_cwnd;
	r->threshold = tp->snd_ssthresh;
	r->base = s->vegas.base;
	r->rtt = s->vegas.least;
	r->target = s->vegas.target;
	r->queue = s->vegas.queue;
	r->limited = window_limits(tp);
	begin_round(tp);
	if (samples < CC_VEGAS_SAMPLES || !r->base || r->rtt < r->base) {
		acked = avoid(tp, acked);
		if (acked)
			grow(tp, cc_newreno(tp->snd_cwnd), acked);
		return 0;
	}
	return 1;
}

/* Applies what was decided. */
static __always_inline void apply(struct tcp_sock *tp, const struct cc_round *r, __u32 acked)
{
	struct state *s = state_of(tp);

	if (r->slow_start) {
		tcp_slow_start(tp, acked);
		return;
	}
	s->each = ((__s64)r->window - (__s64)tp->snd_cwnd) * (__s64)cc_newreno(tp->snd_cwnd);
	s->vegas.target = r->target;
	s->vegas.queue = r->queue;
	tp->snd_cwnd = cc_min(r->window, tp->snd_cwnd_clamp);
	tp->snd_ssthresh = r->threshold;
}

SEC("struct_ops")
int ssthresh(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];

	/* The samples of this round are outdated after recovery. */
	state_of(tp)->vegas.started = 0;
	return threshold(tp, cc_half(tp->snd_cwnd, CC_LEAST));
}

#endif
