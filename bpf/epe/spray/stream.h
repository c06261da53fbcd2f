/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The path of a segment of TCP. */
#ifndef TABANE_SPRAY_STREAM_H
#define TABANE_SPRAY_STREAM_H

#include "memory.h"
#include "segment.h"
#include "tables.h"

static __always_inline struct connection *find(const struct ends *e, __u32 at)
{
	struct connection *c;

	at &= CONNECTIONS - 1;
	c = bpf_map_lookup_elem(&connections, &at);

	if (c && same(&c->ends, e))
		return c;
	at ^= 1;
	c = bpf_map_lookup_elem(&connections, &at);
	return c && same(&c->ends, e) ? c : 0;
}

/* Has the next data begin a connection: the one before had the same addresses and ports. */
static __always_inline void forget(const struct segment *s)
{
	struct connection *c = find(&s->ends, place(&s->ends));

	if (c)
		c->bytes = 0;
}

/* Begins a connection in one of its two places, if there is an idle one. */
static __always_inline struct connection *begin(struct __sk_buff *skb, const struct segment *s, const struct plan *plan, __u32 at, __u32 now)
{
	struct connection *c;

	at &= CONNECTIONS - 1;
	c = bpf_map_lookup_elem(&connections, &at);
	if (!c || (c->bytes && !idle(c->used, now))) {
		at ^= 1;
		c = bpf_map_lookup_elem(&connections, &at);
		if (!c || (c->bytes && !idle(c->used, now)))
			return 0;
	}
	__builtin_memcpy(&c->ends, &s->ends, sizeof(c->ends));
	c->bytes = 0;
	c->next = s->sequence;
	c->head = c->tail = c->resumed = 0;
	c->home = plan->home;
	c->rule = plan->rule;
	c->period = now;
	c->heard = c->old = c->died = c->outage = 0;
	c->waits = c->before = c->common = c->former = c->alive = 0;
	c->began = now;
	c->stamp = timestamp(skb, s, 0);
	c->first = c->back = 0;
	__builtin_memset(&c->trial, 0, sizeof(c->trial));
	__builtin_memset(&c->watch, 0, sizeof(c->watch));
	c->watch.since = now;
	__builtin_memset(c->path, 0, sizeof(c->path));
	__builtin_memset(c->counted, 0, sizeof(c->counted));
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		c->path[i].window = SPRAY_FIRST_WINDOW;
	return c;
}

/* The index of the first record from low on whose end is at or after a sequence number. */
static __always_inline __u32 search(const struct connection *c, __u32 low, __u32 sequence)
{
	__u32 high = c->head;

	if (high - low > RECORDS)
		low = high - RECORDS;
	for (int i = 0; i < 10 && low != high; i++) {
		__u32 middle = low + (high - low) / 2;

		if (spray_later(sequence, c->records[middle & (RECORDS - 1)].end))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Whether no more than one segment is in flight, whose acknowledgment may be delayed. */
static __always_inline int waits_for_data(const struct connection *c)
{
	__u32 flight = 0;

	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		flight += c->path[i].sent - c->path[i].gone;
	return flight <= SPRAY_DELAYED;
}

/* Whether what home carries is overdue while what others carry arrives. */
static __always_inline int silent(const struct connection *c)
{
	const struct spray_path *home = &c->path[SPRAY_PATH(c->home)];
	int silent = 0;

	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		silent |= i != c->home && c->path[i].gone && spray_stalled(home, &c->path[i], 1);
	return silent;
}

/* Applies that nothing arrived over any path for a while: that says nothing of one of them. */
static __always_inline void interrupted(struct connection *c, __u32 now)
{
	c->outage = now ? now : 1;
	c->watch.since = now;
	c->watch.worse = 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		c->path[i].progress = now;
}

/* Notes that the segment is sent again; home it goes, or over another path if home is dead. */
__attribute__((noinline)) int retransmit(struct connection *c, const struct segment *s, const struct plan *plan, __u32 now)
{
	__u32 at, best = SPRAY_PATHS;
	struct spray_path *home;
	struct record *r;

	if (!c || !s || !plan)
		return 0;
	at = search(c, c->tail, s->sequence + 1);
	r = &c->records[at & (RECORDS - 1)];
	home = &c->path[SPRAY_PATH(c->home)];
	if (at - c->tail < c->head - c->tail && !r->arrived && !r->retransmitted)
		r->retransmitted = now ? now : 1;
	if (c->trial.need) {
		end_trial(c);
		if (!(plan->may >> SPRAY_PATH(c->home) & 1))
			c->home = plan->home;
		home = &c->path[SPRAY_PATH(c->home)];
	}
	if (c->waits && spray_later(now - c->waits, spray_answered(home)))
		c->common = 1;
	/* Where acknowledgments are never seen, they arrive elsewhere, and silence says nothing. */
	if (!c->heard || (!spray_dead(home, now) && !silent(c)))
		return c->home;
	for (__u32 i = 1; i < SPRAY_PATHS; i++) {
		__u32 other = SPRAY_PATH(c->home + i);

		if (plan->may >> other & 1 &&
		    (best == SPRAY_PATHS || (c->path[other].gone && spray_later(c->path[other].progress, c->path[SPRAY_PATH(best)].progress))))
			best = other;
	}
	if (best == SPRAY_PATHS)
		return c->home;
	if (spray_outage(c->path, c->home, now))
		interrupted(c, now);
	if (!c->waits) {
		c->waits = now ? now : 1;
		c->before = c->home;
	}
	c->former = c->home;
	c->alive = home->progress ? home->progress : 1;
	home->shortest = 0; /* it is measured again */
	c->died = now ? now : 1;
	home->progress = now;
	best = SPRAY_PATH(best);
	c->path[best].progress = now;
	c->path[best].paused = 0;
	c->home = best;
	c->first = 0;
	return best;
}

/* What is chosen by for a segment with data. */
struct choice {
	__u32 now;
	__u32 size;
	__u32 arrival; /* the earliest that is expected so far */
	__u32 quiet;   /* home is silent */
	__u32 harm;    /* other paths harm what home carries */
};

enum {
	NOT_CHOSEN,
	CHOSEN,
	LEFT, /* the path is to be left */
};

/* Whether a path other than home is chosen in place of those before it. */
__attribute__((noinline)) int consider(struct connection *c, __u32 i, struct choice *by)
{
	struct spray_path *p, *home;

	if (!c || !by)
		return NOT_CHOSEN;
	p = &c->path[SPRAY_PATH(i)];
	home = &c->path[SPRAY_PATH(c->home)];
	if (p->paused) {
		if (p->until - by->now <= SPRAY_MAX_PAUSE)
			return NOT_CHOSEN;
		p->paused = 0;
	}
	if (spray_stalled(p, home, 2) || (p->packets && (by->harm || spray_harms(p))))
		return LEFT;
	/* In slow start, and where home has no queue, others gain nothing that a loss there is worth. */
	if (!by->quiet && (c->bytes < SPRAY_CAREFUL || !spray_queued(home)))
		return NOT_CHOSEN;
	return spray_better(p, home, by->size, &by->arrival) ? CHOSEN : NOT_CHOSEN;
}

/*
 * The path that has brought most is home, where data on home is overtaken: the others are left then, and
 * it may be home that is late. One that was dead is not.
 */
__attribute__((noinline)) int settle(struct connection *c, const struct plan *plan)
{
	__u32 most;

	if (!c || !plan)
		return 0;
	most = SPRAY_PATH(c->home);
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		if (plan->may >> i & 1 && c->path[i].shortest && c->path[i].gone > c->path[SPRAY_PATH(most)].gone)
			most = i;
	if (most == c->home)
		return 0;
	if (c->home == plan->home)
		c->first = c->path[SPRAY_PATH(c->home)].rate;
	c->home = most;
	c->alive = 0;
	c->trial.need = 0;
	c->path[SPRAY_PATH(most)].paused = 0;
	return 0;
}

/* The path over which new data arrives first, and leaves those that harm. */
__attribute__((noinline)) int first(struct connection *c, const struct segment *s, const struct plan *plan, __u32 now)
{
	struct choice by = { .now = now };
	__u32 all = 0, chosen;
	struct spray_path *home;

	if (!c || !s || !plan)
		return 0;
	chosen = c->home;
	home = &c->path[SPRAY_PATH(chosen)];
	if (!home->shortest)
		return chosen;
	by.size = s->length;
	by.quiet = silent(c);
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		all += c->path[i].gone;
	/* What overtakes data on home has that retransmitted. */
	if (home->late > SPRAY_LATE + home->packets / 256) {
		home->late = home->packets = 0;
		by.harm = 1;
		settle(c, plan);
		chosen = c->home;
		home = &c->path[SPRAY_PATH(chosen)];
	}
	by.harm |= spray_worse(&c->watch, home, now, all, all - home->gone);
	by.arrival = by.quiet ? 0xffffffff : spray_arrival(home, by.size);
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		int what;

		if (i == c->home || !(plan->may >> i & 1))
			continue;
		what = consider(c, i, &by);
		if (what == CHOSEN)
			chosen = i;
		else if (what == LEFT)
			leave(c, s, i, plan->mark[i], now);
	}
	return chosen;
}

/* Counts a segment as sent over a path, and has a record say so. */
static __always_inline void write(struct connection *c, __u32 at, __u32 path, __u32 now, __u32 size)
{
	struct record *r = &c->records[at & (RECORDS - 1)];
	struct spray_path *p = &c->path[SPRAY_PATH(path)];

	spray_send(p, now, size);
	r->end = c->next;
	r->length = size;
	r->sent = now;
	r->acknowledged = p->gone;
	r->retransmitted = 0;
	r->path = path;
	r->arrived = 0;
	r->lost = SPRAY_NONE;
}

/*
 * Sends new data home while all records are used. The last one grows, or is used again once it has
 * arrived: what is not counted waits on home all the same, so that what is sent there later would seem
 * to be slow.
 */
__attribute__((noinline)) int send_home(struct connection *c, __u32 now, __u32 size)
{
	struct record *last;

	if (!c)
		return 0;
	last = &c->records[(c->head - 1) & (RECORDS - 1)];
	if (c->head - c->tail < RECORDS) {
		write(c, c->head, c->home, now, size);
		c->head++;
	} else if (last->arrived) {
		write(c, c->head - 1, c->home, now, size);
	} else if (last->path == c->home) {
		last->end = c->next;
		last->length += size;
		spray_send(&c->path[SPRAY_PATH(c->home)], now, size);
	}
	return c->home;
}

/* The path of a segment with data. */
__attribute__((noinline)) int choose(struct __sk_buff *skb, const struct segment *s, const struct plan *plan)
{
	__u32 now = bpf_ktime_get_ns() / 1000, at, size, chosen;
	struct connection *c;

	if (!s || !plan)
		return 0;
	at = place(&s->ends);
	size = s->length;
	c = find(&s->ends, at);
	if (!c || !c->bytes || c->rule != plan->rule) {
		if (!c || !c->bytes || idle(c->used, now))
			c = begin(skb, s, plan, at, now);
		else
			c = 0;
		if (!c)
			return plan->home;
	}
	c->used = now;
	if (!(plan->may >> SPRAY_PATH(c->home) & 1))
		c->home = plan->home;
	if (spray_later(c->next, s->sequence)) {
		return retransmit(c, s, plan, now);
	}
	if (!c->bytes)
		recall(c, s, plan, now);
	if (waits_for_data(c))
		c->resumed = c->tail;
	if (!(c->head % LEARNED)) {
		if (c->head == LEARNED && !c->heard)
			__sync_fetch_and_add(&unheard, 1);
		remember(c, s, plan);
	}
	if (c->bytes < 0x40000000)
		c->bytes += size;
	if (c->next != s->sequence) /* what is between was sent while the route had no program */
		c->stamp = timestamp(skb, s, 0);
	c->next = s->sequence + size;
	if (c->head - c->tail >= RECORDS - 1)
		return send_home(c, now, size);
	/* Home is not the first path because it was faster. Losses can make it slower than that. */
	if (c->first && c->bytes < 0x40000000 && spray_loses(&c->path[SPRAY_PATH(c->home)]) &&
	    (__u64)c->bytes * 1000 < (__u64)(now - c->began) * c->first) {
		leave(c, s, c->home, plan->mark[SPRAY_PATH(c->home)], now);
		c->home = plan->home;
		c->first = c->trial.need = 0;
		c->path[SPRAY_PATH(c->home)].paused = 0;
	}
	if (spray_later(now - c->period, SPRAY_ROUNDS)) {
		c->period = now;
		if (now - c->died > SPRAY_ROUNDS)
			c->died = 0;
		if (now - c->outage > SPRAY_ROUNDS)
			c->outage = 0;
		for (__u32 i = 0; i < SPRAY_PATHS; i++) {
			struct spray_path *p = &c->path[i];

			if (p->shortest) {
				p->shortest2 = p->shortest;
				p->shortest = p->smooth;
			}
		}
	}
	chosen = first(c, s, plan, now);
	write(c, c->head, chosen, now, size);
	c->head++;
	return chosen;
}

#endif
