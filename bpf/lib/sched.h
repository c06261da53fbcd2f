/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The disciplines of internal/gateway/sched for packets, without what user space decides when the state or
 * the quality of a path changes: sched.Plan has that. The results are the same, bit by bit.
 *
 * Several processors may choose for packets at once. Queues and turns are changed by atomic operations, which take a
 * quarter of the time of a lock that a program may have, with interrupts off.
 *
 * It has no maps. Loops over paths have no branches inside: with them, the verifier follows 2^16 ways
 * through the loop. A mask is all ones or 0; it and what it is made of go through sched_hide, so that
 * the compiler does not turn them into a branch again.
 */
#ifndef TABANE_SCHED_H
#define TABANE_SCHED_H

#include "bpf.h"

#define SCHED_PATHS 16
#define SCHED_PATH(i) ((i) & (SCHED_PATHS - 1))

enum sched_rule {
	SCHED_NONE,
	SCHED_ONE,
	SCHED_ALL,
	SCHED_RATIO,
	SCHED_EARLIEST,
	SCHED_WEIGHTED,
	SCHED_FLOW_EARLIEST,
};

struct sched_path {
	__u64 per_byte; /* in 2^-16 ns; 0 without a rate */
	__s64 delay;	/* in ns, at least 0: only differences between paths matter */
	__u64 buffer;	/* in ns; 0: the virtual queue is not bounded */
	__u64 until;	/* sum of the weights up to this path */
	__u32 ratio;
	__u32 next; /* the path whose turn is after this one's */
};

struct sched_plan {
	__u32 rule;
	__u32 may; /* bit i is path i */
	__u32 paths;
	__u32 only;
	__s64 tie; /* in ns */
	struct sched_path path[SCHED_PATHS];
};

/* When the virtual queues become empty, on the clock of the packets, in ns. */
struct sched_queues {
	__s64 empty[SCHED_PATHS];
};

/* Of ratio: the path of this turn, and its packets so far. Of dq: the path used last. */
struct sched_state {
	__u32 at;
	__u32 sent;
} __attribute__((aligned(8)));

/* The path of the flows of a table's entry. */
struct sched_flow {
	__s64 used;
	__u32 path;
	__u32 known;
};

#define SCHED_FLOWS 4096
#define SCHED_SILENCE (5LL * 1000 * 1000 * 1000)

/* The longest wait, and what is later than any arrival: its difference to one does not overflow. */
#define SCHED_TOO_LONG (24LL * 3600 * 1000 * 1000 * 1000)
#define SCHED_NEVER (1LL << 62)
#define SCHED_PATH_BITS 6

/* How often a change is tried again because another processor was faster. */
#define SCHED_TRIES 16

/* The largest packet, so that the product with a time per byte fits 64 bits. */
#define SCHED_MAX_SIZE ((1U << 18) - 1)

#define sched_hide(mask) asm volatile("" : "+r"(mask))

/*
 * Whether a loop ends before path i of n. It looks at powers of 2 only, because the verifier follows
 * each way out of the loop: paths from n on are in no set.
 */
static __always_inline int sched_end(__u32 i, __u32 n)
{
	return !(i & (i - 1)) && i >= n;
}

/* All ones if v is negative. */
static __always_inline __s64 sched_negative(__s64 v)
{
	__s64 m;

	sched_hide(v);
	m = v >> 63;
	sched_hide(m);
	return m;
}

static __always_inline __s64 sched_positive(__s64 v)
{
	return v & ~sched_negative(v);
}

static __always_inline __s64 sched_min(__s64 a, __s64 b)
{
	__s64 d = b - a;

	return a + (d & sched_negative(d));
}

static __always_inline __s64 sched_max(__s64 a, __s64 b)
{
	__s64 d = a - b;

	return a - (d & sched_negative(d));
}

/* All ones if path i is in the set. */
static __always_inline __s64 sched_in(__u32 set, __u32 i)
{
	__s64 m = -(__s64)((set >> i) & 1);

	sched_hide(m);
	return m;
}

/* The transmission time of a packet in ns. */
static __always_inline __s64 sched_line(__u32 size, __u64 per_byte)
{
	return sched_min((size * per_byte) >> 16, SCHED_TOO_LONG + 1);
}

/* Adds a packet to the virtual queue of a path, where the mask says so. */
static __always_inline void sched_add(const struct sched_path *path, __s64 *empty, __s64 now, __u32 size, __s64 mask)
{
	__s64 line = sched_line(size, path->per_byte), longest = sched_max(path->buffer, line), has;

	has = sched_negative(-(__s64)path->buffer);
	longest = sched_min((longest & has) | (SCHED_TOO_LONG & ~has), SCHED_TOO_LONG);
	mask &= sched_negative(-(__s64)path->per_byte);
	for (__u32 i = 0; i < SCHED_TRIES; i++) {
		__s64 before = *(volatile __s64 *)empty, wait = sched_min(sched_positive(before - now) + line, longest);

		if (__sync_val_compare_and_swap(empty, before, ((now + wait) & mask) | (before & ~mask)) == before)
			break;
	}
}

/* The path on which a packet arrives first, of those within the tie the one used last; -1 if there is none. */
static __always_inline __s32 sched_earliest(const struct sched_plan *plan, const struct sched_queues *queues, __s64 now,
					    __u32 size, __u32 last)
{
	__s64 best = SCHED_NEVER, same = SCHED_NEVER;

	for (__u32 i = 0; i < SCHED_PATHS; i++) {
		__s64 wait, key, none, is, at;

		if (sched_end(i, plan->paths))
			break;
		wait = sched_positive(queues->empty[i] - now) + sched_line(size, plan->path[i].per_byte);
		none = ~sched_in(plan->may, i) | sched_negative(SCHED_TOO_LONG - wait);
		key = (wait + plan->path[i].delay) << SCHED_PATH_BITS | i;
		key = (key & ~none) | (SCHED_NEVER & none);
		best = sched_min(best, key);
		at = i ^ last;
		is = sched_negative(at - 1);
		same = (key & is) | (same & ~is);
	}
	if (best == SCHED_NEVER)
		return -1;
	if (same != SCHED_NEVER && plan->tie > 0 && (same >> SCHED_PATH_BITS) - (best >> SCHED_PATH_BITS) <= plan->tie)
		return last;
	return best & (SCHED_PATHS - 1);
}

/* The path of the next turn of ratio, or -1. */
static __always_inline __s32 sched_turn(const struct sched_plan *plan, struct sched_state *state)
{
	__u32 at = state->at, n = plan->paths;

	if (!plan->may) {
		/* All turns of a round are skipped, and that of the first path of the next one. */
		state->at = at + 1 < n ? at + 1 : 0;
		state->sent = 0;
		return -1;
	}
	if (at < n && plan->may >> SCHED_PATH(at) & 1 && state->sent < plan->path[SCHED_PATH(at)].ratio) {
		state->sent++;
		return SCHED_PATH(at);
	}
	if (at >= n)
		at = n - 1;
	at = SCHED_PATH(plan->path[SCHED_PATH(at)].next);
	state->at = at;
	state->sent = 1;
	return at;
}

/* Takes the next turn of ratio. */
static __always_inline __s32 sched_ratio(const struct sched_plan *plan, __u64 *state)
{
	__s32 path = -1;

	for (__u32 i = 0; i < SCHED_TRIES; i++) {
		__u64 before = *(volatile __u64 *)state;
		union {
			__u64 value;
			struct sched_state turn;
		} after = {.value = before};

		path = sched_turn(plan, &after.turn);
		if (__sync_val_compare_and_swap(state, before, after.value) == before)
			break;
	}
	return path;
}

/* Spreads hashes that differ in few bits (the finalizer of MurmurHash3). */
static __always_inline __u32 sched_mix(__u32 h)
{
	h = (h ^ h >> 16) * 0x85ebca6bU;
	h = (h ^ h >> 13) * 0xc2b2ae35U;
	return h ^ h >> 16;
}

/* A path drawn by the weights; the plan has one with a weight. */
static __always_inline __s32 sched_weighted(const struct sched_plan *plan, __u32 hash)
{
	__u32 n = plan->paths;
	__u64 total, at;
	__s64 path = 0;

	if (n == 0 || n > SCHED_PATHS)
		return -1;
	total = plan->path[SCHED_PATH(n - 1)].until;
	at = hash * total >> 32;
	for (__u32 i = 0; i < SCHED_PATHS; i++) {
		__s64 below;

		if (sched_end(i, n))
			break;
		below = sched_negative((__s64)i - n);
		path -= below & sched_negative((__s64)(plan->path[i].until - at) - 1);
	}
	return SCHED_PATH(path);
}

/* What sched_next returns besides a path: none, and all of the plan. */
#define SCHED_NOWHERE (-1)
#define SCHED_EVERYWHERE SCHED_PATHS

/*
 * The path of a packet of at most SCHED_MAX_SIZE bytes, which is added to its virtual queue. entry is
 * that of the packet's flow in the table of the rule, if the rule has one.
 */
static __always_inline __s32 sched_next(const struct sched_plan *plan, struct sched_queues *queues, struct sched_state *state,
					struct sched_flow *entry, __s64 now, __u32 size, __u32 flow)
{
	__u32 rule = plan->rule, hash = flow, last = 0;
	__s32 chosen = SCHED_NOWHERE;

	if (rule == SCHED_ALL) {
		for (__u32 i = 0; i < SCHED_PATHS; i++) {
			if (sched_end(i, plan->paths))
				break;
			sched_add(&plan->path[i], &queues->empty[i], now, size, sched_in(plan->may, i));
		}
		return SCHED_EVERYWHERE;
	}
	if (rule == SCHED_ONE) {
		chosen = SCHED_PATH(plan->only);
	} else if (rule == SCHED_RATIO) {
		chosen = sched_ratio(plan, (__u64 *)state);
	} else if (rule == SCHED_EARLIEST) {
		last = state->at;
	} else if ((rule == SCHED_WEIGHTED || rule == SCHED_FLOW_EARLIEST) && entry) {
		__u32 path = entry->path;

		if (entry->known && now - entry->used <= SCHED_SILENCE) {
			if (plan->may >> SCHED_PATH(path) & 1)
				chosen = SCHED_PATH(path);
			else
				/* With the same hash, the flows of a path that fails would all move to the same path. */
				hash ^= (path + 1) * 0x9e3779b1U;
		}
		if (chosen < 0 && rule == SCHED_WEIGHTED)
			chosen = sched_weighted(plan, sched_mix(hash));
	} else {
		return SCHED_NOWHERE;
	}
	if (chosen < 0 && rule != SCHED_RATIO)
		chosen = sched_earliest(plan, queues, now, size, last);
	if (chosen < 0)
		return SCHED_NOWHERE;
	if (rule == SCHED_EARLIEST)
		state->at = chosen;
	if (entry) {
		entry->path = chosen;
		entry->known = 1;
		entry->used = now;
	}
	chosen = SCHED_PATH(chosen);
	sched_add(&plan->path[chosen], &queues->empty[chosen], now, size, -1);
	return chosen;
}

#endif
