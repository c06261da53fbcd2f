// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reports MPTCP subflows whose data in flight makes no progress, so that idle connections and those
 * that progress cost user space nothing.
 *
 * A subflow is examined where the kernel retransmits, which after a tail loss probe or a timeout means
 * that no acknowledgment arrived, and where the MPTCP scheduler examines it to send something, because
 * new data postpones that probe. User space decides whether the path failed.
 *
 * Needs Linux 5.13 with BTF: it reads members of the kernel's structures, whose offsets the loader
 * sets. It neither changes sockets nor decides about them.
 */
#include "bpf.h"
#include "socket.h"

/* Members of the kernel's structures that are read here. */
struct ns_common {
	__u32 inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
} KERNEL;

struct inet_connection_sock {
	void *icsk_ulp_data;
} KERNEL;

struct tcp_sock {
	__u32 packets_out;
	__u32 srtt_us;
	__u32 mdev_us;
	__u64 delivered_mstamp;
} KERNEL;

struct list_head {
	struct list_head *next, *prev;
} KERNEL;

struct mptcp_subflow_context {
	struct list_head node;
	__u32 token;
	struct sock *tcp_sock;
} KERNEL;

/* A subflow without progress. Addresses of IPv4 sockets are IPv4-mapped. */
struct report {
	__u32 token;      /* of the connection on this host */
	__u32 silence_us; /* since the last progress, or since data is in flight */
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
};

/* Keeps the type in the object, for the bindings. */
const struct report *_report __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} reports SEC(".maps");

/*
 * When a socket was last reported, so that each is reported at most every INTERVAL: its identity in
 * the upper half, milliseconds in the lower. A collision only causes further reports.
 */
#define INTERVAL_MS 20
#define RECENT 16384
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECENT);
	__type(key, __u32);
	__type(value, __u64);
} recent SEC(".maps");

/* Reports that did not fit into the ring buffer. */
__u64 lost;

/* The inode number of the network namespace whose subflows are reported. */
volatile const __u32 netns;

/*
 * User space waits for the larger of least, or least_short with fewer segments than short_flight in
 * flight, and 3 RTT + 4 RTTVAR, before a subflow without progress counts as stalled. In microseconds.
 */
volatile const __u32 least;
volatile const __u32 least_short;
volatile const __u32 short_flight;

#define SPREAD 0x9e3779b97f4a7c15ULL

static __attribute__((noinline)) int send_report(struct sock *sk, __u32 token, __u64 silence, __u64 now)
{
	__u64 *last, identity = (__u64)sk * SPREAD;
	__u32 slot = identity >> 50, ms = now / 1000;
	struct report r = {};

	last = bpf_map_lookup_elem(&recent, &slot);
	if (!last)
		return 0;
	identity = identity << 18 >> 32;
	if (*last >> 32 == identity && ms - (__u32)*last < INTERVAL_MS)
		return 0;
	r.token = token;
	r.silence_us = silence > ~0U ? ~0U : silence;
	read_ends(&sk->__sk_common, r.local, &r.local_port, r.remote, &r.remote_port);
	if (bpf_ringbuf_output(&reports, &r, sizeof(r), 0)) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	*last = identity << 32 | ms;
	return 0;
}

/* Examines a subflow. A retransmission after a round trip without progress is not waited for. */
static __always_inline void examine(struct mptcp_subflow_context *subflow, struct sock *sk, int retransmission)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u64 now = bpf_ktime_get_ns() / 1000, progress = 0, silence;
	__u32 in_flight = 0, srtt = 0, mdev = 0, inum = 0, token = 0;
	void *next = 0, *prev = 0;
	struct net *net = 0;
	__u64 timeout;

	READ(in_flight, tp, packets_out);
	if (!in_flight)
		return;
	READ(progress, tp, delivered_mstamp);
	silence = now - progress;
	READ(srtt, tp, srtt_us);
	srtt >>= 3;
	if ((__s64)silence < srtt)
		return;
	if (!retransmission) {
		READ(mdev, tp, mdev_us);
		timeout = 3 * (__u64)srtt + mdev;
		if (timeout < (in_flight < short_flight ? least_short : least))
			timeout = in_flight < short_flight ? least_short : least;
		/* Early enough for user space to examine the other subflows twice. */
		if (silence < timeout * 2 / 5)
			return;
	}
	READ(net, sk, __sk_common.skc_net.net);
	READ(inum, net, ns.inum);
	if (inum != netns)
		return;
	/* The only subflow of a connection leads to the list's head in both directions. */
	READ(next, subflow, node.next);
	READ(prev, subflow, node.prev);
	if (next == prev)
		return;
	READ(token, subflow, token);
	send_report(sk, token, silence, now);
}

/* tcp_retransmit_skb(const struct sock *sk, const struct sk_buff *skb, ...) */
SEC("raw_tp/tcp_retransmit_skb")
int retransmitted(struct bpf_raw_tracepoint_args *ctx)
{
	struct sock *sk = (struct sock *)ctx->args[0], *owner = 0;
	struct mptcp_subflow_context *subflow = 0;

	READ(subflow, (struct inet_connection_sock *)sk, icsk_ulp_data);
	if (!subflow)
		return 0;
	/* Other protocols above TCP have data of their own there. */
	READ(owner, subflow, tcp_sock);
	if (owner == sk)
		examine(subflow, sk, 1);
	return 0;
}

/* mptcp_subflow_get_send(struct mptcp_subflow_context *subflow) */
SEC("raw_tp/mptcp_subflow_get_send")
int scheduled(struct bpf_raw_tracepoint_args *ctx)
{
	struct mptcp_subflow_context *subflow = (struct mptcp_subflow_context *)ctx->args[0];
	struct sock *sk = 0;

	READ(sk, subflow, tcp_sock);
	if (sk)
		examine(subflow, sk, 0);
	return 0;
}

/* The kernel accepts the helpers for memory and tracing from such programs only. */
char _license[] SEC("license") = "Dual BSD/GPL";
