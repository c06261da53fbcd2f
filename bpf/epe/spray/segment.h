/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads the headers of packets of TCP and UDP. */
#ifndef TABANE_SPRAY_SEGMENT_H
#define TABANE_SPRAY_SEGMENT_H

#include "tables.h"

struct segment {
	struct ends ends;
	__u32 sequence;
	__u32 acknowledgment;
	__u32 length;
	__u32 options; /* offset in the packet */
	__u8 options_length;
	__u8 flags;
	__u8 family;
	__u8 protocol; /* PROTO_TCP or PROTO_UDP */
};

#define TCP_SYN 2
#define TCP_ACK 16

#define TIMESTAMPS 12 /* with the padding that puts them first (RFC 7323, appendix A) */

static __always_inline __u32 number32(const __u8 *at)
{
	return ntohl(*(const __u32 *)at);
}

/* The timestamp of a segment, or the one that it echoes; 0 if its options begin with none. */
static __always_inline __u32 timestamp(struct __sk_buff *skb, const struct segment *s, int echoed)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *options = s->options_length < TIMESTAMPS ? 0 : view(skb, s->options, TIMESTAMPS, room);

	return options && number32(options) == 0x0101080a ? number32(options + (echoed ? 8 : 4)) : 0;
}

/* Parses TCP or UDP without IPv6 extension headers; 0 for any other packet. */
static __always_inline int parse(struct __sk_buff *skb, __u32 offset, int received, struct segment *s)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *at;
	__u32 end, header;
	__u8 *source = received ? s->ends.remote : s->ends.local, *destination = received ? s->ends.local : s->ends.remote;
	__u16 from, to;

	at = view(skb, offset, IPV4_HEADER, room);
	if (!at)
		return 0;
	if (at[0] >> 4 == 4) {
		header = (at[0] & 15) * 4;
		if (header < IPV4_HEADER || number(at + 6) & IPV4_DF_MASK)
			return 0;
		s->protocol = at[9];
		end = offset + number(at + IPV4_LENGTH);
		*(__u64 *)source = *(__u64 *)destination = 0;
		*(__u32 *)(source + 8) = *(__u32 *)(destination + 8) = htonl(0xffff);
		copy(source + 12, at + 12, 4);
		copy(destination + 12, at + 16, 4);
		s->family = 4;
		offset += header;
	} else if (at[0] >> 4 == 6) {
		at = view(skb, offset, IPV6_HEADER, room);
		if (!at)
			return 0;
		s->protocol = at[IPV6_NEXT];
		end = offset + IPV6_HEADER + number(at + IPV6_LENGTH);
		copy(source, at + IPV6_SOURCE, 16);
		copy(destination, at + IPV6_DESTINATION, 16);
		s->family = 6;
		offset += IPV6_HEADER;
	} else {
		return 0;
	}
	if (s->protocol != PROTO_TCP && s->protocol != PROTO_UDP)
		return 0;
	at = view(skb, offset, UDP_HEADER, room);
	if (!at)
		return 0;
	from = number(at);
	to = number(at + 2);
	s->ends.local_port = received ? to : from;
	s->ends.remote_port = received ? from : to;
	if (s->protocol == PROTO_UDP) {
		if (offset + UDP_HEADER > end)
			return 0;
		s->length = end - offset - UDP_HEADER;
		return 1;
	}
	at = view(skb, offset, TCP_HEADER, room);
	if (!at)
		return 0;
	s->sequence = number32(at + 4);
	s->acknowledgment = number32(at + 8);
	header = (at[TCP_OFFSET] >> 4) * 4;
	s->flags = at[13];
	if (header < TCP_HEADER || offset + header > end)
		return 0;
	s->length = end - offset - header;
	s->options = offset + TCP_HEADER;
	s->options_length = header - TCP_HEADER;
	return 1;
}

static __always_inline __u32 place(const struct ends *e)
{
	__u64 h = *(const __u64 *)(e->remote + 8) ^ *(const __u64 *)e->remote * 0x9e3779b97f4a7c15ULL;

	h ^= (__u64)e->remote_port << 32 ^ e->local_port;
	h *= 0x9e3779b97f4a7c15ULL;
	h ^= h >> 29;
	h *= 0xbf58476d1ce4e5b9ULL;
	return h >> 52;
}

static __always_inline int same(const struct ends *a, const struct ends *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3])) && a->local_port == b->local_port &&
	       a->remote_port == b->remote_port;
}

#endif
