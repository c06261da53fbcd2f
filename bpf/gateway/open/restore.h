/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * restore: gives packets of NAT sessions the hosts' addresses again. count: counts those of peers with mode plain, which are as
 * the hosts made them. Both do so for what routers say of such packets in ICMP errors.
 */
#ifndef TABANE_OPEN_RESTORE_H
#define TABANE_OPEN_RESTORE_H

#include "address.h"
#include "headers.h"
#include "owner.h"
#include "session.h"

/* What an ICMP error says of the packet that it is about. */
struct quoted {
	struct session_key key;
	__u8 source[16];
	__u32 address, check; /* offsets of the source and of the header's checksum in the error */
	__u32 transport;      /* the same of the checksum of TCP, UDP or ICMPv6; 0: there is none, or it is not quoted */
};

/*
 * Reads the packet in an ICMP error to this host; 0 if it has none of a session. Global for the same
 * reason.
 */
__attribute__((noinline)) int read_quoted(struct __sk_buff *skb, const struct packet *p, struct quoted *q)
{
	__u32 at, checksum;
	__u8 h[IPV6_HEADER + ICMP_HEADER], type;

	if (!p || !q || p->fragment || !is_plain(p) || bpf_skb_load_bytes(skb, p->transport, &type, sizeof(type)))
		return 0;
	at = p->transport + ICMP_HEADER;
	q->key.family = p->family;
	if (p->family == AF_INET) {
		if (type != ICMP_UNREACHABLE && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETER)
			return 0;
		if (bpf_skb_load_bytes(skb, at, h, IPV4_HEADER + ICMP_HEADER) || h[0] != 0x45 || number(h + 6) & IPV4_DF_MASK)
			return 0;
		q->key.protocol = h[9];
		load_mapped((__u64 *)q->source, h + 12);
		load_mapped((__u64 *)q->key.destination, h + 16);
		q->address = at + 12;
		q->check = at + IPV4_CHECK;
		at = IPV4_HEADER;
	} else {
		if (type < 1 || type > 4)
			return 0;
		if (bpf_skb_load_bytes(skb, at, h, IPV6_HEADER + ICMP_HEADER) || h[0] >> 4 != 6)
			return 0;
		q->key.protocol = h[IPV6_NEXT];
		load_pair((__u64 *)q->source, h + IPV6_SOURCE);
		load_pair((__u64 *)q->key.destination, h + IPV6_DESTINATION);
		q->address = at + IPV6_SOURCE;
		at = IPV6_HEADER;
	}
	checksum = at + checksum_of(q->key.protocol);
	q->transport = p->transport + ICMP_HEADER + checksum;
	checksum += sizeof(__u16);
	/* Routers need not quote as much. */
	if (!checksum_of(q->key.protocol) || ip_length(h, p->family == AF_INET6) < checksum || skb->len < q->transport + sizeof(__u16))
		q->transport = 0;
	if (q->key.protocol == PROTO_TCP || q->key.protocol == PROTO_UDP) {
		q->key.source_port = number(h + at);
		q->key.destination_port = number(h + at + 2);
		return 1;
	}
	if (q->key.protocol != (p->family == AF_INET ? PROTO_ICMP : PROTO_ICMPV6) || !is_echo(p->family, h[at]))
		return 0;
	q->key.source_port = number(h + at + 4);
	q->key.destination_port = h[at];
	return 1;
}

/* Changes the checksum of the transport in an ICMP error by that of an address (RFC 5508, REQ-4), and that of the error by it. */
static __always_inline int restore_quoted(struct __sk_buff *skb, const struct packet *p, const struct quoted *q, __u16 by)
{
	int udp = q->key.protocol == PROTO_UDP;
	__u16 check, now;

	if (!q->transport)
		return 0;
	if (bpf_skb_load_bytes(skb, q->transport, &check, sizeof(check)))
		return -1;
	/* UDP without a checksum. */
	if (udp && !check)
		return 0;
	now = ~add_sum(~check, by);
	if (udp && !now)
		now = 0xffff;
	return bpf_skb_store_bytes(skb, q->transport, &now, sizeof(now), 0) ||
	       bpf_l4_csum_replace(skb, p->transport + ICMP_CHECK, check, now, sizeof(now));
}

/*
 * Sends an ICMP error about a packet of a session to the host that has sent the packet. Global for the
 * same reason.
 */
__attribute__((noinline)) int restore_error(struct __sk_buff *skb, const struct packet *p)
{
	struct quoted q = {};
	struct place at = {};
	const struct setup *set = read_setup();
	const struct session *s;
	__u16 by;

	if (!p || !set || !read_quoted(skb, p, &q))
		return TC_NEXT;
	if (*(__u64 *)q.source != p->destination[0] || *(__u64 *)(q.source + 8) != p->destination[1] ||
	    owner_of(set, p->destination, p->family) != OWN)
		return TC_NEXT;
	s = session_with(set, &q.key);
	if (!s)
		return TC_NEXT;
	by = difference((const __u32 *)p->destination, (const __u32 *)s->source, p->family);
	if (restore_quoted(skb, p, &q, by))
		return TC_DROP;
	at.family = p->family;
	if (p->family == AF_INET) {
		__u16 check;

		/* The quoted header sums to the same as before. */
		if (bpf_skb_load_bytes(skb, q.check, &check, sizeof(check)))
			return TC_DROP;
		check = ~add_sum(~check, by);
		if (bpf_skb_store_bytes(skb, q.check, &check, sizeof(check), 0) || bpf_skb_store_bytes(skb, q.address, s->source + 12, 4, 0))
			return TC_DROP;
		at.address = LINK_HEADER + 16;
		return set_address(skb, &at, p->destination, s->source) ? TC_DROP : deliver(skb);
	}
	at.checksum = ICMP_CHECK;
	if (bpf_skb_store_bytes(skb, q.address, s->source, sizeof(s->source), 0) ||
	    bpf_l4_csum_replace(skb, p->transport + at.checksum, 0, by, 0))
		return TC_DROP;
	at.address = LINK_HEADER + IPV6_DESTINATION;
	at.flags = BPF_F_PSEUDO_HDR;
	return set_address(skb, &at, p->destination, s->source) ? TC_DROP : deliver(skb);
}

/* Counts a packet of a peer's path as on the wire: as many as were sent arrive, or are lost. */
static __always_inline void count_packet(const struct __sk_buff *skb, __u32 origin, __u32 headers)
{
	__u32 peer = origin & ORIGIN_PEER, path = origin >> ORIGIN_PATH, segments = 1, size = skb->len - LINK_HEADER;
	struct counted *t = bpf_map_lookup_elem(&arrivals, &peer);

	if (!t || path >= SCHED_PATHS)
		return;
	if (skb->gso_size && skb->len > headers) {
		segments = segments_of(skb, skb->len - headers);
		size += (segments - 1) * (headers - LINK_HEADER);
	}
	t->path[SCHED_PATH(path)].packets += segments;
	t->path[SCHED_PATH(path)].bytes += size;
}

SEC("tc")
int restore(struct __sk_buff *skb)
{
	__u32 origin, owner, why;
	const struct setup *set = read_setup();
	struct session_key key = {};
	struct place at = {};
	struct packet p = {};
	struct session *s;

	if (!is_for_host(skb))
		return TC_NEXT;
	if (!pull_headers(skb, &p) || !set)
		return TC_NEXT;
	origin = origin_of(set, p.source, p.family);
	/* Routers on the way send errors. */
	if (origin == NOBODY && !is_icmp(&p))
		return TC_NEXT;
	why = read_headers(skb, &p);
	if (origin == NOBODY)
		return why == LEFTS ? restore_error(skb, &p) : TC_NEXT;
	owner = owner_of(set, p.destination, p.family);
	if (why != LEFTS)
		return owner ? TC_NEXT : refuse(why == LEFT_MALFORMED ? REFUSED_MALFORMED : REFUSED_SESSION);
	if (owner)
		return is_icmp(&p) ? restore_error(skb, &p) : TC_NEXT;
	count_packet(skb, origin, p.headers);
	/* What the peer's gateway itself sends to hosts comes in the tunnel. */
	if (session_of(skb, &p, &key) != LEFTS)
		return refuse(REFUSED_SESSION);
	key.peer = (origin & ORIGIN_PEER) + 1;
	s = session_with(set, &key);
	if (!s || s->state != SESSION_OPEN)
		return refuse(REFUSED_SESSION);
	set_used(s);
	set_checksum(&at, &p);
	at.address = LINK_HEADER + (p.family == AF_INET ? 12 : IPV6_SOURCE);
	return set_address(skb, &at, p.source, s->source) ? TC_DROP : deliver(skb);
}

/* The number of the path that packets from a peer arrive over at an interface, NULL if it has none there. */
static __always_inline const __u32 *path_of(const struct __sk_buff *skb, __u32 owner)
{
	struct line at = {.ifindex = skb->ifindex, .peer = owner - 1};

	return owner && owner <= MAX_PEERS ? bpf_map_lookup_elem(&lines, &at) : 0;
}

/* Marks an ICMP error of a router about a packet that was sent to a peer. Global for the same reason. */
__attribute__((noinline)) int mark_error(struct __sk_buff *skb, const struct packet *p)
{
	const struct setup *set = read_setup();
	struct quoted q = {};

	if (!p || !set || !read_quoted(skb, p, &q))
		return TC_NEXT;
	if (*(__u64 *)q.source != p->destination[0] || *(__u64 *)(q.source + 8) != p->destination[1] ||
	    !path_of(skb, owner_of(set, (const __u64 *)q.key.destination, p->family)))
		return TC_NEXT;
	return deliver(skb);
}

/* Counts and marks packets of peers with mode plain. */
SEC("tc")
int count(struct __sk_buff *skb)
{
	const struct setup *set = read_setup();
	struct packet p = {};
	const __u32 *path;
	__u32 owner;
	int own;

	if (!is_for_host(skb) || !pull_headers(skb, &p) || !set)
		return TC_NEXT;
	owner = owner_of(set, p.source, p.family);
	path = path_of(skb, owner);
	/* Others' packets are of interest only if they are errors. */
	if (!path && !is_icmp(&p))
		return TC_NEXT;
	if (read_headers(skb, &p) != LEFTS)
		return TC_NEXT;
	if (!path)
		return mark_error(skb, &p);
	/* A peer's gateway may have addresses of its prefixes: its messages are not packets of hosts. */
	own = owner_of(set, p.destination, p.family) == OWN;
	if (own && p.protocol == PROTO_UDP && p.destination_port == set->port)
		return TC_NEXT;
	/* Neighbors on the line are discovered by what no router forwards. */
	if (!own && !is_of_no_host(p.destination, p.family) && !may_reach(owner - 1, p.destination))
		return refuse(REFUSED_DESTINATION);
	count_packet(skb, (owner - 1) | *path << ORIGIN_PATH, p.headers);
	return deliver(skb);
}

#endif
