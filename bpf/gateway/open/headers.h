/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads the headers of a packet of a host. Packets are untrusted: each length is checked. */
#ifndef TABANE_OPEN_HEADERS_H
#define TABANE_OPEN_HEADERS_H

#include "tables.h"

static __always_inline void load_pair(__u64 *to, const __u8 *from)
{
	to[0] = *(const __u64 *)from;
	to[1] = *(const __u64 *)(from + 8);
}

static __always_inline void load_mapped(__u64 *to, const __u8 *from)
{
	to[0] = 0;
	to[1] = (__u64) * (const __u32 *)from << 32 | htonl(0xffff);
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP || protocol == PROTO_UDPLITE || protocol == PROTO_DCCP ||
	       protocol == PROTO_SCTP;
}

/* Reads the addresses and the protocol, that of the first extension header if there are any; false means that the packet
 * is none of IP. */
static __always_inline int addresses(struct __sk_buff *skb, struct packet *p)
{
	const __u8 *h = (const __u8 *)(long)skb->data + LINK_HEADER, *end = (const __u8 *)(long)skb->data_end;

	if (skb->protocol == htons(ETHERTYPE_IPV4)) {
		if (h + IPV4_HEADER > end)
			return 0;
		p->family = AF_INET;
		p->protocol = h[9];
		load_mapped(p->source, h + 12);
		load_mapped(p->destination, h + 16);
		return 1;
	}
	if (skb->protocol == htons(ETHERTYPE_IPV6)) {
		if (h + IPV6_HEADER > end)
			return 0;
		p->family = AF_INET6;
		p->protocol = h[IPV6_NEXT];
		load_pair(p->source, h + IPV6_SOURCE);
		load_pair(p->destination, h + IPV6_DESTINATION);
		return 1;
	}
	return 0;
}

/* Makes the headers linear and reads what addresses does. */
static __always_inline int pull_headers(struct __sk_buff *skb, struct packet *p)
{
	__u32 linear = LINEAR_IPV6;

	if (skb->protocol == htons(ETHERTYPE_IPV4))
		linear = LINEAR_IPV4;
	if (unlikely(skb->data_end - skb->data < linear))
		bpf_skb_pull_data(skb, skb->len < linear ? skb->len : linear);
	return addresses(skb, p);
}

/* Ends the frame of a packet where it does. */
static __always_inline int trim_packet(struct __sk_buff *skb, const struct packet *p)
{
	const __u8 *h = (const __u8 *)(long)skb->data + LINK_HEADER;

	if (h + IPV4_HEADER > (const __u8 *)(long)skb->data_end)
		return -1;
	return trim(skb, LINK_HEADER, ip_length(h, p->family == AF_INET6));
}

/* Reads the rest of the headers, and removes what follows the packet in its frame. Returns why the packet has to be left
 * to the kernel, else LEFTS. */
static __always_inline int read_headers(struct __sk_buff *skb, struct packet *p)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *h, *end;
	__u32 offset;

	p->flags = 0;
	if (trim_packet(skb, p))
		return LEFT_MALFORMED;
	h = (const __u8 *)(long)skb->data + LINK_HEADER;
	end = (const __u8 *)(long)skb->data_end;
	if (p->family == AF_INET) {
		__u16 field;

		if (h + IPV4_HEADER > end || h[0] >> 4 != 4)
			return LEFT_MALFORMED;
		if (h[0] != 0x45)
			return LEFT_OPTIONS;
		/* Of no host: this network, loopback, multicast, broadcast (RFC 1812, section 5.3.7). */
		if (h[12] == 0 || h[12] == 127 || h[12] >= 224)
			return LEFT_SOURCE;
		p->class = h[1];
		p->hops = h[IPV4_TTL];
		p->dscp = p->class >> 2;
		field = number(h + 6);
		p->fragment = field & IPV4_DF_MASK;
		offset = LINK_HEADER + IPV4_HEADER;
		if (field & IPV4_OFFSET) {
			p->headers = offset;
			return LEFTS;
		}
	} else {
		if (h + IPV6_HEADER > end || h[0] >> 4 != 6)
			return LEFT_MALFORMED;
		/* Unspecified, loopback, link-local, multicast. */
		if (h[IPV6_SOURCE] == 0 || h[IPV6_SOURCE] >= 0xfe)
			return LEFT_SOURCE;
		p->class = number(h) >> 4;
		p->dscp = p->class >> 2;
		p->hops = h[IPV6_HOP_LIMIT];
		offset = LINK_HEADER + IPV6_HEADER;
		/* Of interest to routers. */
		if (p->protocol == PROTO_HOP_BY_HOP)
			return LEFT_OPTIONS;
		if (unlikely(is_extension(p->protocol))) {
			__u64 next;

			/* The only place of a fragment header that hosts use. */
			if (p->protocol == PROTO_FRAGMENT) {
				if (h + IPV6_HEADER + FRAGMENT_HEADER > end)
					return LEFT_MALFORMED;
				p->fragment = 1;
				p->headers = offset;
				if (number(h + IPV6_HEADER + 2) >> 3) {
					p->protocol = h[IPV6_HEADER];
					return LEFTS;
				}
			}
			next = skip_extensions(skb, offset, p->protocol);
			if (NEXT_REASON(next) == REASON_FRAGMENT)
				return LEFT_OPTIONS;
			if (NEXT_REASON(next))
				return LEFT_MALFORMED;
			offset = NEXT_OFFSET(next);
			p->protocol = NEXT_TYPE(next);
		}
	}
	p->transport = p->headers = offset;
	if (has_ports(p->protocol)) {
		h = view(skb, offset, 2 * sizeof(__u16), room);
		if (!h)
			return LEFT_MALFORMED;
		p->source_port = number(h);
		p->destination_port = number(h + 2);
		p->headers = offset + UDP_HEADER;
	}
	if (p->protocol == PROTO_TCP) {
		h = view(skb, offset + TCP_OFFSET, sizeof(__u16), room);
		if (!h)
			return LEFT_MALFORMED;
		p->headers = offset + (h[0] >> 4) * 4;
		p->flags = h[1];
	}
	return LEFTS;
}

static __always_inline int is_icmp(const struct packet *p)
{
	return p->protocol == (p->family == AF_INET ? PROTO_ICMP : PROTO_ICMPV6);
}

static __always_inline int is_echo(__u32 family, __u8 type)
{
	return family == AF_INET ? type == ICMP_ECHO || type == ICMP_ECHO_REPLY : type == ICMPV6_ECHO || type == ICMPV6_ECHO_REPLY;
}

/* Whether the headers of a packet end where those without options and extension headers do. */
static __always_inline int is_plain(const struct packet *p)
{
	return p->transport == LINK_HEADER + (p->family == AF_INET ? IPV4_HEADER : IPV6_HEADER);
}

#endif
