/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What is remembered of the paths to a client network: what connections begin with, and what they find. A path that
 * stalls or loses is left for a time by all connections to the network.
 */
#ifndef TABANE_SPRAY_MEMORY_H
#define TABANE_SPRAY_MEMORY_H

#include "segment.h"
#include "tables.h"

static __always_inline void network_of(const struct ends *e, __u8 family, __u32 mark, struct network *n)
{
	__builtin_memset(n, 0, sizeof(*n));
	if (family == 4)
		__builtin_memcpy(n->prefix, e->remote + 12, 3);
	else
		__builtin_memcpy(n->prefix, e->remote, 6);
	n->mark = mark;
	n->family = family;
}

#define VALID (600ULL * 1000 * 1000 * 1000)

/* The rate of a path, 0 if it is not known. */
static __always_inline __u32 known(const struct memory *m, __u64 time)
{
	return m->learned && time - m->learned < VALID ? m->rate : 0;
}

/* The same of a path that is not paused. */
static __always_inline __u32 usable(const struct memory *m, __u64 time)
{
	return m->until <= time ? known(m, time) : 0;
}

/*
 * Whether a path is to be home in place of all before it, which plan has in order: it is known to be
 * faster than the first one by a quarter, and than the others. That the first one is paused says that
 * it harmed as another path.
 */
static __always_inline int faster(const struct plan *plan, __u32 path, const struct memory *m, __u64 time, __u64 *most)
{
	__u64 rate = usable(m, time);

	if (path == plan->home) {
		*most = (__u64)known(m, time) * 5 / 4;
		return 0;
	}
	if (!*most || rate <= *most)
		return 0;
	*most = rate;
	return 1;
}

/*
 * A path whose rate is not known, and which is home now: where it is longer than home by more than the
 * queue of home holds, it carries nothing in order, so that its rate would never be known. Once in a
 * while there is one. Packets must have arrived over it, but not where home loses so many that it has
 * no queue, which has others carry nothing at all. SPRAY_PATHS if there is none.
 */
__attribute__((noinline)) int untried(const struct segment *s, const struct plan *plan, __u32 home, int loses)
{
	__u64 time = bpf_ktime_get_ns();
	struct memory *m, next = {};
	__u32 found = SPRAY_PATHS;
	struct network n;

	if (!s || !plan)
		return SPRAY_PATHS;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		if (!(plan->may >> i & 1) || i == home)
			continue;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (m && (m->until > time || known(m, time) || (m->tried && time - m->tried < VALID)))
			continue;
		if (m && m->seen && time - m->seen < VALID) {
			found = i;
			break;
		}
		if (loses && found == SPRAY_PATHS)
			found = i;
	}
	if (found >= SPRAY_PATHS)
		return SPRAY_PATHS;
	network_of(&s->ends, s->family, plan->mark[SPRAY_PATH(found)], &n);
	m = bpf_map_lookup_elem(&networks, &n);
	next.tried = time;
	if (m)
		m->tried = time;
	else
		bpf_map_update_elem(&networks, &n, &next, BPF_NOEXIST);
	return found;
}

/* Begins with what is remembered of the paths. */
__attribute__((noinline)) int recall(struct connection *c, const struct segment *s, const struct plan *plan, __u32 now)
{
	__u64 time = bpf_ktime_get_ns(), most = 0;
	__u32 first = 0, rate = 0, unknown;
	int loses = 0;
	struct memory *m;
	struct network n;

	if (!c || !s || !plan)
		return 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		struct spray_path *p = &c->path[i];

		if (!(plan->may >> i & 1))
			continue;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (!m)
			continue;
		if (m->until > time) {
			p->paused = 1;
			p->until = now + (m->until - time) / 1000;
		}
		if (known(m, time)) {
			p->shortest = m->shortest;
			p->rate = m->rate;
		}
		if (faster(plan, i, m, time, &most))
			c->home = i;
		if (i == plan->home)
			first = known(m, time);
		if (i == c->home) {
			rate = usable(m, time);
			loses = m->loses;
		}
	}
	unknown = rate && rate <= SPRAY_MOST_TRIED ? untried(s, plan, c->home, loses) : SPRAY_PATHS;
	if (unknown < SPRAY_PATHS) {
		c->back = c->home;
		c->home = unknown;
		c->trial.need = rate + rate / 4;
	}
	if (c->home != plan->home)
		c->first = first;
	return 0;
}

/* Has home be what it was before the trial. */
static __always_inline void end_trial(struct connection *c)
{
	c->path[SPRAY_PATH(c->home)].rate = 0;
	c->trial.need = 0;
	c->home = c->back;
	c->first = 0;
}

/* Remembers what the connection knows of the paths, and what they carried. */
__attribute__((noinline)) int remember(struct connection *c, const struct segment *s, const struct plan *plan)
{
	__u64 time = bpf_ktime_get_ns();

	if (!c || !s || !plan)
		return 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		const struct spray_path *p = &c->path[i];
		__u32 bytes = p->sent - c->counted[i];
		struct memory *m, next = {};
		struct network n;
		int lossy;

		/* What is still in flight alone does not show that the path carries anything. */
		if (!(plan->may >> i & 1) || !bytes || (c->heard && !p->gone))
			continue;
		c->counted[i] = p->sent;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (!m) {
			bpf_map_update_elem(&networks, &n, &next, BPF_NOEXIST);
			m = bpf_map_lookup_elem(&networks, &n);
			if (!m)
				continue;
		}
		__sync_fetch_and_add(&m->stream, bytes);
		if (p->gone)
			m->seen = time;
		lossy = i == c->home && spray_loses_bare(p);
		/*
		 * An application that pauses says what it sends, not what a path carries. Losses can leave
		 * nothing in flight, too.
		 */
		if (c->head - c->resumed < LEARNED && !lossy)
			continue;
		/* What a path brings beside another home says nothing of what it loses as home. */
		if (p->packets < LEARNED || !p->rate || (i != c->home && m->loses && known(m, time)))
			continue;
		m->shortest = spray_shortest(p);
		m->loses = lossy;
		m->rate = m->loses ? spray_lossy_rate(p, ((__u32)(time / 1000) - c->began) / 1000, m->rate) : p->rate;
		m->learned = time;
	}
	return 0;
}

/* Leaves a path for a time that grows with each pause soon after another, for all of the network. */
__attribute__((noinline)) int leave(struct connection *c, const struct segment *s, __u32 i, __u32 mark, __u32 now)
{
	__u64 first, time = bpf_ktime_get_ns();
	struct memory *known, next = {};
	struct spray_path *p;
	struct network n;

	if (!c || !s)
		return 0;
	p = &c->path[SPRAY_PATH(i)];
	first = (spray_loses(p) ? SPRAY_LOSS_PAUSE : SPRAY_PAUSE) * 1000ULL;
	network_of(&s->ends, s->family, mark, &n);
	known = bpf_map_lookup_elem(&networks, &n);
	next.pause = first;
	if (known) {
		next = *known;
		next.pause = first;
		if (known->until > time)
			next.pause = known->pause > first ? known->pause : first;
		else if (known->until + 8 * known->pause > time)
			next.pause = 2 * known->pause;
		if (next.pause > SPRAY_MAX_PAUSE * 1000ULL)
			next.pause = SPRAY_MAX_PAUSE * 1000ULL;
	}
	next.until = time + next.pause;
	next.pauses++;
	bpf_map_update_elem(&networks, &n, &next, 0);
	p->until = now + next.pause / 1000;
	p->packets = p->late = p->lost = p->bare = 0;
	p->paused = 1;
	p->window = SPRAY_FIRST_WINDOW;
	return 0;
}

#endif
