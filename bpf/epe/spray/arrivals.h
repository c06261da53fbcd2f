/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What acknowledgments say of the paths. */
#ifndef TABANE_SPRAY_ARRIVALS_H
#define TABANE_SPRAY_ARRIVALS_H

#include "memory.h"
#include "segment.h"
#include "tables.h"

/* Whether a record was in flight on a path that was dead: it arrives late, and says nothing of the round trip. */
static __always_inline int sent_dead(const struct connection *c, const struct record *r)
{
	return c->died && !c->path[SPRAY_PATH(r->path)].shortest && !spray_later(r->sent, c->died);
}

/* Applies the arrival of a record. */
__attribute__((noinline)) int arrived(struct connection *c, __u32 at, __u32 now)
{
	struct record *r;
	struct spray_path *p, *home;
	int verdict;

	if (!c)
		return 0;
	r = &c->records[at & (RECORDS - 1)];
	if (r->arrived)
		return 0;
	r->arrived = 1;
	if (c->waits) {
		if (c->common) {
			c->home = c->before;
			c->alive = 0;
			interrupted(c, now);
		}
		c->waits = c->common = 0;
	}
	/* A home that carries something again, or was only late, is home again. */
	if (c->alive && r->path == c->former && !r->retransmitted && spray_later(r->sent, c->alive)) {
		c->home = c->former;
		c->alive = 0;
	}
	p = &c->path[SPRAY_PATH(r->path)];
	home = &c->path[SPRAY_PATH(c->home)];
	p->gone += r->length;
	p->progress = now;
	if (r->retransmitted) {
		/* What an outage of all paths lost says nothing of one. */
		if (c->outage && !spray_later(r->sent, c->outage))
			return 0;
		/* Sooner than a round trip after the retransmission, it was the first one that arrived. */
		r->lost = spray_retransmitted(p, spray_later(spray_shortest(home), now - r->retransmitted), now);
		return 0;
	}
	if (c->old || sent_dead(c, r))
		return 0;
	spray_arrived(p, home->rate, now - r->sent, r->length, r->acknowledged);
	if (!c->trial.need || r->path != c->home)
		return 0;
	verdict = spray_tried(&c->trial, p->gone, now);
	if (verdict == SPRAY_LEAVES)
		end_trial(c);
	else if (verdict == SPRAY_GAINS)
		c->trial.need = 0;
	return 0;
}

/* Records that an acknowledgment, and that a block of one, has arrive at most. */
#define ARRIVALS 48
#define BLOCK 16

/* Applies a block of a SACK option, whose end arrived last. */
__attribute__((noinline)) int sacked(struct connection *c, __u32 ack, __u32 left, __u32 right, __u32 now)
{
	__u32 at;

	if (!c || left == right || !spray_later(right, ack) || spray_later(right, c->next))
		return 0;
	at = search(c, c->tail, right);
	for (int i = 0; i < BLOCK && at - c->tail < c->head - c->tail; i++) {
		struct record *r = &c->records[at & (RECORDS - 1)];

		if (spray_later(r->end, right) || spray_later(left, r->end - r->length))
			break;
		arrived(c, at, now);
		at--;
	}
	return 0;
}

/* Applies that a packet arrived again (RFC 2883): if the path had lost it, it was the first one. */
__attribute__((noinline)) int twice(struct connection *c, __u32 right, __u32 now)
{
	struct spray_path *p;
	struct record *r;
	__u32 at;

	if (!c)
		return 0;
	at = search(c, c->head > RECORDS ? c->head - RECORDS : 0, right);
	r = &c->records[at & (RECORDS - 1)];
	if (at == c->head || r->end != right || r->lost == SPRAY_NONE)
		return 0;
	p = &c->path[SPRAY_PATH(r->path)];
	spray_found(p, r->lost);
	r->lost = SPRAY_NONE;
	if (!sent_dead(c, r))
		spray_arrived(p, c->path[SPRAY_PATH(c->home)].rate, now - r->sent, r->length, r->acknowledged);
	return 0;
}

#endif
