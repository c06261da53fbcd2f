/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The session that a packet of a host is of, with NAT. */
#ifndef TABANE_OPEN_SESSION_H
#define TABANE_OPEN_SESSION_H

#include "headers.h"

/* Sets the key of the session of a packet that read_headers has read. Returns why it can have none, else LEFTS. */
static __always_inline int session_of(struct __sk_buff *skb, const struct packet *p, struct session_key *key)
{
	if (p->fragment)
		return LEFT_FRAGMENT;
	if (!is_plain(p))
		return LEFT_OPTIONS;
	__builtin_memcpy(key->destination, p->destination, sizeof(key->destination));
	key->protocol = p->protocol;
	key->family = p->family;
	if (p->protocol == PROTO_TCP || p->protocol == PROTO_UDP) {
		key->source_port = p->source_port;
		key->destination_port = p->destination_port;
	} else if (is_icmp(p)) {
		__u8 h[ICMP_HEADER];

		if (bpf_skb_load_bytes(skb, p->transport, h, sizeof(h)))
			return LEFT_MALFORMED;
		if (!is_echo(p->family, h[0]))
			return LEFT_PROTOCOL;
		key->source_port = h[4] << 8 | h[5];
		key->destination_port = h[0];
	} else {
		return LEFT_PROTOCOL;
	}
	return LEFTS;
}

/*
 * The hash of a session: that of hosts' choice collide no more often than others, because they do not know the seed. NH of UMAC
 * (RFC 4418, section 5.2.2), whose sums of neighbors are near each other, and a product that spreads them.
 */
static __always_inline __u64 hash_session(const struct setup *set, const struct session_key *key)
{
	const __u32 *k = (const __u32 *)key, *s = set->seed;
	__u64 h = (__u64)(k[0] + s[0]) * (k[1] + s[1]) + (__u64)(k[2] + s[2]) * (k[3] + s[3]) + (__u64)(k[4] + s[4]) * (k[5] + s[5]);

	return (h ^ h >> 32) * 0xd6e8feb86659fd93ULL;
}

/* The session with a key, or NULL. */
static __always_inline struct session *session_with(const struct setup *set, const struct session_key *key)
{
	const __u64 *k = (const __u64 *)key;
	__u32 zero = 0, slot, step;
	void *table = bpf_map_lookup_elem(&sessions, &zero);
	__u64 h;

	if (!table)
		return 0;
	h = hash_session(set, key);
	slot = h >> 32;
	step = h | 1;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < SESSION_PROBES; i++) {
		struct session *s;
		const __u64 *other;
		__u32 state, after;

		slot &= SESSION_SLOTS - 1;
		s = bpf_map_lookup_elem(table, &slot);
		if (!s)
			return 0;
		state = *(volatile __u32 *)&s->state;
		if (state == SESSION_NONE)
			return 0;
		/* 0, so that no processor reads the key before the state. */
		after = state >> 31;
		sched_hide(after);
		other = (const __u64 *)((const __u8 *)s + after);
		if (state != SESSION_DELETED && !((other[0] ^ k[0]) | (other[1] ^ k[1]) | (other[2] ^ k[2])))
			return s;
		slot += step;
	}
	return 0;
}

/* Sets the time of a session's last packet. */
static __always_inline void set_used(struct session *s)
{
	__u32 tick = bpf_jiffies64() >> SESSION_TICK;

	if (s->tick != tick) {
		s->tick = tick;
		s->used = bpf_ktime_get_ns();
	}
}

#endif
