/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Replaces an address of a packet, and what that changes in checksums. */
#ifndef TABANE_OPEN_ADDRESS_H
#define TABANE_OPEN_ADDRESS_H

#include "tables.h"

/* Where a packet has an address, and a checksum that it is part of. */
struct place {
	__u32 family;
	__u32 address;	/* offset in the packet */
	__u32 checksum; /* of TCP, UDP or ICMPv6, in its header, which follows that of IP; 0: none */
	__u32 flags;
};

/* Where a transport has a checksum that the addresses are part of, 0: it has none. */
static __always_inline __u32 checksum_of(__u8 protocol)
{
	if (protocol == PROTO_TCP)
		return 16;
	if (protocol == PROTO_UDP)
		return 6;
	return protocol == PROTO_ICMPV6 ? ICMP_CHECK : 0;
}

/* The checksum of a packet's transport that the addresses are part of. */
static __always_inline void set_checksum(struct place *at, const struct packet *p)
{
	at->family = p->family;
	at->checksum = checksum_of(p->protocol);
	at->flags = BPF_F_PSEUDO_HDR;
	if (p->protocol == PROTO_UDP)
		at->flags |= BPF_F_MARK_MANGLED_0;
}

/* Members of the kernel's structure that are read here. */
struct sk_buff {
	__u8 ip_summed : 2;
} KERNEL;

extern void *bpf_cast_to_kern_ctx(void *context) __attribute__((section(".ksyms"), weak)); /* Linux 6.2 */

/* How the kernel knows the checksum of a packet, CHECKSUM_COMPLETE if that is not known. */
static __always_inline __u32 summed(struct __sk_buff *skb)
{
	const struct sk_buff *kernel;
	__u64 bits;

	if (!bpf_cast_to_kern_ctx)
		return CHECKSUM_COMPLETE;
	kernel = bpf_cast_to_kern_ctx(skb);
	/* The byte that has the bits, and how far to shift it as a number of 64 bits. */
	bits = *((const __u8 *)kernel + __builtin_preserve_field_info(kernel->ip_summed, 0));
	return bits << __builtin_preserve_field_info(kernel->ip_summed, 4) >> __builtin_preserve_field_info(kernel->ip_summed, 5);
}

/* Adds to a sum in one's complement a difference of as many bits. */
static __always_inline __u16 add_sum(__u16 sum, __u16 difference)
{
	__u32 v = (__u32)sum + difference;

	return v + (v >> 16);
}

/* What the words of an address change in a sum that they are part of (RFC 1624). Those of IPv4 differ in the last one. */
static __always_inline __u16 difference(const __u32 *from, const __u32 *to, __u32 family)
{
	__u64 v = (__u64)(__u32)~from[3] + to[3];

	if (family == AF_INET6)
		v += (__u64)(__u32)~from[0] + to[0] + (__u32)~from[1] + to[1] + (__u32)~from[2] + to[2];
	v = (v & 0xffffffff) + (v >> 32);
	v = (v & 0xffff) + (v >> 16);
	return (v & 0xffff) + (v >> 16);
}

/*
 * Replaces an address, which is a word of IPv4 or four of IPv6. The checksum of the transport is changed by hand, because a
 * helper takes as long as several lookups. Where the kernel has summed the packet (CHECKSUM_COMPLETE), helpers keep that right.
 */
static __always_inline int set_address(struct __sk_buff *skb, const struct place *at, const void *from, const void *to)
{
	__u8 *h = (__u8 *)(long)skb->data + LINK_HEADER;
	const __u8 *end = (const __u8 *)(long)skb->data_end;
	__u32 how = summed(skb), header = IPV6_HEADER;
	__u16 by = difference(from, to, at->family), *check;

	if (at->family == AF_INET) {
		header = IPV4_HEADER;
		if (h + IPV4_HEADER > end)
			return -1;
		check = (__u16 *)(h + IPV4_CHECK);
		*check = ~add_sum(~*check, by);
		copy(h + (at->address == LINK_HEADER + 12 ? 12 : 16), to + 12, 4);
	} else {
		if (h + IPV6_HEADER > end)
			return -1;
		copy(h + (at->address == LINK_HEADER + IPV6_SOURCE ? IPV6_SOURCE : IPV6_DESTINATION), to, 16);
		if (how == CHECKSUM_COMPLETE)
			bpf_csum_update(skb, by);
	}
	if (!at->checksum)
		return 0;
	if (how == CHECKSUM_COMPLETE)
		return bpf_l4_csum_replace(skb, LINK_HEADER + header + at->checksum, 0, by, at->flags);
	h += header + (at->checksum & TRANSPORT_CHECKSUM);
	if (h + sizeof(*check) > end)
		return -1;
	check = (__u16 *)h;
	/* UDP without a checksum. */
	if (at->flags & BPF_F_MARK_MANGLED_0 && !*check)
		return 0;
	if (how == CHECKSUM_PARTIAL)
		*check = add_sum(*check, by);
	else
		*check = ~add_sum(~*check, by);
	if (at->flags & BPF_F_MARK_MANGLED_0 && !*check)
		*check = 0xffff;
	return 0;
}

#endif
