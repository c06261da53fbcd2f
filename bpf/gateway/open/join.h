/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* join: takes packets of other gateways' hosts out of the tunnel. */
#ifndef TABANE_OPEN_JOIN_H
#define TABANE_OPEN_JOIN_H

#include "headers.h"
#include "owner.h"

/* What the headers of a message in the tunnel say. */
struct message {
	struct header header; /* the cookie in host byte order */
	__u32 outer, inner; /* lengths of the headers around the packet, and of the packet */
	__u32 port;
	__u32 family, outer_class, class;
	__u32 segment; /* of its super-packet, from 0 */
	__u32 headers; /* before the payload of TCP, if size is not 0 */
	__u64 to[2], from[2], host[2]; /* the destination of the tunnel, the source and the destination of the packet */
};

/* Reads the TCP header of a super-packet, or of what was one. */
static __always_inline void read_segment(struct __sk_buff *skb, struct message *m)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *h = view(skb, LINK_HEADER + m->outer + m->headers, TCP_HEADER, room);
	__u32 sequence;

	if (!h)
		return;
	sequence = ntohl(*(const __u32 *)(h + TCP_SEQUENCE)) - ntohl(m->header.sequence);
	m->segment = sequence / (m->header.size ? ntohs(m->header.size) : 1);
	m->headers += (h[TCP_OFFSET] >> 4) * 4;
}

/*
 * Reads the headers of a message, false for a packet that is none: that is the kernel's, as fragments
 * are. An inner length of 0 means that the packet in it is malformed. Global, so that the verifier
 * checks it once.
 */
__attribute__((noinline)) int read_message(struct __sk_buff *skb, struct message *m)
{
	const __u8 *start = (const __u8 *)(long)skb->data, *h = start + LINK_HEADER, *end = (const __u8 *)(long)skb->data_end;
	__u32 length, udp; /* of the message with its IP header, and without */

	if (!m)
		return 0;
	m->inner = 0;
	if (skb->protocol == htons(ETHERTYPE_IPV4)) {
		if (h + OUTER_IPV4 > end || h[0] != 0x45 || h[9] != PROTO_UDP || number(h + 6) & IPV4_DF_MASK)
			return 0;
		m->outer_class = h[1];
		length = ip_length(h, 0);
		load_mapped(m->to, h + 16);
		m->outer = OUTER_IPV4;
		h += IPV4_HEADER;
	} else if (skb->protocol == htons(ETHERTYPE_IPV6)) {
		if (h + OUTER_IPV6 > end || h[0] >> 4 != 6 || h[IPV6_NEXT] != PROTO_UDP)
			return 0;
		m->outer_class = number(h) >> 4 & 0xff;
		length = ip_length(h, 1);
		load_pair(m->to, h + IPV6_DESTINATION);
		m->outer = OUTER_IPV6;
		h += IPV6_HEADER;
	} else {
		return 0;
	}
	if (h[UDP_HEADER] != OPEN)
		return 0;
	m->port = number(h + 2);
	udp = number(h + 4);
	h += UDP_HEADER;
	__builtin_memcpy(&m->header, h, sizeof(m->header));
	m->header.cookie = ntohll(m->header.cookie);
	h += sizeof(struct header);
	m->segment = 0;
	if (h + IPV4_HEADER > end)
		return 1;
	if (h[0] == 0x45) {
		m->family = AF_INET;
		m->class = h[1];
		load_mapped(m->from, h + 12);
		load_mapped(m->host, h + 16);
		m->inner = ip_length(h, 0);
		m->headers = IPV4_HEADER;
		if (m->header.size && h[9] == PROTO_TCP)
			read_segment(skb, m);
	} else if (h[0] >> 4 == 6 && h + IPV6_HEADER <= end) {
		m->family = AF_INET6;
		m->class = number(h) >> 4 & 0xff;
		load_pair(m->from, h + IPV6_SOURCE);
		load_pair(m->host, h + IPV6_DESTINATION);
		m->inner = ip_length(h, 1);
		m->headers = IPV6_HEADER;
		if (m->header.size && h[IPV6_NEXT] == PROTO_TCP)
			read_segment(skb, m);
	} else {
		return 1;
	}
	/* The packet is in the payload of UDP, that is in the message, and that in the frame, each of which may be longer. The
	 * length of a super-packet is that of all segments, which may be more than the field holds. */
	if (!skb->gso_size && (OVER_UDP + m->inner > udp || m->outer - OVER_UDP + udp > length || LINK_HEADER + length > skb->len))
		m->inner = 0;
	return 1;
}

/*
 * Marks a packet as its tunnel was (RFC 6040, section 4.2). Only by helpers: a program that writes to packets itself has the
 * kernel look at each packet of TCP first, because the sender keeps a clone of it.
 */
static __always_inline int mark(struct __sk_buff *skb, const struct message *m)
{
	const __u8 *h = (const __u8 *)(long)skb->data + LINK_HEADER;
	__u8 class = m->class | ECN_CE;

	if (m->family == AF_INET)
		return bpf_l3_csum_replace(skb, LINK_HEADER + IPV4_CHECK, htons(0x4500 | m->class), htons(0x4500 | class), sizeof(__u16)) ||
		       bpf_skb_store_bytes(skb, LINK_HEADER + 1, &class, sizeof(class), 0);
	if (h + IPV6_HEADER > (const __u8 *)(long)skb->data_end)
		return -1;
	class = h[1] | ECN_CE << 4;
	return bpf_skb_store_bytes(skb, LINK_HEADER + 1, &class, sizeof(class), BPF_F_RECOMPUTE_CSUM);
}

/* Counts packets that have arrived over a path, the first of which is the sender's count-th. */
static __always_inline void count_arrived(struct arrived *a, __u32 count, __u32 segments, __u32 bytes)
{
	add_count(&a->count, segments, bytes);
	for (__u32 i = 0; i < SCHED_TRIES; i++) {
		__u64 before = *(volatile __u64 *)&a->next, after = (__u64)count + segments;

		if (before)
			after = before + (__s32)(count + segments - (__u32)before);
		else
			a->first = count;
		if ((__s64)(after - before) <= 0 || __sync_val_compare_and_swap(&a->next, before, after) == before)
			break;
	}
}

/* All ones if a copied packet with this number has not arrived yet: what was seen there is neither the same nor a later one. */
static __always_inline __s64 see(__u32 *seen, __u32 number)
{
	__u32 before = *(volatile __u32 *)seen;
	__s64 later = sched_negative(-(__s64)(__s32)(number - before));
	/* Another processor may have the same packet. */
	__s64 other = __sync_val_compare_and_swap(seen, before, before + ((number - before) & later)) ^ before;

	return later & ~sched_negative(-other);
}

SEC("tc")
int join(struct __sk_buff *skb)
{
	__u32 linear = LINK_HEADER + OUTER_IPV6 + IPV6_HEADER;
	const struct setup *set = read_setup();
	__u32 segments = 1, number;
	__s64 fresh = -1;
	struct message m = {};
	struct receiver *r;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u16 type;

	if (!is_for_host(skb))
		return TC_NEXT;
	if (!set || !set->port)
		return TC_NEXT;
	if (skb->protocol == htons(ETHERTYPE_IPV4))
		linear = LINK_HEADER + OUTER_IPV4 + IPV6_HEADER;
	if (unlikely(skb->data_end - skb->data < linear))
		bpf_skb_pull_data(skb, skb->len < linear ? skb->len : linear);
	if (!read_message(skb, &m))
		return TC_NEXT;
	/* The port is not compared: paths over members have others. */
	r = bpf_map_lookup_elem(&receivers, &m.header.cookie);
	if (!r) {
		/* What this host only forwards may be for another gateway. */
		__u32 outside = skb->protocol == htons(ETHERTYPE_IPV4) ? AF_INET : AF_INET6;

		return m.port == set->port && owner_of(set, m.to, outside) == OWN ? refuse(REFUSED_COOKIE) : TC_NEXT;
	}
	if (!m.inner)
		return refuse(REFUSED_MALFORMED);
	if (owner_of(set, m.from, m.family) != r->peer + 1)
		return refuse(REFUSED_SOURCE);
	if (is_of_no_host(m.host, m.family) || !may_reach(r->peer, m.host))
		return refuse(REFUSED_DESTINATION);
	if (trim(skb, LINK_HEADER + m.outer, m.inner))
		return refuse(REFUSED_MALFORMED);
	m.headers += LINK_HEADER + m.outer;
	if (skb->gso_size && skb->len > m.headers)
		segments = segments_of(skb, skb->len - m.headers);

	count_arrived(&r->path[m.header.path & OPEN_PATH], ntohl(m.header.count) + m.segment, segments, skb->len - LINK_HEADER);
	number = ntohl(m.header.number) + m.segment;
	if (m.header.path & OPEN_COPIED) {
		/* A super-packet is delivered if any of its segments has to be. */
		fresh = 0;
		for (__u32 i = 0; i < MAX_SEGMENTS; i++) {
			if (i >= segments)
				break;
			fresh |= see(&r->seen[(number + i) & (SEEN - 1)], number + i);
		}
	}
	if (!fresh)
		return refuse(REFUSED_DUPLICATE);
	if ((m.outer_class & ECN_MASK) == ECN_CE && !(m.class & ECN_MASK))
		return refuse(REFUSED_CONGESTION);

	type = htons(ETHERTYPE_IPV4);
	if (m.family == AF_INET6)
		type = htons(ETHERTYPE_IPV6);
	if (type != skb->protocol)
		flags |= m.family == AF_INET ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 : BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -(__s32)m.outer, BPF_ADJ_ROOM_MAC, flags))
		return refuse(REFUSED_MALFORMED);
	if (LINK_HEADER > 0 && flags != BPF_F_ADJ_ROOM_FIXED_GSO && bpf_skb_store_bytes(skb, ETHERNET_TYPE, &type, sizeof(type), 0))
		return refuse(REFUSED_MALFORMED);
	if ((m.outer_class & ECN_MASK) == ECN_CE && mark(skb, &m))
		return refuse(REFUSED_MALFORMED);
	return deliver(skb);
}

#endif
