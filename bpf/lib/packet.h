/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the flow that a packet belongs to: the inner 5-tuple, and the SID when the packet is on its way to one.
 *
 * Understood are Ethernet with up to two VLAN tags or none at all, IPv6 and IPv4, and one level of IPv6 encapsulation
 * (RFC 8986, H.Encaps and H.Encaps.Red) with any extension headers, a segment routing header (RFC 8754) among them.
 * Packets come from anyone: nothing here trusts a length, and every loop is bounded. The packet is only read.
 *
 * It has no maps. The Go reference it is tested against is in internal/bpf.
 */
#ifndef TABANE_PACKET_H
#define TABANE_PACKET_H

#include "bpf.h"

/* Why a packet belongs to no flow; 0 when it does. These numbers are the indices of a map that user space reads. */
enum reason {
	REASON_COUNTED,
	REASON_TRUNCATED,  /* it ends within a header */
	REASON_MALFORMED,  /* a header contradicts itself: the IP version, or the length of an IPv4 header */
	REASON_NOT_IP,     /* such as ARP */
	REASON_PROTOCOL,   /* neither TCP nor UDP, such as ICMP */
	REASON_FRAGMENT,   /* not the first fragment: the ports are in the first alone */
	REASON_EXTENSIONS, /* more extension headers than are followed */
	REASON_NESTED,     /* encapsulated more than once */
	REASON_FULL,       /* there was no slot for a new flow */
	REASONS,
};

/*
 * A flow in one direction on one interface. IPv4 addresses are mapped into IPv6 (::ffff:0:0/96). The SID is zero for
 * packets that are not encapsulated. Ports are in host byte order. Source and destination must stay next to each other.
 */
struct flow_key {
	__u8 source[16] __attribute__((aligned(8)));
	__u8 destination[16];
	__u8 sid[16];
	__u32 ifindex;
	__u16 source_port;
	__u16 destination_port;
	__u8 family;    /* 4 or 6: the inner packet's */
	__u8 protocol;  /* IPPROTO_TCP or IPPROTO_UDP */
	__u8 direction; /* 0 received, 1 sent */
	__u8 reserved[5];
};

enum {
	MAX_VLANS = 2,
	MAX_EXTENSIONS = 8, /* for the outer and the inner header each */

	ETHERTYPE_IPV4 = 0x0800,
	ETHERTYPE_IPV6 = 0x86dd,
	ETHERTYPE_VLAN = 0x8100,
	ETHERTYPE_SERVICE_VLAN = 0x88a8,

	PROTO_HOP_BY_HOP = 0,
	PROTO_IPV4 = 4,
	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_IPV6 = 41,
	PROTO_ROUTING = 43,
	PROTO_FRAGMENT = 44,
	PROTO_AUTHENTICATION = 51,
	PROTO_DESTINATION_OPTIONS = 60,

	ETHERNET_HEADER = 14,
	VLAN_HEADER = 4,
	IPV4_HEADER = 20,
	IPV6_HEADER = 40,
	IPV6_SOURCE = 8,
	IPV6_DESTINATION = 24,
	FRAGMENT_HEADER = 8,
	TCP_OFFSET = 12, /* of the byte whose upper half is the header's length */
	UDP_HEADER = 8,
};

/*
 * Copies size bytes, a constant and a multiple of 4, from the packet to an aligned place. Directly where the packet is
 * in one piece up to there, which the headers nearly always are and which is several times as fast; otherwise with the
 * kernel's help. Not 0 when the packet ends before.
 */
static __always_inline long load(struct __sk_buff *skb, __u32 offset, void *to, __u32 size)
{
	const __u8 *data = (const __u8 *)(long)skb->data;
	const __u8 *end = (const __u8 *)(long)skb->data_end;

	/* The bound is the verifier's: it follows no pointer farther. */
	if (likely(offset < 0x7fff)) {
		data += offset;
		if (likely(data + size <= end)) {
			__u32 i = 0;

			for (; i + 8 <= size; i += 8)
				*(__u64 *)(to + i) = *(const __u64 *)(data + i);
			if (i < size)
				*(__u32 *)(to + i) = *(const __u32 *)(data + i);
			return 0;
		}
	}
	return bpf_skb_load_bytes(skb, offset, to, size);
}

/* What follows a header, in one number so that a function can return it: where it begins, what it is, and the reason
 * why it is not known. */
#define NEXT(offset, proto, reason) ((__u32)(offset) | (__u64)(proto) << 32 | (__u64)(reason) << 40)
#define NEXT_OFFSET(next) ((__u32)(next))
#define NEXT_PROTO(next) ((__u8)((next) >> 32))
#define NEXT_REASON(next) ((__u8)((next) >> 40))

static __always_inline int is_extension(__u8 proto)
{
	return proto == PROTO_HOP_BY_HOP || proto == PROTO_ROUTING || proto == PROTO_DESTINATION_OPTIONS ||
	       proto == PROTO_AUTHENTICATION || proto == PROTO_FRAGMENT;
}

/*
 * Walks over extension headers. Global, so that the verifier looks at it once and not for every way that leads here.
 */
__attribute__((noinline)) __u64 skip_extensions(struct __sk_buff *skb, __u32 offset, __u8 proto)
{
	__u8 h[4] __attribute__((aligned(8)));

	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (!is_extension(proto))
			return NEXT(offset, proto, REASON_COUNTED);
		if (bpf_skb_load_bytes(skb, offset, h, sizeof(h)))
			return NEXT(0, 0, REASON_TRUNCATED);
		if (proto == PROTO_FRAGMENT) {
			/* The fragment's offset is the upper 13 bits. */
			if (h[2] | (h[3] & 0xf8))
				return NEXT(0, 0, REASON_FRAGMENT);
			offset += FRAGMENT_HEADER;
		} else if (proto == PROTO_AUTHENTICATION) {
			offset += ((__u32)h[1] + 2) * 4;
		} else {
			offset += ((__u32)h[1] + 1) * 8;
		}
		proto = h[0];
	}
	if (is_extension(proto))
		return NEXT(0, 0, REASON_EXTENSIONS);
	return NEXT(offset, proto, REASON_COUNTED);
}

/* Reads an IPv6 header and its extension headers, but for the addresses. */
static __always_inline __u64 ipv6_header(struct __sk_buff *skb, __u32 offset)
{
	__u8 h[8] __attribute__((aligned(8)));

	if (load(skb, offset, h, sizeof(h)))
		return NEXT(0, 0, REASON_TRUNCATED);
	if (h[0] >> 4 != 6)
		return NEXT(0, 0, REASON_MALFORMED);
	if (unlikely(is_extension(h[6])))
		return skip_extensions(skb, offset + IPV6_HEADER, h[6]);
	return NEXT(offset + IPV6_HEADER, h[6], REASON_COUNTED);
}

/* Reads an IPv4 header, addresses included. */
static __always_inline __u64 ipv4_header(struct __sk_buff *skb, __u32 offset, struct flow_key *key)
{
	__u8 h[IPV4_HEADER] __attribute__((aligned(8)));
	__u32 length;

	if (load(skb, offset, h, sizeof(h)))
		return NEXT(0, 0, REASON_TRUNCATED);
	length = (h[0] & 0xf) * 4;
	if (h[0] >> 4 != 4 || length < IPV4_HEADER)
		return NEXT(0, 0, REASON_MALFORMED);
	if ((h[6] & 0x1f) | h[7])
		return NEXT(0, 0, REASON_FRAGMENT);
	key->family = 4;
	key->source[10] = key->source[11] = 0xff;
	key->destination[10] = key->destination[11] = 0xff;
	__builtin_memcpy(key->source + 12, h + 12, 4);
	__builtin_memcpy(key->destination + 12, h + 16, 4);
	return NEXT(offset + length, h[9], REASON_COUNTED);
}

/*
 * Fills the key, which must be zero, from a packet that begins with an Ethernet header or, with raw, with that of IP.
 * *headers is then how many bytes come before the payload of TCP or UDP.
 */
static __always_inline enum reason find_flow(struct __sk_buff *skb, int raw, struct flow_key *key, __u32 *headers)
{
	__u16 ethertype = ntohs((__u16)skb->protocol);
	__u8 b[8] __attribute__((aligned(8)));
	__u32 offset = 0;
	__u64 next;

	if (!raw) {
		if (load(skb, 12, b, 4))
			return REASON_TRUNCATED;
		ethertype = (__u16)b[0] << 8 | b[1];
		offset = ETHERNET_HEADER;
		for (int i = 0; i < MAX_VLANS; i++) {
			if (likely(ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_SERVICE_VLAN))
				break;
			if (load(skb, offset, b, VLAN_HEADER))
				return REASON_TRUNCATED;
			ethertype = (__u16)b[2] << 8 | b[3];
			offset += VLAN_HEADER;
		}
	}

	if (likely(ethertype == ETHERTYPE_IPV6)) {
		next = ipv6_header(skb, offset);
		if (NEXT_REASON(next))
			return NEXT_REASON(next);
		if (NEXT_PROTO(next) == PROTO_IPV6 || NEXT_PROTO(next) == PROTO_IPV4) {
			if (load(skb, offset + IPV6_DESTINATION, key->sid, sizeof(key->sid)))
				return REASON_TRUNCATED;
			offset = NEXT_OFFSET(next);
			if (NEXT_PROTO(next) == PROTO_IPV4)
				next = ipv4_header(skb, offset, key);
			else
				next = ipv6_header(skb, offset);
			if (NEXT_REASON(next))
				return NEXT_REASON(next);
			if (NEXT_PROTO(next) == PROTO_IPV6 || NEXT_PROTO(next) == PROTO_IPV4)
				return REASON_NESTED;
		}
		if (key->family != 4) {
			key->family = 6;
			/* Both addresses at once: they are neighbours in the header and in the key. */
			if (load(skb, offset + IPV6_SOURCE, key->source, 32))
				return REASON_TRUNCATED;
		}
	} else if (ethertype == ETHERTYPE_IPV4) {
		next = ipv4_header(skb, offset, key);
		if (NEXT_REASON(next))
			return NEXT_REASON(next);
	} else {
		return REASON_NOT_IP;
	}

	offset = NEXT_OFFSET(next);
	key->protocol = NEXT_PROTO(next);
	if (key->protocol != PROTO_TCP && key->protocol != PROTO_UDP)
		return REASON_PROTOCOL;
	if (load(skb, offset, b, 8))
		return REASON_TRUNCATED;
	key->source_port = (__u16)b[0] << 8 | b[1];
	key->destination_port = (__u16)b[2] << 8 | b[3];
	*headers = offset + UDP_HEADER;
	if (key->protocol == PROTO_TCP) {
		if (load(skb, offset + TCP_OFFSET, b, 8))
			return REASON_TRUNCATED;
		*headers = offset + (b[0] >> 4) * 4;
	}
	return REASON_COUNTED;
}

#endif
