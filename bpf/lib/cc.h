/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Arithmetic of congestion controls of TCP and MPTCP: increases and decreases of the congestion
 * window, in integers.
 *
 * It has no maps and reads no socket. internal/mptcp/cc is the same in floats, with the formulas and their
 * sources; a test compares the two in the kernel. Windows are in whole segments, increases in
 * 2^-32 segments for each segment acknowledged, and smoothed round-trip times in 1/8 us, as in the
 * kernel's tcp_sock.srtt_us.
 */
#ifndef TABANE_CC_H
#define TABANE_CC_H

#include "bpf.h"

/* One segment, and one as a share. */
#define CC_ONE (1ULL << 32)

enum {
	CC_LEAST = 2,                /* of ssthresh after a loss (RFC 5681, equation 4) */
	CC_LEAST_COUPLED = 1,        /* the same for one of several subflows of OLIA and BALIA */
	CC_MOST = (1 << 17) - 1,     /* of a window; it bounds a rate to 2^49 */
	CC_LONGEST = (1 << 24) - 1,  /* of a round-trip time in 1/8 us: 2 s */
	CC_INFINITE = 0x7fffffff,    /* TCP_INFINITE_SSTHRESH: no loss yet */
};

/*
 * All bits if a < b, else none, for numbers below 2^63. Comparisons in walks over subflows are made
 * without branches: in a loop the verifier does not join paths whose numbers have other ranges, so that
 * each branch would double its work.
 */
static __always_inline __u64 cc_less(__u64 a, __u64 b)
{
	__s64 mask = (__s64)(a - b) >> 63;

	asm("" : "+r"(mask)); /* or the compiler makes it a branch again */
	return mask;
}

/* a where the mask has all bits, b where it has none. */
static __always_inline __u64 cc_select(__u64 mask, __u64 a, __u64 b)
{
	return b ^ ((a ^ b) & mask);
}

static __always_inline __u64 cc_min(__u64 a, __u64 b)
{
	return cc_select(cc_less(a, b), a, b);
}

static __always_inline __u64 cc_max(__u64 a, __u64 b)
{
	return cc_select(cc_less(a, b), b, a);
}

/* 1 if a == b, else 0. */
static __always_inline __u32 cc_equal(__u64 a, __u64 b)
{
	return ~(cc_less(a, b) | cc_less(b, a)) & 1;
}

/* ssthresh after a loss where half of the window remains. */
static __always_inline __u32 cc_half(__u32 window, __u32 least)
{
	return cc_max(window >> 1, least);
}

/* What a coupled control knows of the subflows of a connection. Rates are windows / SRTT. */
struct cc_shares {
	__u64 sum;           /* of all rates */
	__u64 fastest;       /* the largest rate */
	__u64 steepest;      /* the largest window / SRTT^2 ... */
	__u64 steepest_rate; /* ... and the rate and the SRTT of that subflow */
	__u32 steepest_srtt;
	__u32 flows;
};

/* The rate in 2^-32 segments per microsecond. srtt must not be 0. */
static __always_inline __u64 cc_rate(__u32 window, __u32 srtt)
{
	return (cc_min(window, CC_MOST) << 35) / cc_max(cc_min(srtt, CC_LONGEST), 8);
}

/* Adds a subflow that takes part in the coupling: it is established and has an SRTT. */
static __always_inline void cc_add(struct cc_shares *all, __u32 window, __u32 srtt)
{
	__u64 rate, steep, steeper;

	srtt = cc_max(cc_min(srtt, CC_LONGEST), 8);
	rate = cc_rate(window, srtt);
	steep = (rate << 15) / srtt;
	all->flows++;
	all->sum += rate;
	all->fastest = cc_max(all->fastest, rate);
	steeper = cc_less(all->steepest, steep);
	all->steepest = cc_select(steeper, steep, all->steepest);
	all->steepest_rate = cc_select(steeper, rate, all->steepest_rate);
	all->steepest_srtt = cc_select(steeper, srtt, all->steepest_srtt);
}

/* part / whole as a share, for part <= 2^50 and 0 < whole < 2^53. */
static __always_inline __u64 cc_share(__u64 part, __u64 whole)
{
	if (whole < 1ULL << 31)
		return (part << 32) / whole;
	return (part << 14) / (whole >> 18);
}

/*
 * rate / (srtt sum^2), the increase that coupled controls have in common. It is the rate's share
 * of the sum, divided by what all rates together have in flight in this round-trip time.
 */
static __always_inline __u64 cc_coupled(__u64 rate, __u32 srtt, __u64 sum)
{
	__u64 share = cc_share(rate, sum), flight;

	srtt = cc_max(cc_min(srtt, CC_LONGEST), 8);
	/* In 2^-16 segments. */
	if (sum < 1ULL << 40)
		flight = (sum * srtt) >> 19;
	else
		flight = ((sum >> 16) * srtt) >> 3;
	if (share < 1ULL << 44)
		share <<= 16;
	return share / cc_max(flight, 1);
}

/* NewReno (RFC 5681, section 3.1): one segment for each window. */
static __always_inline __u64 cc_newreno(__u32 window)
{
	return CC_ONE / cc_max(window, 1);
}

/* LIA (RFC 6356, equations 1 and 2). */
static __always_inline __u64 cc_lia(const struct cc_shares *all, __u32 window)
{
	if (all->flows < 2)
		return cc_newreno(window);
	return cc_min(cc_newreno(window), cc_coupled(all->steepest_rate, all->steepest_srtt, all->sum));
}

/* BALIA's increase of a subflow with a rate (Peng et al. 2016). */
static __always_inline __u64 cc_balia(const struct cc_shares *all, __u64 rate, __u32 window)
{
	__u64 own, fastest;

	if (all->flows < 2 || !all->sum)
		return cc_newreno(window);
	own = cc_share(rate, all->sum);
	fastest = cc_share(all->fastest, all->sum);
	/* (x + max) (4 x + max) / (10 w sum^2), each factor in 2^-24. */
	return ((((own + fastest) >> 8) * ((4 * own + fastest) >> 8)) >> 16) / (10 * cc_max(window, 1));
}

/* ssthresh after a loss with BALIA: between a half of the window on the fastest path and a quarter. */
static __always_inline __u32 cc_balia_threshold(const struct cc_shares *all, __u64 rate, __u32 window)
{
	__u64 cut = CC_ONE / 2;

	if (all->flows < 2)
		return cc_half(window, CC_LEAST);
	if (all->fastest >= rate + rate / 2)
		cut = CC_ONE / 4 * 3;
	else if (all->fastest > rate && rate)
		cut = cc_share(all->fastest, rate) / 2;
	window = cc_min(window, CC_MOST);
	return cc_max((window * (CC_ONE - cut)) >> 32, CC_LEAST_COUPLED);
}

/*
 * What OLIA compares (Khalili et al. 2012): the largest window, and the best l / rtt^2, where l is the
 * segments delivered between losses. Quotients are compared without dividing.
 */
struct cc_olia {
	__u64 best, best_square; /* l and rtt^2, in us^2 */
	__u32 largest;
	__u32 large, good;       /* subflows with the largest window; others that are best */
};

enum {
	CC_OLIA_MOST = (1 << 23) - 1,    /* of l */
	CC_OLIA_LONGEST = 1 << 20,       /* of a round-trip time in us */
};

/* l of a subflow: the larger of what was delivered between the last two losses and since the last. */
static __always_inline __u64 cc_olia_delivered(__u32 delivered, __u32 loss, __u32 previous)
{
	return cc_min(cc_max(delivered - loss, loss - previous), CC_OLIA_MOST);
}

static __always_inline __u64 cc_olia_square(__u32 srtt)
{
	__u64 us = cc_max(cc_min(srtt >> 3, CC_OLIA_LONGEST), 1);

	return us * us;
}

/* First over all subflows. best_square starts as 1. */
static __always_inline void cc_olia_compare(struct cc_olia *o, __u32 window, __u64 l, __u32 srtt)
{
	__u64 square = cc_olia_square(srtt), better;

	o->largest = cc_max(o->largest, window);
	better = cc_less(o->best * square, l * o->best_square);
	o->best = cc_select(better, l, o->best);
	o->best_square = cc_select(better, square, o->best_square);
}

static __always_inline __u32 cc_olia_best(const struct cc_olia *o, __u64 l, __u32 srtt)
{
	return cc_equal(l * o->best_square, o->best * cc_olia_square(srtt));
}

/* Then again over all. */
static __always_inline void cc_olia_count(struct cc_olia *o, __u32 window, __u64 l, __u32 srtt)
{
	__u32 large = cc_equal(window, o->largest);

	o->large += large;
	o->good += cc_olia_best(o, l, srtt) & ~large;
}

/* The increase of a subflow, which may be negative. */
static __always_inline __s64 cc_olia(const struct cc_shares *all, const struct cc_olia *o, __u32 window, __u64 l, __u32 srtt)
{
	__u64 moved = 0, rate = cc_rate(window, srtt), each;

	if (all->flows < 2 || !all->sum)
		return cc_newreno(window);
	each = cc_coupled(rate, srtt, all->sum);
	if (!o->good)
		return each;
	if (window == o->largest) {
		moved = CC_ONE / (all->flows * cc_max(o->large, 1));
		return each - moved / cc_max(window, 1);
	}
	if (cc_olia_best(o, l, srtt))
		moved = CC_ONE / (all->flows * o->good);
	return each + moved / cc_max(window, 1);
}

/* Bounds on the segments in queues: Vegas, its slow start, and wVegas (Cao et al. 2012). */
enum {
	CC_VEGAS_LOW = 2,
	CC_VEGAS_HIGH = 4,
	CC_VEGAS_SLOW = 1,
	CC_VEGAS_SAMPLES = 3,
	CC_WVEGAS_TOTAL = 10,  /* of all subflows of a connection */
	CC_WVEGAS_LEAST = 2,   /* of one of them */
};

/* What a round of Vegas or wVegas decides about. Times are in us; 0 < base <= rtt. */
struct cc_round {
	__u32 window, threshold;
	__u32 base, rtt;
	__u32 target;     /* wVegas: segments to keep in queues */
	__u32 queue;      /* wVegas: the least queueing delay, 0 when unknown */
	_Bool limited;    /* the window was the limit */
	_Bool slow_start; /* set when slow start goes on */
};

/* Ends slow start when more than a segment is in queues. It reports whether the round is done. */
static __always_inline _Bool cc_vegas_slow(struct cc_round *r)
{
	__u64 window;

	if (r->window >= r->threshold)
		return 0;
	if ((__u64)r->window * (r->rtt - r->base) > (__u64)CC_VEGAS_SLOW * r->base) {
		/* The window that brings the actual rate without queues, and one more. */
		window = (__u64)r->window * r->base / r->rtt + 1;
		r->window = cc_min(r->window, window);
		r->threshold = cc_min(r->threshold, r->window);
	} else {
		r->slow_start = r->limited;
	}
	return 1;
}

static __always_inline void cc_vegas_shrink(struct cc_round *r)
{
	r->window = cc_max(r->window, CC_LEAST + 1) - 1;
	r->threshold = cc_min(r->threshold, r->window);
}

static __always_inline void cc_vegas(struct cc_round *r)
{
	__u64 queued = (__u64)r->window * (r->rtt - r->base);

	if (!cc_vegas_slow(r)) {
		if (queued > (__u64)CC_VEGAS_HIGH * r->base)
			cc_vegas_shrink(r);
		else if (queued < (__u64)CC_VEGAS_LOW * r->base && r->limited)
			r->window++;
	}
	r->window = cc_max(r->window, CC_LEAST);
}

/* share is the subflow's share of the rate of its connection. */
static __always_inline void cc_wvegas(struct cc_round *r, __u64 share)
{
	__u64 queued = (__u64)r->window * (r->rtt - r->base);
	__u32 delay = r->rtt - r->base;

	if (!cc_vegas_slow(r)) {
		/* The target, in 2^-8 segments, follows the share when it is reached. */
		if (queued << 8 >= (__u64)r->target * r->rtt)
			r->target = cc_max((CC_WVEGAS_TOTAL * share) >> 24, CC_WVEGAS_LEAST << 8);
		if (queued << 8 > (__u64)r->target * r->rtt)
			cc_vegas_shrink(r);
		else if (queued << 8 < (__u64)r->target * r->rtt && r->limited)
			r->window++;
		/* Drain queues that have doubled, so that base is measured again. */
		if (!r->queue || delay < r->queue)
			r->queue = delay;
		if (delay >= 2 * (__u64)r->queue && delay) {
			r->window = (__u64)r->window * r->base / (2 * (__u64)r->rtt);
			r->queue = 0;
		}
	}
	r->window = cc_max(r->window, CC_LEAST);
}

/*
 * Adds the increase each for every segment of an acknowledgment to a window and to its fraction, in
 * 2^-32 segments, for one window of segments at most. It returns the new window.
 */
static __always_inline __u32 cc_grow(__u32 window, __s64 *fraction, __s64 each, __u32 segments)
{
	segments = cc_min(cc_min(segments, window), CC_MOST);
	*fraction += each * segments;
	window += *fraction >> 32;
	*fraction &= CC_ONE - 1;
	if ((__s32)window < 1) {
		*fraction = 0;
		return 1;
	}
	return window;
}

/* Bounds of unsent data, in bytes. */
enum {
	CC_LOWAT_FIRST = 16 << 10, /* before the first round-trip time */
	CC_LOWAT_LEAST = 4 << 10,
	CC_LOWAT_MOST = 1 << 30,
	CC_LOWAT_TIME = 20000,     /* us of the rate */
	CC_LOWAT_FAST = 1000000,   /* in that time: 400 Mbit/s */
	CC_LEAD_TRIPS = 3,         /* round trips of a longer path */
	CC_LEAD_RATE = 16,         /* the part of the rate that its rate is at least */
	CC_LEAD_MOST = 1000000,    /* us */
};

/*
 * How much longer the round-trip time of another subflow is without a queue, in us, whose rate (cc_rate) is
 * worth it: for so long data of this one may wait in its send buffer. The scheduler gives data to the subflow
 * that needs the least time for what it has, and to none if that one accepts no more, so that a long path
 * would be idle for most of a round trip. While its window grows, the scheduler's mean of its rate is a third
 * of it; in slow start (a mask as of cc_less) its rate is not known, and grows only if it is given enough.
 */
static __always_inline __u32 cc_lead(__u64 rate, __u32 srtt, __u64 other_rate, __u32 other_least, __u64 slow_start)
{
	__u64 least = cc_min(CC_LEAD_TRIPS * (__u64)other_least, CC_LEAD_MOST + (srtt >> 3));

	return cc_select(cc_less(other_rate, rate / CC_LEAD_RATE) & ~slow_start, 0, cc_max(least, srtt >> 3) - (srtt >> 3));
}

/* The bytes that a subflow sends in a time in us. srtt must not be 0. */
static __always_inline __u64 cc_sends(__u32 window, __u32 mss, __u32 srtt, __u64 time)
{
	return cc_min(window, CC_MOST) * cc_min(mss, 1 << 16) * 8 * time / srtt;
}

/*
 * Whether a subflow is so fast that what the scheduler gives it at a time is sent within a millisecond or so.
 * Then bounds gain nothing, and a larger send buffer may all be waiting for a receiver that is slower.
 */
static __always_inline _Bool cc_fast(__u32 window, __u32 mss, __u32 srtt)
{
	return srtt && cc_sends(window, mss, srtt, CC_LOWAT_TIME) > CC_LOWAT_FAST;
}

/* How many bytes a subflow may have in its send buffer unsent. */
static __always_inline __u32 cc_lowat(__u32 window, __u32 mss, __u32 srtt, __u32 lead)
{
	if (!srtt)
		return CC_LOWAT_FIRST;
	if (cc_fast(window, mss, srtt))
		return CC_LOWAT_MOST;
	return cc_min(cc_max(cc_sends(window, mss, srtt, CC_LOWAT_TIME + lead), CC_LOWAT_LEAST), CC_LOWAT_MOST);
}

/* The send buffers of subflows whose unsent data is bounded. */
enum {
	CC_BUFFER_WINDOWS = 6,
	CC_BUFFER_LEAST = 10,       /* windows count as at least this (TCP_INIT_CWND) */
	CC_BUFFER_MSS = 1 << 16,
	CC_BUFFER_HEAD = 256 + 320, /* MAX_TCP_HEADER and struct skb_shared_info, before rounding */
	CC_BUFFER_BODY = 256,       /* struct sk_buff */
};

/* The memory of a segment in a buffer of its own (tcp_sndbuf_expand). */
static __always_inline __u32 cc_memory(__u32 mss)
{
	__u32 size = cc_min(mss, CC_BUFFER_MSS) + CC_BUFFER_HEAD - 1;

	size |= size >> 1;
	size |= size >> 2;
	size |= size >> 4;
	size |= size >> 8;
	size |= size >> 16;
	return size + 1 + CC_BUFFER_BODY;
}

/* The size of a send buffer with which fast subflows can send while the oldest data is under way on a slow one. */
static __always_inline __u32 cc_buffer(__u32 window, __u32 mss)
{
	return cc_min(CC_BUFFER_WINDOWS * cc_max(window, CC_BUFFER_LEAST) * cc_memory(mss), CC_LOWAT_MOST);
}

/* What the kernel may have taken from a program that it skipped. */
struct cc_contained {
	__u32 window, threshold;
	__u32 prior;   /* the window before the last loss */
	__u32 last;    /* the window at the last acknowledgment, 0 at the first */
	_Bool reduced; /* in the states CWR, Recovery or Loss */
};

/* Replaces impossible values, which may be any. It reports whether there were some. */
static __always_inline _Bool cc_contain(struct cc_contained *c)
{
	/* The kernel took the window before the loss when that was already one of these values. */
	__u32 prior = cc_max(c->prior > CC_MOST ? c->last : c->prior, CC_LEAST), most;
	_Bool repaired = 0;

	/* No control here leaves more than the window after a loss, nor nothing at all. */
	if (c->threshold > CC_INFINITE || !c->threshold ||
	    (c->reduced && c->threshold > prior && c->threshold != CC_INFINITE)) {
		c->threshold = cc_half(cc_min(prior, CC_MOST), CC_LEAST);
		if (c->window > c->threshold)
			c->window = c->threshold;
		repaired = 1;
	}
	/* Slow start doubles it, undo returns to the window before a loss. */
	most = 2 * cc_max(cc_min(c->last, CC_MOST), cc_min(prior, CC_MOST)) + 64;
	if (c->last && (c->window > most || !c->window)) {
		c->window = cc_max(cc_min(c->last, CC_MOST), 1);
		repaired = 1;
	}
	return repaired;
}

#endif
