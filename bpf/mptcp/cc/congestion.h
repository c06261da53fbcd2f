/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the congestion controls have in common: the members of the kernel's structures that they
 * use, the other subflows of the connection, statistics in the socket, and containment of values
 * that the kernel takes from a program that it has skipped.
 *
 * Each control is one object: a struct_ops of type tcp_congestion_ops, whose programs the kernel
 * calls. Needs Linux 6.6 with BTF; the coupled controls need MPTCP.
 */
#ifndef TABANE_CONGESTION_H
#define TABANE_CONGESTION_H

#include "bpf.h"
#include "cc.h"

#define KFUNC extern __attribute__((section(".ksyms")))
#define TYPE_ID(type) __builtin_btf_type_id(*(type *)0, 1)
#define OFFSET_OF(type, member) __builtin_preserve_field_info(((type *)0)->member, 0)

/* Members of the kernel's structures that are used here. */
struct list_head {
	struct list_head *next, *prev;
} KERNEL;

struct sock_common {
	unsigned char skc_state;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	__u32 sk_pacing_status;
	int sk_sndbuf;
} KERNEL;

struct inet_sock {
	struct sock sk;
} KERNEL;

struct tcp_congestion_ops;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	void *icsk_ulp_data;
	__u8 icsk_ca_state : 5;
	__u64 icsk_ca_priv[13];
} KERNEL;

struct minmax_sample {
	__u32 v;
} KERNEL;

struct minmax {
	struct minmax_sample s[3];
} KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct minmax rtt_min;
	__u64 tcp_mstamp;
	__u64 delivered_mstamp;
	__u32 srtt_us;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
	__u32 max_packets_out;
	__u32 packets_out;
	__u32 delivered;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mss_cache;
	__u32 notsent_lowat;
	__u32 write_seq;
	__u32 lost;
	__u8 is_cwnd_limited : 1;
	_Bool is_mptcp;
} KERNEL;

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
	__u32 in_flight;
} KERNEL;

struct rate_sample;

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 state);
	void (*cwnd_event)(struct sock *sk, int event);
	void (*in_ack_event)(struct sock *sk, __u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
	__u32 flags;
	void (*init)(struct sock *sk);
};

/* Usable in every network namespace without being on a list. */
#define TCP_CONG_NON_RESTRICTED 1

enum {
	SK_PACING_NONE = 0,
	SK_PACING_NEEDED = 1,

	TCP_ESTABLISHED = 1,
	TCP_CLOSE_WAIT = 8,

	TCP_CA_CWR = 2,
	TCP_CA_RECOVERY = 3,
	TCP_CA_LOSS = 4,

	SOL_SOCKET = 1,
	SO_SNDBUF = 7,
	SOL_TCP = 6,
	TCP_NOTSENT_LOWAT = 25,
};

KFUNC __u32 tcp_slow_start(struct tcp_sock *tp, __u32 acked);

/* Paces the packets of each socket instead of sending bursts. */
volatile const _Bool pace = 1;

/*
 * Bounds the unsent data of MPTCP subflows to what they send in a short time (cc_lowat). MPTCP's
 * scheduler cannot take back data that it has given to a subflow, so on a slow one it holds up what the
 * others have delivered. In exchange the send buffers are larger, so that fast subflows are not idle
 * while the oldest data is under way on a slow one.
 */
volatile const _Bool lowat;

/* How large a send buffer may become in bytes; 0: its size is the kernel's. */
volatile const __u32 buffer_most;

/*
 * Makes every inject-th call of ssthresh and of undo_cwnd return what a kernel returns that skips
 * the program: whatever was on its stack. For tests; 0 is never.
 */
volatile const __u32 inject;

#ifdef KERNEL_STATE
/* The kernel's control has the first part of icsk_ca_priv. */
#define STATE_AT (KERNEL_STATE / 8)
#else
#define STATE_AT 0
#endif

/* The state of a socket between calls, in icsk_ca_priv: at most 104 bytes, zeroed by the kernel. */
struct state {
#ifndef KERNEL_STATE
	__s64 fraction;  /* of a segment, beyond the window, in 2^-32 */
#endif
	__s64 each;      /* the last increase for a segment, in 2^-32 segments */
	__u32 window;    /* at the last acknowledgment */
	__u32 injected;  /* calls counted for inject */
	__u32 lead;      /* over other subflows, in us, at the last tick */
	__u32 last;      /* when the time was last counted, by tcp_mstamp */
	__u32 ticked;    /* when statistics were last written, by tcp_mstamp */
	__u32 segments;  /* stats.window since then, and the other members */
	__u16 acks, busy, limited;
#ifndef KERNEL_STATE
	union {
		struct {
			__u32 loss, previous; /* tcp_sock.delivered at the last loss and at the one before */
		} olia;
		struct {
			__u32 base, least, samples; /* of the round-trip time in us: minimum, that of this round, how many */
			__u32 round;                /* snd_nxt at the start of the round */
			__u32 queue;                /* wVegas: least queueing delay in us, 0 when unknown */
			__u32 target;               /* wVegas: segments to keep in queues */
			_Bool started;              /* a round has begun */
		} vegas;
		struct {
			__u64 checked; /* when the rate was last looked up, by tcp_mstamp */
			__u32 limit;   /* the rate that is set, in bytes per second */
		} ratio;
	};
#endif
};

/* Statistics of a socket up to its last tick, which sock_diag dumps. Times are in microseconds. */
struct stats {
	__u64 acks;
	__u64 busy;     /* time with data in flight */
	__u64 limited;  /* that part of it in which the congestion window was the limit */
	__u64 window;   /* the window integrated over the busy time: segments * us */
	__s64 each;     /* the last increase for a segment acknowledged, in 2^-32 segments */
	__u32 losses;   /* recoveries */
	__u32 timeouts;
	__u32 highest;  /* the largest window at ticks and changes of state */
	__u32 repairs;  /* windows and thresholds that were contained */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct stats);
} tabane_cc SEC(".maps");

/* Of all sockets of this control since it was loaded. */
struct counters {
	__u64 repairs;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} totals SEC(".maps");

/* Keep the types in the object, for the bindings. */
const struct stats *_stats __attribute__((unused));
const struct counters *_counters __attribute__((unused));

static __always_inline struct state *state_of(struct tcp_sock *tp)
{
	return (struct state *)(tp->inet_conn.icsk_ca_priv + STATE_AT);
}

/*
 * A bit field of the kernel's structure. Reading one through the structure above would take the bits
 * of this structure instead of the kernel's.
 */
#define BIT_FIELD(object, member) ({ \
	const void *_at = (const void *)(object) + __builtin_preserve_field_info((object)->member, 0); \
	__u64 _bits = 0; \
	switch (__builtin_preserve_field_info((object)->member, 1)) { \
	case 1: _bits = *(const __u8 *)_at; break; \
	case 2: _bits = *(const __u16 *)_at; break; \
	case 4: _bits = *(const __u32 *)_at; break; \
	case 8: _bits = *(const __u64 *)_at; break; \
	} \
	_bits <<= __builtin_preserve_field_info((object)->member, 4); \
	_bits >> __builtin_preserve_field_info((object)->member, 5); })

/* Whether the congestion window limits what is sent, as the kernel's tcp_is_cwnd_limited says. */
static __always_inline _Bool window_limits(struct tcp_sock *tp)
{
	if (BIT_FIELD(tp, is_cwnd_limited))
		return 1;
	return tp->snd_cwnd < tp->snd_ssthresh && tp->snd_cwnd < 2 * tp->max_packets_out;
}

#ifndef KERNEL_STATE
/* Grows the window by each, in 2^-32 segments, for every segment acknowledged. */
static __always_inline void grow(struct tcp_sock *tp, __s64 each, __u32 acked)
{
	struct state *s = state_of(tp);
	__s64 fraction = s->fraction;
	__u32 window = cc_grow(tp->snd_cwnd, &fraction, each, acked);

	s->each = each;
	s->fraction = fraction;
	tp->snd_cwnd = cc_min(window, tp->snd_cwnd_clamp);
}
#endif

/*
 * The first part of cong_avoid: nothing grows unless the window is the limit, and below the
 * threshold it is slow start. It returns how many segments are left for congestion avoidance.
 */
static __always_inline __u32 avoid(struct tcp_sock *tp, __u32 acked)
{
	if (!window_limits(tp))
		return 0;
	if (tp->snd_cwnd < tp->snd_ssthresh)
		return tcp_slow_start(tp, acked);
	return acked;
}

static __always_inline _Bool injects(struct tcp_sock *tp)
{
	struct state *s = state_of(tp);

	if (!inject || ++s->injected < inject)
		return 0;
	s->injected = 0;
	return 1;
}

#define GARBAGE 0x81104110

/* What ssthresh returns. */
static __always_inline __u32 threshold(struct tcp_sock *tp, __u32 value)
{
	return injects(tp) ? GARBAGE : value;
}

/* How often statistics are written to the storage of the socket, in us. To look that up costs more than to count. */
#define TICK 10000

/* Writes what was counted, and the time since the last acknowledgment, to the storage of the socket. */
static __always_inline struct stats *flush(struct tcp_sock *tp, __u64 busy, __u64 limited)
{
	struct stats *st = bpf_sk_storage_get(&tabane_cc, (void *)tp, 0, 0);
	struct state *s = state_of(tp);

	if (!st)
		return 0;
	st->acks += s->acks;
	st->busy += s->busy + busy;
	st->limited += s->limited + limited;
	st->window += s->segments + busy * s->window;
	st->each = s->each;
	st->highest = cc_max(st->highest, s->window);
	s->acks = s->busy = s->limited = s->segments = 0;
	return st;
}

/*
 * Counts an acknowledgment, and the time since the last one in which data was in flight. delivered_mstamp is
 * when that began (tcp_rate_skb_sent), or the last delivery. It reports whether a tick has passed, which
 * bounds what the state has room for.
 */
static __always_inline _Bool count_ack(struct tcp_sock *tp)
{
	struct state *s = state_of(tp);
	__u32 now = tp->tcp_mstamp, begun = tp->delivered_mstamp;
	__u32 busy = cc_min(now - s->last, now - begun), limited = 0;

	if (BIT_FIELD(tp, is_cwnd_limited))
		limited = busy;
	s->last = now;
	s->acks++;
	if (now - s->ticked >= TICK) {
		s->ticked = now;
		flush(tp, busy, limited);
		return 1;
	}
	s->busy += busy;
	s->limited += limited;
	s->segments += busy * s->window;
	return 0;
}

/*
 * Contains what the kernel took from a program that it skipped. A program that returns a value may be
 * skipped like any other: by kernels before 6.1 when it interrupts itself, and by some kernels in
 * interrupts. The kernel then uses whatever its stack held, as a threshold or a window of up to 2^32
 * segments. This is called for every acknowledgment, in recovery too, and on the way to each state:
 * on entering recovery the kernel derives the window from the threshold within the same
 * acknowledgment (RFC 6937).
 */
static __always_inline void contain(struct tcp_sock *tp, __u8 state)
{
	struct state *s = state_of(tp);
	struct cc_contained now = {
		.window = tp->snd_cwnd, .threshold = tp->snd_ssthresh, .prior = tp->prior_cwnd, .last = s->window,
		.reduced = state >= TCP_CA_CWR && state <= TCP_CA_LOSS,
	};
	_Bool repaired = cc_contain(&now);
	struct counters *c;
	struct stats *st;
	__u32 key = 0;

	s->window = now.window;
	if (!repaired)
		return;
	tp->snd_cwnd = now.window;
	tp->snd_ssthresh = now.threshold;
	st = flush(tp, 0, 0);
	if (st)
		st->repairs++;
	c = bpf_map_lookup_elem(&totals, &key);
	if (c)
		__sync_fetch_and_add(&c->repairs, 1);
}

/* The lead over the other subflows, in controls that look at them. */
#ifdef LOOKS
static __u32 lead_of(struct tcp_sock *tp);
#else
static __always_inline __u32 lead_of(struct tcp_sock *tp __attribute__((unused)))
{
	return 0;
}
#endif

/*
 * Sets TCP_NOTSENT_LOWAT to what the subflow sends in a short time, if that has changed by a quarter. What the window has
 * room for is not sent yet only because it is paced, and would otherwise wait for an acknowledgment.
 */
static __always_inline void bound_unsent(struct tcp_sock *tp)
{
	__u32 now = tp->notsent_lowat, window = tp->snd_cwnd, want;

	want = cc_lowat(window, tp->mss_cache, tp->srtt_us, state_of(tp)->lead);
	if (window > tp->packets_out)
		want = cc_min(want + (__u64)(window - tp->packets_out) * tp->mss_cache, CC_LOWAT_MOST);
	if (want > now + now / 4 || want < now - now / 4)
		bpf_setsockopt((void *)tp, SOL_TCP, TCP_NOTSENT_LOWAT, &want, sizeof(want));
}

/*
 * Enlarges the send buffer, if by a quarter. It is not done by sndbuf_expand: for a program that the kernel skips it takes a
 * value from its stack, so that the buffer is as large as tcp_wmem permits, for good. Servers then write all that they have
 * and close, and Linux resets an MPTCP connection 60 s after that (TCP_TIMEWAIT_LEN).
 */
static __always_inline void enlarge_buffer(struct tcp_sock *tp)
{
	__u32 now = tp->inet_conn.icsk_inet.sk.sk_sndbuf, want;

	if (!buffer_most || cc_fast(tp->snd_cwnd, tp->mss_cache, tp->srtt_us))
		return;
	want = cc_min(cc_buffer(tp->snd_cwnd, tp->mss_cache), buffer_most);
	if (want <= now + (__u64)now / 4)
		return;
	want /= 2; /* the kernel doubles it */
	bpf_setsockopt((void *)tp, SOL_SOCKET, SO_SNDBUF, &want, sizeof(want));
}

/*
 * Paces a subflow, whose bursts in slow start, or of the next object after an idle time, would overflow a queue that
 * is short for a long round trip. Not a fast one: a timer for each burst costs it more; nor one that has sent all that it was
 * given and never lost any: what its window has room for arrives sooner as a burst, and has fitted so far. With pace, or
 * SO_MAX_PACING_RATE, the socket is always paced; where FQ paces, nothing is changed.
 */
static __always_inline void pace_if_needed(struct tcp_sock *tp)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	_Bool bursts = cc_fast(tp->snd_cwnd, tp->mss_cache, tp->srtt_us) || (!tp->lost && tp->write_seq == tp->snd_nxt);

	if (!bursts && sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	else if (bursts && !pace && sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL)
		sk->sk_pacing_status = SK_PACING_NONE;
}

/* What the kernel's own control does, in objects that run one. */
#ifdef KERNEL_STATE
static void kernel_init(struct sock *sk);
static void kernel_set_state(struct sock *sk, __u8 state);
#else
static __always_inline void kernel_init(struct sock *sk __attribute__((unused))) {}
static __always_inline void kernel_set_state(struct sock *sk __attribute__((unused)), __u8 state __attribute__((unused))) {}
#endif

SEC("struct_ops")
int init(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct sock *sk = (struct sock *)ctx[0];
	struct state *s = state_of(tp);

	kernel_init((void *)ctx[0]);
	s->last = tp->tcp_mstamp;
	s->window = 0;
	if (pace && sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	bpf_sk_storage_get(&tabane_cc, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (lowat && tp->is_mptcp) {
		bound_unsent((void *)ctx[0]);
		pace_if_needed((void *)ctx[0]);
	}
	return 0;
}

SEC("struct_ops")
int in_ack_event(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	_Bool tick;

	contain(tp, BIT_FIELD(&tp->inet_conn, icsk_ca_state));
	tick = count_ack(tp);
	if (!lowat || !tp->is_mptcp)
		return 0;
	if (tick) {
		if (tp->srtt_us)
			state_of(tp)->lead = lead_of(tp);
		pace_if_needed(tp);
	}
	bound_unsent(tp);
	enlarge_buffer(tp);
	return 0;
}

SEC("struct_ops")
int set_state(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct stats *st = flush(tp, 0, 0);
	__u8 to = ctx[1];

	kernel_set_state((void *)ctx[0], to);
	if (st && to == TCP_CA_RECOVERY)
		st->losses++;
	else if (st && to == TCP_CA_LOSS)
		st->timeouts++;
	contain(tp, to);
	return 0;
}

SEC("struct_ops")
int undo_cwnd(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];

	if (injects(tp))
		return (int)GARBAGE;
	return cc_max(tp->snd_cwnd, tp->prior_cwnd);
}

/* The members that all controls have in common. */
#define COMMON_OPS \
	.init = (void *)init, .in_ack_event = (void *)in_ack_event, \
	.set_state = (void *)set_state, .undo_cwnd = (void *)undo_cwnd, \
	.flags = TCP_CONG_NON_RESTRICTED

char _license[] SEC("license") = "Dual BSD/GPL";

#endif
