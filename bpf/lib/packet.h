/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Parses the flow of a packet: the inner 5-tuple, and the SID if the packet is encapsulated.
 *
 * Supports Ethernet with up to two VLAN tags, IPv6 and IPv4, and one level of
 * IPv6 encapsulation (RFC 8986, H.Encaps and H.Encaps.Red) with any extension headers, a segment
 * routing header (RFC 8754) among them. Packets are untrusted: every length is checked and every
 * loop is bounded. The packet is only read, but by trim and is_for_host, which do what the kernel does next.
 *
 * It has no maps. Its Go reference for tests is in internal/epe/flowcount.
 */
#ifndef TABANE_PACKET_H
#define TABANE_PACKET_H

#include "bpf.h"

/* Why a packet belongs to no flow; 0 when it does. The values are indices of a map that user
 * space reads. */
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
 * A flow in one direction on one interface. IPv4 addresses are mapped into IPv6 (::ffff:0:0/96).
 * The SID is zero for packets that are not encapsulated. Ports are in host byte order, destination
 * first: read as one 32-bit number they are the byte-swapped number in the packet. Source and
 * destination must stay adjacent.
 */
struct flow_key {
	__u8 source[16];
	__u8 destination[16];
	__u8 sid[16];
	__u16 destination_port;
	__u16 source_port;
	__u32 ifindex;
	__u8 family;    /* 4 or 6: the inner packet's */
	__u8 protocol;  /* IPPROTO_TCP or IPPROTO_UDP */
	__u8 direction; /* 0 received, 1 sent */
	__u8 removed;   /* 0 in every key that is looked for */
};

enum {
	MAX_VLANS = 2,
	MAX_EXTENSIONS = 8, /* for the outer and the inner header each */

	PACKET_HOST = 0, /* of skb->pkt_type */

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
	ETHERNET_TYPE = 12,
	VLAN_HEADER = 4,
	VLAN_ID = 0xfff, /* of a tag; 0: it has a priority only */
	IPV4_HEADER = 20,
	IPV4_DF_MASK = 0x3fff, /* of the fragment field: more fragments, and the offset */
	IPV4_LENGTH = 2,
	IPV4_TTL = 8,
	IPV6_HEADER = 40,
	IPV6_LENGTH = 4, /* of what follows the header */
	IPV6_NEXT = 6,
	IPV6_HOP_LIMIT = 7,
	IPV6_SOURCE = 8,
	IPV6_DESTINATION = 24,
	EXTENSION_START = 4, /* what is looked at of an extension header */
	FRAGMENT_HEADER = 8,
	TCP_HEADER = 20,
	TCP_OFFSET = 12, /* of the byte whose upper half is the header's length */
	UDP_HEADER = 8,

	LONGEST_VIEW = IPV6_HEADER,
};

/*
 * A pointer to size bytes of the packet, size being constant: into the packet itself if they are
 * linear, as headers nearly always are, which is several times as fast; otherwise to a copy in
 * room, of LONGEST_VIEW bytes. NULL when the packet is too short.
 */
static __always_inline const __u8 *view(struct __sk_buff *skb, __u32 offset, __u32 size, void *room)
{
	const __u8 *data = (const __u8 *)(long)skb->data;
	const __u8 *end = (const __u8 *)(long)skb->data_end;

	/* The bound keeps the verifier within MAX_PACKET_OFF. */
	if (likely(offset < 0x7fff)) {
		data += offset;
		if (likely(data + size <= end))
			return data;
	}
	return bpf_skb_load_bytes(skb, offset, room, size) ? 0 : room;
}

/* An integer of the packet, in host byte order. */
static __always_inline __u16 number(const __u8 *at)
{
	return ntohs(*(const __u16 *)at);
}

/* Copies size bytes; size is a constant multiple of 4, and to is aligned to it. */
static __always_inline void copy(__u8 *to, const __u8 *from, __u32 size)
{
	__u32 i = 0;

	for (; i + 8 <= size; i += 8)
		*(__u64 *)(to + i) = *(const __u64 *)(from + i);
	if (i < size)
		*(__u32 *)(to + i) = *(const __u32 *)(from + i);
}

/* The next header, packed into one integer so that a function can return it: offset, protocol
 * and the reason if it is unknown. */
#define NEXT(offset, type, reason) ((__u32)(offset) | (__u64)(type) << 32 | (__u64)(reason) << 48)
#define NEXT_OFFSET(next) ((__u32)(next))
#define NEXT_TYPE(next) ((__u16)((next) >> 32))
#define NEXT_REASON(next) ((__u8)((next) >> 48))

static __always_inline int is_tag(__u16 ethertype)
{
	return ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_SERVICE_VLAN;
}

/* Skips VLAN tags. A global function, so that the verifier checks it once and not for every path
 * to it. */
__attribute__((noinline)) __u64 skip_tags(struct __sk_buff *skb, __u16 ethertype)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	__u32 offset = ETHERNET_HEADER;

	for (int i = 0; i < MAX_VLANS && is_tag(ethertype); i++) {
		const __u8 *h = view(skb, offset, VLAN_HEADER, room);

		if (!h)
			return NEXT(0, 0, REASON_TRUNCATED);
		ethertype = number(h + 2);
		offset += VLAN_HEADER;
	}
	return NEXT(offset, ethertype, REASON_COUNTED);
}

static __always_inline int is_extension(__u8 proto)
{
	return proto == PROTO_HOP_BY_HOP || proto == PROTO_ROUTING || proto == PROTO_DESTINATION_OPTIONS ||
	       proto == PROTO_AUTHENTICATION || proto == PROTO_FRAGMENT;
}

/* Skips extension headers. Global for the same reason. */
__attribute__((noinline)) __u64 skip_extensions(struct __sk_buff *skb, __u32 offset, __u8 proto)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));

	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		const __u8 *h;

		if (!is_extension(proto))
			return NEXT(offset, proto, REASON_COUNTED);
		h = view(skb, offset, EXTENSION_START, room);
		if (!h)
			return NEXT(0, 0, REASON_TRUNCATED);
		if (proto == PROTO_FRAGMENT) {
			/* The fragment offset is the upper 13 bits. */
			if (number(h + 2) >> 3)
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

/* Reads an IPv6 header and skips its extension headers. */
static __always_inline __u64 ipv6_header(struct __sk_buff *skb, __u32 offset, struct flow_key *key)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *h = view(skb, offset, IPV6_HEADER, room);
	__u8 proto;

	if (!h)
		return NEXT(0, 0, REASON_TRUNCATED);
	if (h[0] >> 4 != 6)
		return NEXT(0, 0, REASON_MALFORMED);
	proto = h[IPV6_NEXT];
	key->family = 6;
	/* Both addresses at once: they are adjacent in the header and in the key. */
	copy(key->source, h + IPV6_SOURCE, 32);
	if (unlikely(is_extension(proto)))
		return skip_extensions(skb, offset + IPV6_HEADER, proto);
	return NEXT(offset + IPV6_HEADER, proto, REASON_COUNTED);
}

/*
 * Whether a frame is for this host, and of no virtual LAN: those are of another interface. A tag that has a priority only is
 * removed, because packets that are redirected keep it.
 */
static __always_inline int is_for_host(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST)
		return 0;
	return likely(!skb->vlan_present) || (!(skb->vlan_tci & VLAN_ID) && !bpf_skb_vlan_pop(skb));
}

/* The length of an IP packet by its header at h, 0 if it does not hold the header. */
static __always_inline __u32 ip_length(const __u8 *h, int ipv6)
{
	__u32 length = number(h + (ipv6 ? IPV6_LENGTH : IPV4_LENGTH));

	if (ipv6)
		return length + IPV6_HEADER;
	return length < IPV4_HEADER ? 0 : length;
}

/*
 * Ends a frame where its IP packet of a length does, which begins at an offset, as ip_rcv and ip6_rcv do: Ethernet pads frames to
 * 60 bytes, and switches and drivers leave trailers. Returns nonzero if the packet does not end within the frame. The length of a
 * super-packet is that of all segments, which may be more than the field holds. Pointers into the packet are invalid afterwards.
 */
static __always_inline int trim(struct __sk_buff *skb, __u32 offset, __u32 length)
{
	if (likely(offset + length == skb->len) || skb->gso_size)
		return 0;
	return !length || offset + length > skb->len ? -1 : bpf_skb_change_tail(skb, offset + length, 0);
}

/* Into how many segments a super-packet with a payload is divided. */
static __always_inline __u32 segments_of(const struct __sk_buff *skb, __u32 payload)
{
	return (payload + skb->gso_size - 1) / skb->gso_size;
}

static __always_inline void map_address(__u8 *to, const __u8 *from)
{
	*(__u64 *)to = 0;
	to[8] = to[9] = 0;
	to[10] = to[11] = 0xff;
	copy(to + 12, from, 4);
}

static __always_inline __u64 ipv4_header(struct __sk_buff *skb, __u32 offset, struct flow_key *key)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *h = view(skb, offset, IPV4_HEADER, room);
	__u32 length;

	if (!h)
		return NEXT(0, 0, REASON_TRUNCATED);
	length = (h[0] & 0xf) * 4;
	if (h[0] >> 4 != 4 || length < IPV4_HEADER)
		return NEXT(0, 0, REASON_MALFORMED);
	if (number(h + 6) & 0x1fff)
		return NEXT(0, 0, REASON_FRAGMENT);
	key->family = 4;
	map_address(key->source, h + 12);
	map_address(key->destination, h + 16);
	return NEXT(offset + length, h[9], REASON_COUNTED);
}

/*
 * Fills the key, which must be zeroed and 8-byte aligned, from a packet that begins with an
 * Ethernet header or, if raw, with an IP header. Sets *headers to the bytes before the payload
 * of TCP or UDP.
 */
static __always_inline enum reason find_flow(struct __sk_buff *skb, int raw, struct flow_key *key, __u32 *headers)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	__u16 type = ntohs((__u16)skb->protocol);
	__u32 offset = 0;
	const __u8 *h;
	__u64 next;

	if (!raw) {
		h = view(skb, 0, ETHERNET_HEADER, room);
		if (!h)
			return REASON_TRUNCATED;
		type = number(h + ETHERNET_TYPE);
		offset = ETHERNET_HEADER;
		if (unlikely(is_tag(type))) {
			next = skip_tags(skb, type);
			if (NEXT_REASON(next))
				return NEXT_REASON(next);
			type = NEXT_TYPE(next);
			offset = NEXT_OFFSET(next);
		}
	}

	/* Outer and inner header share code: little of it stays in the instruction cache between
	 * packets. */
#pragma clang loop unroll(disable)
	for (int inside = 0;; inside = 1) {
		if (likely(type == ETHERTYPE_IPV6))
			next = ipv6_header(skb, offset, key);
		else if (type == ETHERTYPE_IPV4)
			next = ipv4_header(skb, offset, key);
		else
			return REASON_NOT_IP;
		if (NEXT_REASON(next))
			return NEXT_REASON(next);
		offset = NEXT_OFFSET(next);
		key->protocol = NEXT_TYPE(next);
		if (key->protocol != PROTO_IPV6 && key->protocol != PROTO_IPV4)
			break;
		if (inside)
			return REASON_NESTED;
		/* Encapsulation in IPv4 is not parsed. */
		if (type == ETHERTYPE_IPV4)
			return REASON_PROTOCOL;
		copy(key->sid, key->destination, sizeof(key->sid));
		type = key->protocol == PROTO_IPV6 ? ETHERTYPE_IPV6 : ETHERTYPE_IPV4;
	}

	if (likely(key->protocol == PROTO_TCP)) {
		h = view(skb, offset, TCP_HEADER, room);
		if (!h)
			return REASON_TRUNCATED;
		*headers = offset + (h[TCP_OFFSET] >> 4) * 4;
	} else if (key->protocol == PROTO_UDP) {
		h = view(skb, offset, UDP_HEADER, room);
		if (!h)
			return REASON_TRUNCATED;
		*headers = offset + UDP_HEADER;
	} else {
		return REASON_PROTOCOL;
	}
	key->source_port = number(h);
	key->destination_port = number(h + 2);
	return REASON_COUNTED;
}

#endif
