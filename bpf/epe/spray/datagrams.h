/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The path of a datagram. */
#ifndef TABANE_SPRAY_DATAGRAMS_H
#define TABANE_SPRAY_DATAGRAMS_H

#include "memory.h"
#include "segment.h"
#include "tables.h"

static __always_inline struct datagrams *find_datagrams(const struct ends *e, __u32 at)
{
	struct datagrams *f = bpf_map_lookup_elem(&flows, &at);

	if (f && same(&f->ends, e))
		return f;
	at ^= 1;
	f = bpf_map_lookup_elem(&flows, &at);
	return f && same(&f->ends, e) ? f : 0;
}

/* Begins a flow in one of its two places, if there is an idle one. */
static __always_inline struct datagrams *begin_datagrams(const struct segment *s, const struct plan *plan, __u32 at, __u32 now)
{
	struct datagrams *f = bpf_map_lookup_elem(&flows, &at);

	if (!f || (f->packets && !idle(f->used, now))) {
		at ^= 1;
		f = bpf_map_lookup_elem(&flows, &at);
		if (!f || (f->packets && !idle(f->used, now)))
			return 0;
	}
	__builtin_memset(f, 0, sizeof(*f));
	__builtin_memcpy(&f->ends, &s->ends, sizeof(f->ends));
	f->home = plan->home;
	f->rule = plan->rule;
	f->progress = now;
	return f;
}

/* What the flows to the client of a datagram have in common, in one of two places; 0 if there is none. */
static __always_inline struct client *client_of(const struct segment *s, const struct plan *plan, __u32 now, int *begins)
{
	__u32 address = s->family == 4 ? *(const __u32 *)(s->ends.remote + 12) : 0, at;
	__u64 prefix = *(const __u64 *)s->ends.remote, h = (prefix ^ address) * 0x9e3779b97f4a7c15ULL;
	struct client *d, *unused = 0;

	h ^= h >> 29;
	h *= 0xbf58476d1ce4e5b9ULL;
	at = (h >> 32) & (CLIENTS - 1);
	for (int i = 0; i < 2; i++, at ^= 1) {
		d = bpf_map_lookup_elem(&clients, &at);
		if (!d)
			return 0;
		if (idle(d->used, now)) {
			unused = unused ? unused : d;
		} else if (d->prefix == prefix && d->address == address) {
			unused = d->rule == plan->rule ? 0 : d;
			break;
		}
		d = 0;
	}
	if (unused) {
		d = unused;
		__builtin_memset(d, 0, sizeof(*d));
		d->prefix = prefix;
		d->address = address;
		d->rule = plan->rule;
		d->turns.since = now;
		*begins = 1;
	}
	if (d)
		d->used = now;
	return d;
}

/* Counts what a flow carried over a path; known is what is remembered of the path, if anything. */
static __always_inline void count(const struct network *n, struct memory *known, __u64 bytes)
{
	__u64 *all = bpf_map_lookup_elem(&volumes, &n->mark);
	struct memory next = {};

	if (all)
		__sync_fetch_and_add(all, bytes);
	else
		bpf_map_update_elem(&volumes, &n->mark, &bytes, BPF_NOEXIST);
	if (known) {
		__sync_fetch_and_add(&known->datagrams, bytes);
		return;
	}
	next.datagrams = bytes;
	bpf_map_update_elem(&networks, n, &next, BPF_NOEXIST);
}

/* Reads what TCP measured of the paths, and what other flows of datagrams to the network did. */
__attribute__((noinline)) int consult(struct datagrams *f, struct client *d, const struct segment *s, const struct plan *plan, int begins)
{
	__u64 time = bpf_ktime_get_ns(), most = 0;
	struct memory *m;
	struct network n;

	if (!f || !d || !s || !plan)
		return 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		struct spray_queue *q = &d->queue[i];

		q->rate = 0;
		if (!(plan->may >> i & 1))
			continue;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (f->bytes[i]) {
			count(&n, m, f->bytes[i]);
			f->bytes[i] = 0;
		}
		if (!m)
			continue;
		q->rate = usable(m, time);
		q->delay = m->shortest;
		if (faster(plan, i, m, time, &most) && !f->packets)
			f->home = i;
	}
	network_of(&s->ends, s->family, 0, &n);
	m = bpf_map_lookup_elem(&networks, &n);
	d->turns.paused = m && m->until > time;
	if (m && begins && known(m, time)) {
		d->turns.home = d->turns.share = m->rate;
		d->turns.state = SPRAY_SPRAYED;
	}
	spray_share(d->queue, f->home, d->turns.share);
	return 0;
}

/* Remembers what flows of datagrams found: the rate of home alone, or that spraying brings no more. */
__attribute__((noinline)) int conclude(struct client *d, const struct segment *s, int gains)
{
	__u64 time = bpf_ktime_get_ns(), first = SPRAY_LOSS_PAUSE * 1000ULL;
	struct memory *known, next = {};
	struct network n;

	if (!d || !s)
		return 0;
	network_of(&s->ends, s->family, 0, &n);
	known = bpf_map_lookup_elem(&networks, &n);
	if (known)
		next = *known;
	if (gains) {
		next.rate = d->turns.home;
		next.learned = time;
	} else {
		next.learned = 0;
		if (next.until <= time) {
			next.pause = next.until && next.until + 8 * next.pause > time ? 2 * next.pause : first;
			if (next.pause > SPRAY_MAX_PAUSE * 1000ULL)
				next.pause = SPRAY_MAX_PAUSE * 1000ULL;
			next.until = time + next.pause;
		}
		d->turns.paused = 1;
	}
	bpf_map_update_elem(&networks, &n, &next, 0);
	return 0;
}

/* The path over which the next datagram of a flow arrives first. */
__attribute__((noinline)) int enqueue(struct client *d, const struct datagrams *f, __u32 may, __u32 size, __u32 now)
{
	return d && f ? spray_queue_choose(&d->turns, d->queue, SPRAY_PATH(f->home), may, f->total, size, now) : 0;
}

/* Counts a datagram, and says whether spraying gains. */
__attribute__((noinline)) int turn(struct client *d, __u32 home, __u32 chosen, __u32 size, __u32 now)
{
	return d ? spray_turn(&d->turns, d->queue[SPRAY_PATH(home)].delay, now, size, chosen != home) : 0;
}

/* The path of a datagram. */
__attribute__((noinline)) int choose_datagram(const struct segment *s, const struct plan *plan)
{
	__u32 now = bpf_ktime_get_ns() / 1000, at, home, chosen, limit;
	struct datagrams *f;
	struct client *d;
	int verdict, begins = 0, lost = 0;

	if (!s || !plan)
		return 0;
	at = place(&s->ends);
	f = find_datagrams(&s->ends, at);
	if (!f || f->rule != plan->rule) {
		if (!f || idle(f->used, now))
			f = begin_datagrams(s, plan, at, now);
		else
			f = 0;
		if (!f)
			return plan->home;
	}
	f->used = now;
	d = client_of(s, plan, now, &begins);
	if (!d)
		return plan->home;
	if (!(f->packets % LEARNED) || begins)
		consult(f, d, s, plan, begins);
	if (!f->packets)
		f->first = f->home;
	f->packets++;
	if (!f->packets)
		f->packets = 1;
	/* A peer without a route is left until it has one again. */
	if (!f->away && plan->may >> SPRAY_PATH(f->first) & 1)
		f->home = f->first;
	else if (!(plan->may >> SPRAY_PATH(f->home) & 1))
		f->home = plan->home;
	/* If it is silent again, it is left again sooner, and for longer. */
	if (f->away && now - f->away >= f->wait && plan->may >> SPRAY_PATH(f->first) & 1) {
		f->home = f->first;
		f->away = 0;
		f->left = now ? now : 1;
		f->progress = now;
	}
	if (f->silent && f->heard == f->progress) {
		/* All paths were silent: what failed is what they have in common. */
		if (f->silent >= (plan->may & 1) + (plan->may >> 1 & 1) + (plan->may >> 2 & 1) + (plan->may >> 3 & 1) &&
		    plan->may >> SPRAY_PATH(f->first) & 1) {
			f->home = f->first;
			f->away = 0;
			f->wait /= 2;
		}
		f->silent = 0;
	}
	home = SPRAY_PATH(f->home);
	/* Where a client never sends, silence says nothing. */
	limit = (f->left && now - f->left < SPRAY_SUSPECT) || (d->turns.doubt && now - d->turns.doubt < SPRAY_SUSPECT) ? SPRAY_DEAD / 3 :
															SPRAY_DEAD;
	if (3 * d->queue[home].delay > limit)
		limit = 3 * d->queue[home].delay;
	if (f->heard == f->progress) {
		/* One acknowledgment of QUIC has no answer until the server responds, which takes its time. */
		if (s->length >= SPRAY_ANSWERED || f->small == f->heard)
			f->progress = now;
		f->small = f->heard;
	}
	/* A sender that gets no acknowledgments says more than a client that is heard. */
	if (s->length >= SPRAY_ANSWERED)
		lost = backoff_sent(&f->backoff, now, s->length) >= (f->left && now - f->left < SPRAY_SUSPECT ? 1 : BACKOFF_TIMES);
	if (lost || (f->heard && f->heard != f->progress && spray_later(now - f->progress, limit))) {
		if (f->backoff.times >= BACKOFF_TIMES)
			f->backoff.times = BACKOFF_TIMES - 1;
		for (__u32 i = 1; i < SPRAY_PATHS; i++) {
			__u32 other = SPRAY_PATH(home + i);

			if (plan->may >> other & 1) {
				f->home = home = other;
				f->progress = now;
				f->away = now ? now : 1;
				if (++f->silent > 1)
					break;
				f->wait = f->wait > SPRAY_AWAY / 2 ? 2 * f->wait : SPRAY_AWAY;
				if (f->wait > SPRAY_MAX_PAUSE)
					f->wait = SPRAY_MAX_PAUSE;
				break;
			}
		}
	}
	chosen = enqueue(d, f, plan->may, s->length, now);
	if (f->total < SPRAY_BEGIN)
		f->total += s->length;
	f->bytes[SPRAY_PATH(chosen)] += s->length;
	verdict = turn(d, home, chosen, s->length, now);
	if (verdict == SPRAY_LEAVES)
		f->left = now ? now : 1;
	if (verdict)
		conclude(d, s, verdict == SPRAY_GAINS);
	return chosen;
}

#endif
