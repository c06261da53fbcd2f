// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Reports for a test which TCP sockets of a network namespace the kernel paces. */
#include "bpf.h"

struct seq_file;
struct sock_common;

struct bpf_iter_meta {
	struct seq_file *seq;
} KERNEL;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} KERNEL;

struct sock {
	__u32 sk_pacing_status;
} KERNEL;

struct tcp_sock {
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 delivered;
	_Bool is_mptcp;
} KERNEL;

static long (*bpf_seq_write)(struct seq_file *to, const void *data, __u32 len) = (void *)127;
static struct tcp_sock *(*bpf_skc_to_tcp_sock)(void *sk) = (void *)137;

struct pacing {
	__u32 window, threshold, delivered; /* in segments */
	__u32 status, subflow;
};

const struct pacing *_pacing __attribute__((unused));

SEC("iter/tcp")
int report(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct tcp_sock *tp;
	struct pacing p;

	if (!sk)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	p.window = tp->snd_cwnd;
	p.threshold = tp->snd_ssthresh;
	p.delivered = tp->delivered;
	p.status = ((struct sock *)tp)->sk_pacing_status;
	p.subflow = tp->is_mptcp;
	bpf_seq_write(ctx->meta->seq, &p, sizeof(p));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
