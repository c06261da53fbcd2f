/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The ends of a socket of the kernel, for programs at tracepoints. */
#ifndef TABANE_SOCKET_H
#define TABANE_SOCKET_H

#include "bpf.h"

#define READ(to, pointer, member) bpf_probe_read_kernel(&(to), sizeof(to), &(pointer)->member)

#define AF_INET 2

/* Members of the kernel's structures that are read here. A program declares those of struct net. */
struct net;

typedef struct {
	struct net *net;
} KERNEL possible_net_t;

struct in6_addr {
	__u8 bytes[16];
};

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__u16 skc_dport;
	__u16 skc_num;
	__u16 skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} KERNEL;

static __always_inline void store_address(__u8 *to, __u16 family, const struct in6_addr *address, __u32 address4)
{
	if (family == AF_INET) {
		__builtin_memset(to, 0, 10);
		to[10] = to[11] = 0xff;
		__builtin_memcpy(to + 12, &address4, sizeof(address4));
		return;
	}
	__builtin_memcpy(to, address, 16);
}

/* Reads the addresses, those of IPv4 sockets as IPv4-mapped ones, and the ports in host byte order. */
static __always_inline void read_ends(const struct sock_common *sk, __u8 *local, __u16 *local_port, __u8 *remote, __u16 *remote_port)
{
	struct in6_addr address = {};
	__u32 address4 = 0;
	__u16 family = 0;

	READ(family, sk, skc_family);
	READ(address, sk, skc_v6_rcv_saddr);
	READ(address4, sk, skc_rcv_saddr);
	store_address(local, family, &address, address4);
	READ(address, sk, skc_v6_daddr);
	READ(address4, sk, skc_daddr);
	store_address(remote, family, &address, address4);
	READ(*local_port, sk, skc_num);
	READ(*remote_port, sk, skc_dport);
	*remote_port = ntohs(*remote_port);
}

#endif
