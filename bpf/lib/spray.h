/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which path the next packet of a TCP connection takes, from what its acknowledgments say of each.
 *
 * A packet takes the path that it is expected to arrive first over, by what is in flight there and the
 * measured rate, so that packets arrive in order and the queues of all paths are equally long. The
 * first path, home, carries all that others do not: one that loses packets without a queue, stalls or
 * reorders is left. Times are in microseconds and wrap around, sequence numbers too.
 *
 * It has no maps.
 */
#ifndef TABANE_SPRAY_H
#define TABANE_SPRAY_H

#include "bpf.h"

#define SPRAY_PATHS 4
#define SPRAY_PATH(i) ((i) & (SPRAY_PATHS - 1))

enum {
	SPRAY_FIRST_WINDOW = 8 * 1024, /* bytes in flight on a path at first */
	SPRAY_MOST_WINDOW = 1 << 30,
	SPRAY_STALL = 10000,	       /* longer than 1.5 round trips without an acknowledgment */
	SPRAY_ROUNDS = 10000000,       /* the shortest round trip is that of the last 10 to 20 s */
	/*
	 * The first pause of a path, and because of losses. Each one soon after another is twice as long,
	 * and connections at once lose all that the path carries as long as it lasts.
	 */
	SPRAY_PAUSE = 3000000,
	SPRAY_LOSS_PAUSE = 15000000,
	SPRAY_AWAY = 10000000, /* how long datagrams stay away from home that failed, at first: each attempt loses some */
	SPRAY_CAREFUL = 256 << 10, /* bytes before a connection uses other paths than home: a loss in slow start costs most */
	SPRAY_MAX_PAUSE = 600000000,
	SPRAY_LATE = 6, /* events that are no reason to leave a path */
	SPRAY_WATCH = 400000, /* how long what all paths bring is counted, or 16 round trips */
	SPRAY_WORSE = 2,      /* such times below the rate of home are a reason to leave the others */
	SPRAY_DEAD = 300000, /* home of datagrams without a packet of the client: another path becomes home */
	SPRAY_ANSWERED = 100, /* bytes of a datagram that clients always answer: more than QUIC's acknowledgments have */
	SPRAY_EXPIRED = 180000, /* the same of TCP, when it sends something again: its timer expires after 200 ms at the earliest */
	SPRAY_LOSSY = 60000, /* milliseconds in which what a connection brings over a lossy home says its rate */
	SPRAY_TRAIN = 8 << 10, /* bytes after the first packet that say how fast a path is: most of what a connection begins with */
	/*
	 * Bytes per millisecond of home above which no other path is tried: fewer are faster, and what a
	 * trial loses, which ends slow start, costs more.
	 */
	SPRAY_MOST_TRIED = 3000,
	SPRAY_DELAYED = 1500, /* bytes in flight, a segment, whose acknowledgment a receiver may delay */
	SPRAY_SUSPECT = 1000000, /* so long after others were left, a third of it: home may be what failed; an answer over a path of unknown round trip */
};

/* What a connection knows of a path. */
struct spray_path {
	__u32 sent;	 /* bytes */
	__u32 gone;	 /* bytes of these that are no longer in flight */
	__u32 window;	 /* bytes in flight, at most; not that of home */
	__u32 rate;	 /* bytes per millisecond; 0: not known */
	__u32 shortest;	 /* round trip; 0: not known */
	__u32 shortest2; /* of the period before */
	__u32 smooth;	 /* round trip */
	__u32 progress;	 /* time of the last acknowledgment, or when the first byte in flight was sent */
	__u32 until;	 /* it is paused */
	__u32 paused;	 /* until is set */
	__u32 packets;	 /* since the last pause */
	__u32 late;	 /* events: data was retransmitted although it arrived */
	__u32 lost;	 /* events: it was lost */
	__u32 bare;	 /* of these, without a queue */
	__u32 event;	 /* time of the last one */
	__u32 counted;	 /* event is set */
};

static __always_inline __u32 spray_later(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

static __always_inline __u32 spray_shortest(const struct spray_path *p)
{
	return p->shortest2 && p->shortest2 < p->shortest ? p->shortest2 : p->shortest;
}

/* When the acknowledgment of a packet that is sent now is expected. */
static __always_inline __u32 spray_arrival(const struct spray_path *p, __u32 size)
{
	__u64 flight = (__u64)(p->sent - p->gone) + size, shortest = spray_shortest(p), time;

	if (!p->rate)
		return shortest;
	time = flight * 1000 / p->rate;
	if (time > 0x7fffffff)
		time = 0x7fffffff;
	return time > shortest ? time : shortest;
}

/* After how long without an acknowledgment what a path carries is overdue. */
static __always_inline __u32 spray_overdue(const struct spray_path *p)
{
	return p->smooth + p->smooth / 2 + SPRAY_STALL;
}

/*
 * Whether data in flight on a path is overdue by so many times of what is normal, while what home
 * carries arrives.
 */
static __always_inline int spray_stalled(const struct spray_path *p, const struct spray_path *home, __u32 times)
{
	__s32 since = home->progress - p->progress;

	return p->sent != p->gone && p->smooth && since > 0 && spray_later(since, times * spray_overdue(p));
}

/* Whether home is dead, when a segment is sent again: so long nothing of what it has in flight arrived. */
static __always_inline int spray_dead(const struct spray_path *home, __u32 now)
{
	__u32 overdue = spray_overdue(home);

	return home->sent != home->gone && spray_later(now - home->progress, overdue > SPRAY_EXPIRED ? overdue : SPRAY_EXPIRED);
}

/* After how long what is sent again over a path is acknowledged, if that arrives. */
static __always_inline __u32 spray_answered(const struct spray_path *p)
{
	__u32 shortest = spray_shortest(p), longest = p->smooth > shortest ? p->smooth : shortest;

	if (!longest)
		return SPRAY_SUSPECT;
	return 3 * longest > SPRAY_EXPIRED ? 3 * longest : SPRAY_EXPIRED;
}

/*
 * Whether the others that carry something are as dead as home: what failed is what they have in
 * common, such as the uplink or the client's access.
 */
static __always_inline int spray_outage(const struct spray_path *path, __u32 home, __u32 now)
{
	int dead = 0;

	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		if (i == home || path[i].sent == path[i].gone)
			continue;
		if (!spray_dead(&path[i], now))
			return 0;
		dead = 1;
	}
	return dead;
}

/*
 * Whether a packet of size bytes may go over a path other than home that is not paused. arrival is in
 * and out the earliest expected arrival so far.
 */
static __always_inline int spray_better(const struct spray_path *p, const struct spray_path *home, __u32 size, __u32 *arrival)
{
	__u32 flight = p->sent - p->gone, at = spray_arrival(p, size);

	/* One packet measures a path. */
	if (!p->shortest)
		return !flight;
	if (at >= *arrival || spray_stalled(p, home, 1) || (flight && flight + size > p->window))
		return 0;
	*arrival = at;
	return 1;
}

/* Counts a packet as sent over a path. */
static __always_inline void spray_send(struct spray_path *p, __u32 now, __u32 size)
{
	if (p->sent == p->gone)
		p->progress = now;
	p->sent += size;
	p->packets++;
}

/* Whether packets wait on a path. */
static __always_inline int spray_queued(const struct spray_path *p)
{
	__u32 shortest = spray_shortest(p);

	return p->smooth > shortest + shortest / 8 + 1000;
}

/*
 * Applies the arrival of size bytes that were sent round_trip ago, when acknowledged bytes of the path
 * had been acknowledged. likely is its rate if nothing is known of it.
 */
static __always_inline void spray_arrived(struct spray_path *p, __u32 likely, __u32 round_trip, __u32 size, __u32 acknowledged)
{
	__u32 sample;

	if (!round_trip)
		round_trip = 1;
	if (!p->smooth)
		p->smooth = round_trip;
	if (!p->rate)
		p->rate = likely;
	if (!p->shortest || round_trip < p->shortest)
		p->shortest = round_trip;
	p->smooth = p->smooth - p->smooth / 8 + round_trip / 8;
	/* It doubles with each round trip. */
	if (p->window < SPRAY_MOST_WINDOW)
		p->window += spray_queued(p) ? size / 8 : size;
	sample = (__u64)(p->gone - acknowledged) * 1000 / round_trip;
	if (sample > p->rate)
		p->rate += (sample - p->rate + 7) / (spray_queued(p) ? 8 : 4);
	else if (spray_queued(p))
		p->rate -= (p->rate - sample) / 8;
}

/* How a retransmission was counted: not as a loss, as one while packets waited, or without. */
enum spray_loss {
	SPRAY_NONE,
	SPRAY_OVERFLOW,
	SPRAY_BARE,
};

/*
 * Counts a retransmission of what a path carried: in vain if the first one arrived, or else because it
 * was lost. What happens within a round trip is one event.
 */
static __always_inline enum spray_loss spray_retransmitted(struct spray_path *p, int late, __u32 now)
{
	if (p->counted && !spray_later(now - p->event, p->smooth))
		return SPRAY_NONE;
	p->counted = 1;
	p->event = now;
	if (late) {
		p->late++;
		return SPRAY_NONE;
	}
	p->lost++;
	if (spray_queued(p))
		return SPRAY_OVERFLOW;
	p->bare++;
	return SPRAY_BARE;
}

/* Applies that what was counted as a loss was late: it has arrived after all. */
static __always_inline void spray_found(struct spray_path *p, __u32 loss)
{
	if (loss == SPRAY_NONE || !p->lost)
		return; /* it was left since */
	p->late++;
	p->lost--;
	if (loss == SPRAY_BARE)
		p->bare--;
}

/* What all paths of a connection brought since a time. */
struct spray_watch {
	__u32 since;
	__u32 all;    /* bytes that had arrived by then */
	__u32 others; /* of these, over other paths than home */
	__u32 worse;  /* times in a row */
};

/*
 * Whether all paths together have brought less than home alone can, for so long that it is no chance.
 * all and others are the bytes that have arrived so far.
 */
static __always_inline int spray_worse(struct spray_watch *w, const struct spray_path *home, __u32 now, __u32 all, __u32 others)
{
	__u32 time = now - w->since, part = all - w->all, other = others - w->others, limit = 16 * home->smooth;

	if (time < (limit > SPRAY_WATCH ? limit : SPRAY_WATCH))
		return 0;
	/* A pause of the application is none of the paths. */
	if (time < 2 * (limit > SPRAY_WATCH ? limit : SPRAY_WATCH) && other > part / 16 &&
	    (__u64)part * 1000 / time * 100 < (__u64)home->rate * 97)
		w->worse++;
	else
		w->worse = 0;
	w->since = now;
	w->all = all;
	w->others = others;
	if (w->worse < SPRAY_WORSE)
		return 0;
	w->worse = 0;
	return 1;
}

/* Whether a path loses without a queue. */
static __always_inline int spray_loses_bare(const struct spray_path *p)
{
	return p->bare > 1 + p->packets / 1024;
}

/* Whether a path loses more than one whose queue overflows. */
static __always_inline int spray_loses(const struct spray_path *p)
{
	return spray_loses_bare(p) || p->lost > 2 + p->packets / 256;
}

/*
 * What is remembered of the rate of home, which has lost without a queue since a connection began took
 * milliseconds ago: what the connection brought over it. was is remembered, which it stays after a
 * minute: that says enough, and bytes wrap.
 */
static __always_inline __u32 spray_lossy_rate(const struct spray_path *p, __u32 took, __u32 was)
{
	if (took > SPRAY_LOSSY)
		return was;
	if (!took || p->gone / took >= p->rate)
		return p->rate;
	return p->gone / took ? p->gone / took : 1;
}

/* Whether the retransmissions of a path are a reason to leave it. */
static __always_inline int spray_harms(const struct spray_path *p)
{
	return spray_loses(p) || p->late > SPRAY_LATE + p->packets / 256;
}

enum spray_verdict {
	SPRAY_GOES_ON,
	SPRAY_GAINS,
	SPRAY_LEAVES,
};

/*
 * The use of a path as home whose rate is not known, until the first packets of a connection have
 * arrived: they were sent at once, so they arrive at its rate.
 */
struct spray_trial {
	__u32 need;  /* bytes per millisecond with which it stays home; 0: no trial */
	__u32 since; /* time at which the first packet arrived; 0: none has */
	__u32 gone;  /* bytes of the path that had arrived then */
};

/* Concludes from the bytes of the path that have arrived so far. */
static __always_inline int spray_tried(struct spray_trial *t, __u32 gone, __u32 now)
{
	__u32 got = gone - t->gone;

	if (!t->since) {
		t->since = now ? now : 1;
		t->gone = gone;
		return SPRAY_GOES_ON;
	}
	if ((__u64)(now - t->since) * t->need / 1000 > (got > SPRAY_TRAIN ? got : SPRAY_TRAIN))
		return SPRAY_LEAVES;
	return got >= SPRAY_TRAIN ? SPRAY_GAINS : SPRAY_GOES_ON;
}

/*
 * A path of a flow of datagrams, whose acknowledgments cannot be read, as a queue that is served at
 * the rate that TCP measured.
 */
struct spray_queue {
	__u32 rate;  /* bytes per millisecond; 0: not known, and not used */
	__u32 delay; /* round trip; all paths have the way back in common */
	__u32 free;  /* time at which what was sent has been served */
};

enum {
	SPRAY_BACKLOG = 100000, /* what queues of flows hold at most: rates may be too low */
	SPRAY_BEGIN = 128 << 10, /* bytes before a flow of datagrams is sprayed: short ones gain nothing */
	SPRAY_AGAIN = 30000000, /* how long a flow is sprayed before home alone is measured again */
	/*
	 * Up to this backlog a byte is served for longer than its rate says, in thousandths. A sender
	 * that follows its acknowledgments never fills a queue with as much as its path carries, so
	 * that others would never be used; receivers mend packets that are late by no more.
	 */
	SPRAY_NEAR = 15000,
	SPRAY_SLOWER = 1050,
	SPRAY_PART = 50000,   /* in what is sent in so long, or 3 round trips, a path that fails is seen */
	SPRAY_MOST_SHARED = 8, /* a flow that brings less than this part of a rate is limited by its application */
	SPRAY_DOUBT = 150000, /* home alone after that, or for 6 round trips: what is lost is repaired there */
};

enum {
	SPRAY_ALONE,
	SPRAY_SPRAYED, /* and not known to gain: a sender may slow down while other paths begin */
	SPRAY_GAINING,
};

/* What the flows of datagrams to a client bring over home alone, and sprayed, in turns. */
struct spray_turns {
	__u32 state;  /* SPRAY_ALONE, SPRAY_SPRAYED or SPRAY_GAINING */
	__u32 paused; /* spraying gains nothing in this network at present */
	__u32 since;  /* start of the turn */
	__u32 window; /* start of what is counted; 0: not yet */
	__u32 bytes;  /* since */
	__u32 others; /* of these, over other paths than home */
	__u32 home;   /* rate over home alone; 0: not known */
	__u32 worse;  /* windows in a row */
	__u32 recent; /* start of the present part of a window */
	__u32 part;   /* bytes since */
	__u32 gain;   /* rate of the last window sprayed; 0: not known */
	__u32 doubt;  /* time at which a path may have failed; 0: never */
	__u32 worse_rate; /* what spraying brought, while home alone is measured once more before it ends; 0: it is not */
	__u32 share;	  /* what home alone brings at present; 0: not known */
};

/*
 * Has rates that TCP measured fit what home alone brings at present: they are shares of a time when
 * others sent more or less. What was measured beside others says little of a path that they have left.
 */
static __always_inline void spray_share(struct spray_queue *queue, __u32 home, __u32 share)
{
	__u64 was = queue[SPRAY_PATH(home)].rate, is = share;

	if (!is || !was)
		return;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		struct spray_queue *q = &queue[i];

		if (!q->rate)
			continue;
		if (is * 4 < was * 3 && is * SPRAY_MOST_SHARED >= was) {
			q->rate = q->rate * is / was;
			if (!q->rate)
				q->rate = 1;
		} else if (is * 3 > was * 4 && i != SPRAY_PATH(home)) {
			q->rate = 0;
		}
	}
}

/* How long what was sent over a path is still being served. */
static __always_inline __u32 spray_backlog(const struct spray_queue *q, __u32 now)
{
	__u32 left = q->free - now;

	return left <= 2 * SPRAY_BACKLOG ? left : 0;
}

static __always_inline __u32 spray_longest(__u32 a, __u32 b)
{
	return a > b ? a : b;
}

/* Whether home alone is used, since a path may have failed. */
static __always_inline int spray_doubted(const struct spray_turns *t, __u32 delay, __u32 now)
{
	return t->doubt && now - t->doubt < spray_longest(6 * delay, SPRAY_DOUBT);
}

/*
 * The path over which a datagram of a flow that has sent total bytes arrives first, and its place in
 * the queue there.
 */
static __always_inline __u32 spray_queue_choose(const struct spray_turns *t, struct spray_queue *queue, __u32 home, __u32 may, __u32 total, __u32 size,
						__u32 now)
{
	__u32 best = 0xffffffff, chosen = SPRAY_PATH(home), left, excess;
	int alone = t->state == SPRAY_ALONE || t->paused || total < SPRAY_BEGIN || !queue[chosen].rate ||
		    spray_doubted(t, queue[chosen].delay, now);

	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		struct spray_queue *q = &queue[i];
		__u32 at;

		if (!(may >> i & 1) || !q->rate || (alone && i != SPRAY_PATH(home)))
			continue;
		at = spray_backlog(q, now);
		at += size * (at < SPRAY_NEAR ? SPRAY_SLOWER : 1000) / q->rate + q->delay;
		if (at < best || (at == best && i == home)) {
			best = at;
			chosen = i;
		}
	}
	if (best == 0xffffffff)
		return chosen;
	left = best - queue[SPRAY_PATH(chosen)].delay;
	queue[SPRAY_PATH(chosen)].free = now + left;
	if (left <= SPRAY_BACKLOG)
		return chosen;
	excess = left - SPRAY_BACKLOG;
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		if (spray_backlog(&queue[i], now) > excess)
			queue[i].free -= excess;
		else
			queue[i].free = now;
	return chosen;
}

enum {
	SPRAY_ENDED = 1,
	SPRAY_PAUSED, /* likewise, and the sender paused in it */
};

/* Counts a datagram, and says whether a part of a window ends, and what that brought. */
static __always_inline int spray_end_part(struct spray_turns *t, __u32 delay, __u32 now, __u32 size, __u32 *rate)
{
	__u32 time = now - t->recent, part = spray_longest(3 * delay, SPRAY_PART);

	t->part += size;
	if (time < part)
		return 0;
	*rate = t->part / (time / 1000);
	t->recent = now ? now : 1;
	t->part = 0;
	return time < 2 * part ? SPRAY_ENDED : SPRAY_PAUSED;
}

/* Doubts the paths of a flow that gained, and now brings less than half of what it brought. */
static __always_inline void spray_doubt(struct spray_turns *t, __u32 delay, __u32 now, __u32 size)
{
	__u32 rate = 0;

	if (spray_end_part(t, delay, now, size, &rate) && t->window && t->others > t->bytes / 16 && !spray_doubted(t, delay, now) &&
	    (__u64)rate * 2 < t->gain)
		t->doubt = now ? now : 1;
}

/*
 * Whether a flow brings less than 3/4 of what home alone brought right before: its sender takes packets
 * that are a little late for lost, and each round trip of that makes its window smaller.
 */
static __always_inline int spray_fell(struct spray_turns *t, __u32 delay, __u32 now, __u32 size)
{
	__u32 rate = 0;

	return spray_end_part(t, delay, now, size, &rate) == SPRAY_ENDED && (__u64)rate * 4 < (__u64)t->home * 3;
}

/* Counts a datagram, and concludes from the turns whether spraying gains. */
static __always_inline int spray_turn(struct spray_turns *t, __u32 delay, __u32 now, __u32 size, int other)
{
	__u32 limit = 16 * delay > SPRAY_WATCH ? 16 * delay : SPRAY_WATCH, time, rate;
	int bulk;

	if (t->state == SPRAY_SPRAYED && t->recent && !t->paused && spray_fell(t, delay, now, size))
		return SPRAY_LEAVES;
	if (!t->window) {
		if (now - t->since < limit / 2)
			return SPRAY_GOES_ON;
		t->window = now ? now : 1;
		t->bytes = t->others = 0;
	}
	t->bytes += size;
	if (other)
		t->others += size;
	time = now - t->window;
	if (t->state == SPRAY_GAINING)
		spray_doubt(t, delay, now, size);
	if (time < limit)
		return SPRAY_GOES_ON;
	/* A pause of the application is none of the path. */
	rate = time < 2 * limit ? t->bytes / (time / 1000) : 0;
	bulk = rate && t->others > t->bytes / 16;
	t->window = now ? now : 1;
	t->bytes = t->others = 0;
	if (t->state == SPRAY_ALONE) {
		__u64 was = t->worse_rate;

		t->home = rate;
		if (!rate)
			return SPRAY_GOES_ON;
		t->share = rate;
		t->state = SPRAY_SPRAYED;
		t->since = now;
		t->window = t->worse = t->worse_rate = t->part = 0;
		t->recent = now ? now : 1;
		return was && was * 100 < (__u64)rate * 102 ? SPRAY_LEAVES : SPRAY_GOES_ON;
	}
	t->gain = rate;
	if (!bulk) {
		t->worse = 0;
	} else if ((__u64)rate * 100 < (__u64)t->home * 102) {
		t->worse++;
		if ((__u64)rate * 100 < (__u64)t->home * 90)
			t->worse++;
		if (t->worse < 2 * SPRAY_WORSE)
			return SPRAY_GOES_ON;
		/* Others may send more than when home alone was measured. */
		t->worse_rate = rate;
		t->state = SPRAY_ALONE;
		t->since = now;
		t->window = 0;
		return SPRAY_GOES_ON;
	} else if (now - t->since < SPRAY_AGAIN) {
		t->worse = 0;
		t->state = SPRAY_GAINING;
		return SPRAY_GAINS;
	}
	if (now - t->since >= SPRAY_AGAIN) {
		t->state = SPRAY_ALONE;
		t->since = now;
		t->window = 0;
	}
	return SPRAY_GOES_ON;
}

#endif
