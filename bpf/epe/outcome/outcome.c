// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reports what each TCP connection achieved when it is closed, the first time that it has carried much,
 * now and then what an object took on one that goes on, and retransmission timeouts, also those of SYN-ACKs of connections that are not established, and flows
 * of UDP whose sender gets no acknowledgments. Nothing is polled. Keeps senders of QUIC from finding an
 * MTU that only some paths have.
 *
 * Needs Linux 5.16 with BTF and a control group of version 2 that the sockets are in. It changes no
 * socket.
 */
#include "bpf.h"
#include "socket.h"
#include "packet.h"
#include "backoff.h"

/* The context: struct bpf_sock_ops up to the last member that is used. */
struct bpf_sock_ops {
	__u32 op;
	__u32 args[4];
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port; /* in the upper half, in network byte order */
	__u32 local_port;
	__u32 is_fullsock;
	__u32 snd_cwnd;
	__u32 srtt_us; /* times 8 */
	__u32 bpf_sock_ops_cb_flags;
	__u32 state;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mss_cache;
	__u32 ecn_flags;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 segs_in;
	__u32 data_segs_in;
	__u32 segs_out;
	__u32 data_segs_out;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 sk_txhash;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u64 sk __attribute__((aligned(8)));
};

enum {
	ACTIVE_ESTABLISHED = 4,
	PASSIVE_ESTABLISHED = 5,
	RTO = 8,
	RTT = 12,

	RTO_FLAG = 1 << 0,
	RTT_FLAG = 1 << 3,
};

struct tcp_sock;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *skops, int flags) = (void *)59;
static __u64 (*bpf_get_netns_cookie)(void *ctx) = (void *)122;
static struct tcp_sock *(*bpf_skc_to_tcp_sock)(void *sk) = (void *)137;

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
} KERNEL;

/* Members of the kernel's structures that are read here. In jiffies: busy without a limit, limited by
 * the receive window, by the send buffer. An interval that has not ended began at chrono_start, and is
 * of a type from 1 on; 0: there is none. */
struct tcp_sock {
	__u32 chrono_start;
	__u32 chrono_stat[3];
	__u8 chrono_type : 2;
	__u64 bytes_acked;
	__u32 srtt_us; /* times 8 */
	struct minmax rtt_min;
	__u32 data_segs_out;
	__u32 total_retrans;
	__u8 bpf_sock_ops_cb_flags;
} KERNEL;

/* Unlike skc_num, this port stays when the socket is closed. */
struct inet_sock {
	__u16 inet_sport;
} KERNEL;

struct net {
	__u64 net_cookie;
} KERNEL;

struct request_sock {
	struct sock_common __req_common;
	__u8 num_retrans;
} KERNEL;

/* The first type. */
#define BUSY 1

static __always_inline __u32 chrono_type(const struct tcp_sock *tp)
{
	__u64 bits = *((const __u8 *)tp + __builtin_preserve_field_info(tp->chrono_type, 0));

	return bits << __builtin_preserve_field_info(tp->chrono_type, 4) >> __builtin_preserve_field_info(tp->chrono_type, 5);
}

enum kind {
	CLOSED,
	BULK,   /* the connection has carried as much as a bulk connection */
	TIMEOUT, /* its retransmission timer expired, again if retries > 0 */
	UNANSWERED, /* the SYN-ACK of a connection that is not established is sent again, likewise */
	UNACKNOWLEDGED, /* the sender of a flow of UDP gets no acknowledgments, as its pauses say */
	OBJECT, /* the connection sends something again after all was acknowledged, which the report is of */
	UNFIT /* a flow as of QUIC sends packets over the best path that would not fit with a SID */
};

/* What a connection achieved. Addresses of IPv4 sockets are IPv4-mapped. */
struct report {
	__u64 acked;       /* bytes */
	__u64 carried;	   /* bytes, since the last report of an object */
	__u64 duration_us; /* since the connection was established */
	__u64 busy_us, window_us, buffer_us; /* busy, of which limited */
	__u32 srtt_us, min_rtt_us; /* ~0: not known */
	__u32 sent, retransmitted; /* segments */
	__u32 retries;
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 kind;
	__u32 objects; /* some of what it carried was reported as such */
};

/* Keeps the type in the object, for the bindings. */
const struct report *_report __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} reports SEC(".maps");

/* A connection, in a cache line. */
struct began {
	__u64 sk; /* the address of its socket; 0: the entry is free */
	/* When it was established. */
	__u64 ns;
	__u64 jiffies;
	/* When the last object was reported, and the bytes acknowledged by then. */
	__u64 reported_ns;
	__u64 reported;
	/* At the first acknowledgment of an object: the bytes acknowledged, modulo 2^32, chrono_start, 0 if
	 * there is no such object, and chrono_stat. */
	__u32 acked;
	__u32 start;
	__u32 stat[3];
	/* What was reported of it while it went on. */
	__u8 bulk;
	__u8 objects;
};

/* An object is reported that has so many bytes, of a connection at most one in OBJECT_NS, and of every
 * fourth one the first: most connections end before, which says the same. */
#define OBJECT_BYTES 4096
#define OBJECT_NS 2000000000ULL
#define FIRST_OBJECTS 4

/* There are 2 to this power entries. A connection is in one of so many, one after the other: with half as
 * many connections at a time as entries, all but 2 of 1,000 find one. */
volatile const __u32 table_bits = 10;
#define PROBES 16

/* A hash table by the address of the socket, without the memory management and the locks of one of the
 * kernel, which take most of the time there. Socket storage takes even more. The lock of the socket is
 * held while its entry is used. What is left where the end of a socket was missed is replaced when the
 * address is used again. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << 10); /* as of table_bits */
	__type(key, __u32);
	__type(value, struct began);
} connections SEC(".maps");

static __always_inline __u32 hash_socket(const void *sk)
{
	__u32 low;

	/* The verifier permits no other arithmetic with such an address than to copy its lower half. */
	asm volatile("%0 = %1" : "=w"(low) : "w"((__u32)(__u64)sk));
	return low * 0x9e3779b1U >> (32 - table_bits); /* 2^32 divided by the golden ratio */
}

static __always_inline struct began *entry(__u32 hash, __u32 probe)
{
	__u32 at = (hash + probe) & ((1U << table_bits) - 1);

	return bpf_map_lookup_elem(&connections, &at);
}

static __always_inline struct began *find_connection(const void *sk)
{
	__u32 hash = hash_socket(sk);

	for (__u32 probe = 0; probe < PROBES; probe++) {
		struct began *began = entry(hash, probe);

		if (began && began->sk == (__u64)sk)
			return began;
	}
	return 0;
}

static __always_inline struct began *add_connection(const void *sk)
{
	__u32 hash = hash_socket(sk);

	for (__u32 probe = 0; probe < PROBES; probe++) {
		struct began *began = entry(hash, probe);

		if (began && (began->sk == (__u64)sk || (!began->sk && !__sync_val_compare_and_swap(&began->sk, 0, (__u64)sk))))
			return began;
	}
	return 0;
}

/* Reports that did not fit into the ring buffer, and connections that did not fit into their map. */
__u64 lost;

/* Closed connections whose callbacks another program has switched off. */
__u64 silenced;

/* The cookie of the network namespace whose connections are reported. */
volatile const __u64 netns;
/* The bytes from which a connection is bulk. */
volatile const __u32 bulk;

enum {
	BPF_RB_NO_WAKEUP = 1 << 0,
	BPF_RB_FORCE_WAKEUP = 1 << 1,
	BPF_RB_AVAIL_DATA = 0,
};
static __u64 (*bpf_ringbuf_query)(void *map, __u64 flags) = (void *)134;

/* Closed connections are read together: at the latest when so many bytes of reports wait. */
#define TOGETHER (64 * 1024)

/* The members of a socket are read one by one: the compiler must not join them. */
static __always_inline void copy_address(__u8 *to, __u32 family, __u32 address4, const volatile struct in6_addr *address6)
{
	__u32 *words = (__u32 *)to;
	const volatile __u32 *from = (const volatile __u32 *)address6;

	if (family == AF_INET) {
		words[0] = words[1] = 0;
		words[2] = htonl(0xffff);
		words[3] = address4;
		return;
	}
	words[0] = from[0];
	words[1] = from[1];
	words[2] = from[2];
	words[3] = from[3];
}

static __always_inline void send_report(const struct tcp_sock *tp, const struct began *began, enum kind kind, __u32 retries)
{
	const struct sock_common *sk = (const struct sock_common *)tp;
	__u64 us = (bpf_ktime_get_ns() - began->ns) / 1000, ticks = bpf_jiffies64() - began->jiffies;
	struct report *r;
	__u16 family;

	r = bpf_ringbuf_reserve(&reports, sizeof(*r), 0);
	if (!r) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	r->acked = tp->bytes_acked;
	r->carried = r->acked - began->reported;
	r->duration_us = us;
	r->busy_us = r->window_us = r->buffer_us = 0;
	/* The length of a jiffy follows from the two clocks. */
	if (ticks) {
		__u64 jiffy = us / ticks;
		__u32 busy = tp->chrono_stat[0], window = tp->chrono_stat[1], buffer = tp->chrono_stat[2];
		__u32 running = (__u32)bpf_jiffies64() - tp->chrono_start, type = chrono_type(tp);

		if (type == BUSY)
			busy += running;
		else if (type == 2)
			window += running;
		else if (type == 3)
			buffer += running;
		if (kind == OBJECT) {
			busy = tp->chrono_stat[0] - began->stat[0];
			window = buffer = 0;
			r->duration_us = (__u64)((__u32)bpf_jiffies64() - began->start) * jiffy;
		}
		r->busy_us = ((__u64)busy + window + buffer) * jiffy;
		r->window_us = window * jiffy;
		r->buffer_us = buffer * jiffy;
	}
	if (kind == OBJECT)
		r->acked = (__u32)r->acked - began->acked;
	r->srtt_us = tp->srtt_us >> 3;
	r->min_rtt_us = tp->rtt_min.s[0].v;
	r->sent = tp->data_segs_out;
	r->retransmitted = tp->total_retrans;
	r->retries = retries;
	family = sk->skc_family;
	copy_address(r->local, family, sk->skc_rcv_saddr, &sk->skc_v6_rcv_saddr);
	copy_address(r->remote, family, sk->skc_daddr, &sk->skc_v6_daddr);
	r->local_port = ntohs(((const struct inet_sock *)tp)->inet_sport);
	r->remote_port = ntohs(sk->skc_dport);
	r->kind = kind;
	r->objects = began->objects;
	bpf_ringbuf_submit(r, (kind == CLOSED || kind == OBJECT) && bpf_ringbuf_query(&reports, BPF_RB_AVAIL_DATA) < TOGETHER ? BPF_RB_NO_WAKEUP : BPF_RB_FORCE_WAKEUP);
}

/* The first acknowledgment of each round trip: is it the first one of an object? The time with data in
 * flight began then, which says that the object before has been acknowledged as a whole. */
static __always_inline void examine(const struct tcp_sock *tp, struct began *began)
{
	__u32 acked = tp->bytes_acked;
	__u64 now;

	if (began->start == tp->chrono_start)
		return;
	/* That also begins where a limit begins or ends. */
	if (began->start && began->stat[1] == tp->chrono_stat[1] && began->stat[2] == tp->chrono_stat[2] && chrono_type(tp) == BUSY &&
	    acked - began->acked >= OBJECT_BYTES) {
		now = bpf_ktime_get_ns();
		if (now - began->reported_ns >= OBJECT_NS) {
			send_report(tp, began, OBJECT, 0);
			began->reported_ns = now;
			began->reported = tp->bytes_acked;
			began->objects = 1;
		}
	}
	/* Where all was acknowledged at once, that interval is over, and the next one is not known. */
	began->start = chrono_type(tp) == BUSY ? tp->chrono_start : 0;
	began->acked = acked;
	began->stat[0] = tp->chrono_stat[0];
	began->stat[1] = tp->chrono_stat[1];
	began->stat[2] = tp->chrono_stat[2];
}

/* tcp_destroy_sock(struct sock *sk): once for each socket, where a callback of its state would be four
 * times. */
SEC("tp_btf/tcp_destroy_sock")
int closed(struct bpf_raw_tracepoint_args *ctx)
{
	void *sk = (void *)ctx->args[0];
	struct sock_common *common = sk;
	struct tcp_sock *tp;
	struct began *began;

	if (common->skc_net.net->net_cookie != netns)
		return 0;
	began = find_connection(sk);
	if (!began)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp) {
		if (!(tp->bpf_sock_ops_cb_flags & RTO_FLAG))
			__sync_fetch_and_add(&silenced, 1);
		send_report(tp, began, CLOSED, 0);
	}
	began->sk = 0;
	return 0;
}

/* tcp_retransmit_synack(const struct sock *sk, const struct request_sock *req) */
SEC("raw_tp/tcp_retransmit_synack")
int unanswered(struct bpf_raw_tracepoint_args *ctx)
{
	struct sock_common *request = &((struct request_sock *)ctx->args[1])->__req_common;
	struct report r = {};
	struct net *net = 0;
	__u64 cookie = 0;
	__u8 retries = 0;

	READ(net, request, skc_net.net);
	READ(cookie, net, net_cookie);
	if (cookie != netns)
		return 0;
	read_ends(request, r.local, &r.local_port, r.remote, &r.remote_port);
	READ(retries, (struct request_sock *)ctx->args[1], num_retrans);
	r.retries = retries;
	r.min_rtt_us = ~0;
	r.kind = UNANSWERED;
	if (bpf_ringbuf_output(&reports, &r, sizeof(r), BPF_RB_FORCE_WAKEUP))
		__sync_fetch_and_add(&lost, 1);
	return 0;
}

struct flow {
	struct backoff backoff;
	__u32 packets;
	__u32 progress; /* times that something beyond the first packets was sent otherwise than without acknowledgments */
	__u32 quic; /* it began with a handshake of QUIC */
	__u32 unfit_us; /* when it was last reported as such */
};

/* Keeps the types in the object, for the bindings. */
const struct flow_key *_flow_key __attribute__((unused));
const struct flow *_flow __attribute__((unused));

#define FLOWS 16384
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

#define BEGINS 1000 /* bytes of a datagram that a flow begins with: answers to single requests are shorter */
#define ACKNOWLEDGED 100 /* likewise, that is acknowledged at once: acknowledgments are shorter */
#define FIRST 64 /* packets that are sent at once before any is acknowledged, at most */

/* The bytes of an IP packet that fits on all paths, with the header that has a SID; 0: any. */
__u32 fits;

/* An unfit flow is reported again after so many microseconds. */
#define UNFIT_AGAIN 2000000

/* The first byte of a short header. */
#define SHORT_HEADER 0x40

/* The first byte of a long header, and the versions of QUIC that have it (RFC 9000, RFC 9369). */
#define LONG_HEADER 0xc0
#define QUIC_V1 0x00000001
#define QUIC_V2 0x6b3343cf

static __always_inline int is_handshake(struct __sk_buff *skb, __u32 headers)
{
	__u8 first;
	__u32 version;

	if (bpf_skb_load_bytes(skb, headers, &first, sizeof(first)) || bpf_skb_load_bytes(skb, headers + 1, &version, sizeof(version)))
		return 0;
	return (first & LONG_HEADER) == LONG_HEADER && (version == htonl(QUIC_V1) || version == htonl(QUIC_V2));
}

/*
 * A server of QUIC looks once for the longest packet that arrives, whatever the MTU of the route, and
 * goes on sending it when the connection is moved to a path with a SID, where it does not fit. So on
 * the best path it is lost, too, while the server looks. A flow that began before is left alone: it may
 * have found more.
 */
static __always_inline int too_long(const struct __sk_buff *skb, const struct flow_key *key, __u32 headers)
{
	__u32 payload = skb->gso_size ? skb->gso_size : skb->len - headers;

	return fits && payload + UDP_HEADER + (key->family == 4 ? IPV4_HEADER : IPV6_HEADER) > fits;
}

static __always_inline void report_flow(const struct flow_key *key, enum kind kind, __u32 retries, __u64 wakeup)
{
	struct report *r = bpf_ringbuf_reserve(&reports, sizeof(*r), 0);

	if (!r) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	__builtin_memset(r, 0, sizeof(*r));
	__builtin_memcpy(r->local, key->source, sizeof(r->local));
	__builtin_memcpy(r->remote, key->destination, sizeof(r->remote));
	r->local_port = key->source_port;
	r->remote_port = key->destination_port;
	r->min_rtt_us = ~0;
	r->retries = retries;
	r->kind = kind;
	bpf_ringbuf_submit(r, wakeup);
}

/* A packet is too long to be sent with a SID, and its flow may have found before that it arrives. */
static __always_inline void unfit(struct __sk_buff *skb, const struct flow_key *key, struct flow *f, __u32 headers)
{
	__u32 now = bpf_ktime_get_ns() / 1000;
	__u8 first;

	if (f->unfit_us && now - f->unfit_us < UNFIT_AGAIN)
		return;
	if (bpf_skb_load_bytes(skb, headers, &first, sizeof(first)) || (first & LONG_HEADER) != SHORT_HEADER)
		return;
	f->unfit_us = now | 1;
	report_flow(key, UNFIT, 0, BPF_RB_NO_WAKEUP);
}

/* Counts a packet of UDP that is sent, whichever way it leaves. */
static __always_inline int send_datagram(struct __sk_buff *skb, int raw)
{
	struct flow_key key = {};
	__u32 before, times, headers = 0;
	struct flow *f, begins = {};
	int encapsulated;

	if (find_flow(skb, raw, &key, &headers) || key.protocol != PROTO_UDP || skb->len < headers + ACKNOWLEDGED)
		return TC_NEXT;
	encapsulated = key.sid[0] != 0;
	/* On another path it is the same flow. */
	__builtin_memset(key.sid, 0, sizeof(key.sid));
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f) {
		if (skb->len < headers + BEGINS)
			return TC_NEXT;
		begins.quic = is_handshake(skb, headers);
		bpf_map_update_elem(&flows, &key, &begins, BPF_NOEXIST);
		f = bpf_map_lookup_elem(&flows, &key);
		if (!f)
			return TC_NEXT;
	}
	if (!encapsulated && too_long(skb, &key, headers)) {
		if (f->quic)
			return TC_DROP;
		unfit(skb, &key, f, headers);
	}
	before = f->backoff.gap;
	times = backoff_sent(&f->backoff, bpf_ktime_get_ns() / 1000, skb->len - headers);
	if (f->packets < FIRST)
		f->packets += 1 + (skb->len - headers) / BACKOFF_PACKET;
	else if (!times)
		f->progress++;
	/* Once for each pause. */
	if (times < BACKOFF_TIMES || f->backoff.gap == before)
		return TC_NEXT;
	report_flow(&key, UNACKNOWLEDGED, times, BPF_RB_FORCE_WAKEUP);
	return TC_NEXT;
}

SEC("tc")
int sent(struct __sk_buff *skb)
{
	return send_datagram(skb, 0);
}

SEC("tc")
int sent_raw(struct __sk_buff *skb)
{
	return send_datagram(skb, 1);
}

SEC("sockops")
int observe(struct bpf_sock_ops *ctx)
{
	struct began *began;
	struct tcp_sock *tp;
	void *sk;

	switch (ctx->op) {
	case ACTIVE_ESTABLISHED:
	case PASSIVE_ESTABLISHED:
		if (bpf_get_netns_cookie(ctx) != netns)
			return 1;
		sk = (void *)ctx->sk;
		if (!sk)
			return 1;
		began = add_connection(sk);
		if (!began) {
			__sync_fetch_and_add(&lost, 1);
			return 1;
		}
		began->ns = began->reported_ns = bpf_ktime_get_ns();
		began->jiffies = bpf_jiffies64();
		if (bpf_get_prandom_u32() % FIRST_OBJECTS == 0)
			began->reported_ns -= OBJECT_NS;
		began->reported = 0;
		began->bulk = began->start = began->objects = 0;
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | RTO_FLAG | RTT_FLAG);
		return 1;
	case RTT:
		if (ctx->bytes_acked < OBJECT_BYTES)
			return 1;
		break;
	case RTO:
		break;
	default:
		return 1;
	}
	sk = (void *)ctx->sk;
	if (!sk)
		return 1;
	began = find_connection(sk);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!began || !tp)
		return 1;
	if (ctx->op == RTO) {
		/* Not of each packet that a full queue drops: from the first expiry on, of which the
		 * second one follows without any acknowledgment in between. */
		send_report(tp, began, TIMEOUT, ctx->args[0]);
	} else {
		examine(tp, began);
		if (!began->bulk && ctx->bytes_acked >= bulk) {
			began->bulk = 1;
			send_report(tp, began, BULK, 0);
		}
	}
	return 1;
}

/* The kernel accepts the helpers for memory and tracing from such programs only. */
char _license[] SEC("license") = "Dual BSD/GPL";
