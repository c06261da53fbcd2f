// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Opens MPTCP sockets in place of the TCP sockets of the programs of a control group.
 *
 * The kernel calls update_socket_protocol, which returns its last argument, for this purpose with each
 * socket that is opened.
 *
 * Needs Linux 6.6 with BTF. It does not change sockets that are open, nor sockets of other programs.
 */
#include "bpf.h"

enum {
	AF_INET = 2,
	AF_INET6 = 10,
	SOCK_STREAM = 1,
	IPPROTO_TCP = 6,
	IPPROTO_MPTCP = 262,
	BPF_MAP_TYPE_CGROUP_ARRAY = 8,
};

static long (*bpf_current_task_under_cgroup)(void *map, __u32 index) = (void *)37;

/* The control group of the program, in version 2 of the hierarchy. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} group SEC(".maps");

static __always_inline int protocol_of(int family, int type, int protocol)
{
	if ((family != AF_INET && family != AF_INET6) || type != SOCK_STREAM || (protocol && protocol != IPPROTO_TCP))
		return protocol;
	return bpf_current_task_under_cgroup(&group, 0) == 1 ? IPPROTO_MPTCP : protocol;
}

SEC("fmod_ret/update_socket_protocol")
int update(__u64 *arguments)
{
	return protocol_of(arguments[0], arguments[1], arguments[2]);
}

/* The same for tests, also where the kernel does not let programs change what functions return. */
SEC("raw_tp/test")
int try(__u64 *arguments)
{
	return protocol_of(arguments[0], arguments[1], arguments[2]);
}
