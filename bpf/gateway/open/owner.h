/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Whose an address is, by the tables that user space keeps. */
#ifndef TABANE_OPEN_OWNER_H
#define TABANE_OPEN_OWNER_H

#include "tables.h"

/* What the last packet from or to an address has found; 0 if another one has been there since. */
static __always_inline struct owner *last_owner(const __u64 *address, __u32 family)
{
	__u32 slot = ((address[0] ^ address[1]) * 0x9e3779b97f4a7c15ULL >> 56 ^ family) & (OWNERS - 1);

	return bpf_map_lookup_elem(&owners, &slot);
}

static __always_inline int is_owner(const struct owner *o, const __u64 *address, __u32 family, __u32 epoch)
{
	return o->address[0] == address[0] && o->address[1] == address[1] && o->family == family && o->epoch == epoch;
}

static __always_inline __u32 set_owner(struct owner *o, const __u64 *address, __u32 family, __u32 epoch, const __u32 *found)
{
	o->address[0] = address[0];
	o->address[1] = address[1];
	o->family = family;
	o->epoch = epoch;
	o->owner = found ? *found : NOBODY;
	return o->owner;
}

/* Whose an address is: the number of the peer plus 1, OWN, 0 for what is the kernel's, or NOBODY. */
static __always_inline __u32 owner_of(const struct setup *s, const __u64 *address, __u32 family)
{
	struct owner *o = last_owner(address, family);
	struct route r = {.length = 32 + 128, .family = family};
	/* Before what it is compared with is looked up. */
	__u32 epoch = *(volatile const __u32 *)&s->epoch;

	if (!o)
		return NOBODY;
	if (likely(is_owner(o, address, family, epoch)))
		return o->owner;
	__builtin_memcpy(r.address, address, sizeof(r.address));
	return set_owner(o, address, family, epoch, bpf_map_lookup_elem(&routes, &r));
}

/* Whether packets of a peer may be sent to an address. */
static __always_inline int may_reach(__u32 peer, const __u64 *address)
{
	const __u32 *limited = bpf_map_lookup_elem(&limits, &peer);
	struct reach to = {.length = 32 + 128, .peer = peer};

	if (!limited || likely(!*limited))
		return 1;
	__builtin_memcpy(to.address, address, sizeof(to.address));
	return bpf_map_lookup_elem(&allowed, &to) != 0;
}

/* Whether no router forwards packets to an address: internal/gateway/dataplane/source.go has the list. */
static __always_inline int is_of_no_host(const __u64 *address, __u32 family)
{
	const __u8 *a = (const __u8 *)address;

	if (family == AF_INET)
		return a[12] == 0 || a[12] == 127 || a[12] >= 224 || (a[12] == 169 && a[13] == 254);
	return a[0] == 0xff || (a[0] == 0xfe && (a[1] & 0xc0) == 0x80) ||
	       (!address[0] && (!*(const __u32 *)(a + 8) || *(const __u32 *)(a + 8) == htonl(0xffff)));
}

/* The number of the peer that has a path with the address, and of the path, or NOBODY. */
static __always_inline __u32 origin_of(const struct setup *s, const __u64 *address, __u32 family)
{
	struct owner *o = last_owner(address, family | IS_ORIGIN);
	struct origin from = {.family = family};
	__u32 epoch = *(volatile const __u32 *)&s->epoch;

	if (!o)
		return NOBODY;
	if (likely(is_owner(o, address, family | IS_ORIGIN, epoch)))
		return o->owner;
	__builtin_memcpy(from.address, address, sizeof(from.address));
	return set_owner(o, address, family | IS_ORIGIN, epoch, bpf_map_lookup_elem(&origins, &from));
}

#endif
