// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Sends the packets of each TCP connection, and of each flow of UDP, over several egress paths (see
 * spray.h).
 *
 * The program of a route (lwt_xmit) chooses a path, sets its mark and has the packet routed again: the
 * rule for the mark has the table of one egress peer, which has the routes that the peer announced and
 * ends in unreachable. So no choice, however wrong, sends a packet to a peer that did not announce its
 * destination. A program at ingress reads acknowledgments, and knows by the sequence numbers which path
 * carried what has arrived. What TCP measured of the paths to a network applies to flows of datagrams
 * there. All else goes over home.
 *
 * Records of a connection have one writer each: head and what is in front of it belong to the sender,
 * tail and arrivals to the receiver. What two processors do to one connection at once can make a count
 * wrong by a packet, and nothing else.
 *
 * Functions that are not static are verified once each, whatever the state of their callers. Inlined,
 * all took the verifier 2 s and 815,000 of the 1,000,000 instructions that it looks at.
 *
 * Needs Linux 5.17.
 */
#include "packet.h"
#include "spray.h"
#include "backoff.h"

#define MARK_MASK 0xffff0000
#define LWT_REROUTE 128

/* Half of the connections that bulk is sprayed of at once; records hold what is in flight. */
#define CONNECTIONS 1024
#define FLOWS 4096 /* the same for UDP */
#define CLIENTS 4096 /* of UDP */
#define RECORDS 512
#define LEARNED 128 /* after so many packets, what is known of a path is remembered, and then again */
#define IDLE 2000000 /* after so many microseconds a connection may be replaced by another */

/* The peers of the networks with the same ones. */
struct plan {
	__u32 home; /* path 0 to SPRAY_PATHS - 1 */
	__u32 may;  /* bit i is path i */
	__u32 rule; /* what the paths belong to */
	__u32 mark[SPRAY_PATHS];
};

struct ends {
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
};

struct record {
	__u32 end; /* sequence number after the last byte */
	__u32 length;
	__u32 sent; /* time */
	__u32 acknowledged;
	__u32 retransmitted; /* time; 0: not */
	__u8 path;
	__u8 arrived;
	__u8 lost; /* enum spray_loss */
	__u8 unused;
};

struct connection {
	struct ends ends;
	__u32 used;
	__u32 bytes;
	__u32 next; /* sequence number of new data */
	__u32 head;
	__u32 tail;
	__u32 home;
	__u32 rule;
	__u32 period; /* start of the present one for shortest */
	__u32 heard; /* an acknowledgment was seen */
	__u32 old; /* the last one was for what was sent elsewhere, and says nothing of a round trip */
	__u32 began; /* time */
	__u32 died; /* time at which home was left as dead; 0: never */
	__u32 waits; /* time at which home died, if nothing has arrived since; 0: it has */
	__u32 before; /* what was home then */
	__u32 former; /* what was home before it died last */
	__u32 alive; /* time of the last arrival over that by then; 0: none died, or it is home again */
	__u32 common; /* what was sent again over the home since did not arrive either */
	__u32 outage; /* time until which nothing arrived over any path; 0: there was none */
	__u32 stamp; /* timestamp (RFC 7323) of the first segment that was not; 0: it had none */
	__u32 first; /* what is remembered of the rate of the first path, if another one is home; or 0 */
	__u32 back; /* what was home before the trial */
	struct spray_trial trial;
	struct spray_watch watch;
	struct spray_path path[SPRAY_PATHS];
	__u32 counted[SPRAY_PATHS]; /* bytes of a path that are in its memory */
	struct record records[RECORDS];
};

/* A flow of UDP. */
struct datagrams {
	struct ends ends;
	__u32 used;
	__u32 packets;
	__u32 home;
	__u32 rule;
	__u32 heard; /* time of the last packet of the client; 0: never */
	__u32 progress; /* as heard, or when the first packet since was sent that needs an answer */
	__u32 small; /* heard, when the last packet was sent that needs none */
	__u32 left; /* time at which it left all paths but home; 0: never */
	__u32 first; /* where it began */
	__u32 away; /* time at which it left that; 0: it has not */
	__u32 wait; /* how long it stays away */
	__u32 silent; /* times in a row that home was left, since the client was silent */
	__u32 total; /* bytes, up to SPRAY_BEGIN */
	struct backoff backoff;
	__u32 bytes[SPRAY_PATHS]; /* carried since they were counted */
};

/*
 * What the flows of UDP to a client, an IPv4 address or a /64, have in common: each alone would find
 * the paths empty that the others fill.
 */
struct client {
	__u64 prefix;  /* 0 of IPv4 */
	__u32 address; /* of IPv4; 0 of IPv6 */
	__u32 used;
	__u32 rule;
	struct spray_turns turns;
	struct spray_queue queue[SPRAY_PATHS];
};

/*
 * What is remembered of a path to a client network, /48 or /24, by its mark; with the mark 0 what
 * spraying of datagrams brought there, and the rate of home alone.
 */
struct network {
	__u8 prefix[8]; /* of an IPv4 address ::ffff/96 is left out */
	__u32 mark;
	__u32 family;
};

struct memory {
	__u64 until; /* nanoseconds */
	__u64 pause; /* nanoseconds, the last one */
	__u64 pauses;
	__u64 seen; /* nanoseconds, a packet arrived over it; 0: never */
	__u64 tried; /* nanoseconds, it was home for a trial; 0: never */
	__u64 learned; /* nanoseconds, of what follows; 0: never */
	__u64 loses; /* as home, without a queue: rate is what connections brought over it */
	__u32 shortest;
	__u32 rate;
	__u64 datagrams; /* bytes that flows of UDP carried over it */
	__u64 stream; /* bytes that connections of TCP did, without retransmissions */
};

const struct plan *_plan __attribute__((unused));
const struct network *_network __attribute__((unused));
const struct memory *_memory __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CONNECTIONS);
	__type(key, __u32);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOWS);
	__type(key, __u32);
	__type(value, struct datagrams);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLIENTS);
	__type(key, __u32);
	__type(value, struct client);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct network);
	__type(value, struct memory);
} networks SEC(".maps");

/* Bytes that flows of UDP carried over all paths with a mark. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} volumes SEC(".maps");

/* Where options of a TCP header are copied to. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[64]);
} scratch SEC(".maps");

/* The program that those of all plans continue with: it is loaded once. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sender SEC(".maps");

/* Connections that have sent LEARNED packets, of which no acknowledgment was seen. */
__u64 unheard;

/* The plan of a program. */
volatile const __u32 plan_index;

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

static __always_inline struct connection *find(const struct ends *e, __u32 at)
{
	struct connection *c;

	at &= CONNECTIONS - 1;
	c = bpf_map_lookup_elem(&connections, &at);

	if (c && same(&c->ends, e))
		return c;
	at ^= 1;
	c = bpf_map_lookup_elem(&connections, &at);
	return c && same(&c->ends, e) ? c : 0;
}

/* Has the next data begin a connection: the one before had the same addresses and ports. */
static __always_inline void forget(const struct segment *s)
{
	struct connection *c = find(&s->ends, place(&s->ends));

	if (c)
		c->bytes = 0;
}

static __always_inline void network_of(const struct ends *e, __u8 family, __u32 mark, struct network *n)
{
	__builtin_memset(n, 0, sizeof(*n));
	if (family == 4)
		__builtin_memcpy(n->prefix, e->remote + 12, 3);
	else
		__builtin_memcpy(n->prefix, e->remote, 6);
	n->mark = mark;
	n->family = family;
}

/*
 * Whether the place of what was used last at a time may be another's. Another processor can have used
 * it after now was read.
 */
static __always_inline int idle(__u32 used, __u32 now)
{
	return now - used > IDLE && used - now > IDLE;
}

/* Begins a connection in one of its two places, if there is an idle one. */
static __always_inline struct connection *begin(struct __sk_buff *skb, const struct segment *s, const struct plan *plan, __u32 at, __u32 now)
{
	struct connection *c;

	at &= CONNECTIONS - 1;
	c = bpf_map_lookup_elem(&connections, &at);
	if (!c || (c->bytes && !idle(c->used, now))) {
		at ^= 1;
		c = bpf_map_lookup_elem(&connections, &at);
		if (!c || (c->bytes && !idle(c->used, now)))
			return 0;
	}
	__builtin_memcpy(&c->ends, &s->ends, sizeof(c->ends));
	c->bytes = 0;
	c->next = s->sequence;
	c->head = c->tail = 0;
	c->home = plan->home;
	c->rule = plan->rule;
	c->period = now;
	c->heard = c->old = c->died = c->outage = 0;
	c->waits = c->before = c->common = c->former = c->alive = 0;
	c->began = now;
	c->stamp = timestamp(skb, s, 0);
	c->first = c->back = 0;
	__builtin_memset(&c->trial, 0, sizeof(c->trial));
	__builtin_memset(&c->watch, 0, sizeof(c->watch));
	c->watch.since = now;
	__builtin_memset(c->path, 0, sizeof(c->path));
	__builtin_memset(c->counted, 0, sizeof(c->counted));
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		c->path[i].window = SPRAY_FIRST_WINDOW;
	return c;
}

#define VALID (600ULL * 1000 * 1000 * 1000)

/* The rate of a path, 0 if it is not known. */
static __always_inline __u32 known(const struct memory *m, __u64 time)
{
	return m->learned && time - m->learned < VALID ? m->rate : 0;
}

/* The same of a path that is not paused. */
static __always_inline __u32 usable(const struct memory *m, __u64 time)
{
	return m->until <= time ? known(m, time) : 0;
}

/*
 * Whether a path is to be home in place of all before it, which plan has in order: it is known to be
 * faster than the first one by a quarter, and than the others. That the first one is paused says that
 * it harmed as another path.
 */
static __always_inline int faster(const struct plan *plan, __u32 path, const struct memory *m, __u64 time, __u64 *most)
{
	__u64 rate = usable(m, time);

	if (path == plan->home) {
		*most = (__u64)known(m, time) * 5 / 4;
		return 0;
	}
	if (!*most || rate <= *most)
		return 0;
	*most = rate;
	return 1;
}

/*
 * A path whose rate is not known, and which is home now: where it is longer than home by more than the
 * queue of home holds, it carries nothing in order, so that its rate would never be known. Once in a
 * while there is one. Packets must have arrived over it, but not where home loses so many that it has
 * no queue, which has others carry nothing at all. SPRAY_PATHS if there is none.
 */
__attribute__((noinline)) int untried(const struct segment *s, const struct plan *plan, __u32 home, int loses)
{
	__u64 time = bpf_ktime_get_ns();
	struct memory *m, next = {};
	__u32 found = SPRAY_PATHS;
	struct network n;

	if (!s || !plan)
		return SPRAY_PATHS;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		if (!(plan->may >> i & 1) || i == home)
			continue;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (m && (m->until > time || known(m, time) || (m->tried && time - m->tried < VALID)))
			continue;
		if (m && m->seen && time - m->seen < VALID) {
			found = i;
			break;
		}
		if (loses && found == SPRAY_PATHS)
			found = i;
	}
	if (found >= SPRAY_PATHS)
		return SPRAY_PATHS;
	network_of(&s->ends, s->family, plan->mark[SPRAY_PATH(found)], &n);
	m = bpf_map_lookup_elem(&networks, &n);
	next.tried = time;
	if (m)
		m->tried = time;
	else
		bpf_map_update_elem(&networks, &n, &next, BPF_NOEXIST);
	return found;
}

/* Begins with what is remembered of the paths. */
__attribute__((noinline)) int recall(struct connection *c, const struct segment *s, const struct plan *plan, __u32 now)
{
	__u64 time = bpf_ktime_get_ns(), most = 0;
	__u32 first = 0, rate = 0, unknown;
	int loses = 0;
	struct memory *m;
	struct network n;

	if (!c || !s || !plan)
		return 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		struct spray_path *p = &c->path[i];

		if (!(plan->may >> i & 1))
			continue;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (!m)
			continue;
		if (m->until > time) {
			p->paused = 1;
			p->until = now + (m->until - time) / 1000;
		}
		if (known(m, time)) {
			p->shortest = m->shortest;
			p->rate = m->rate;
		}
		if (faster(plan, i, m, time, &most))
			c->home = i;
		if (i == plan->home)
			first = known(m, time);
		if (i == c->home) {
			rate = usable(m, time);
			loses = m->loses;
		}
	}
	unknown = rate && rate <= SPRAY_MOST_TRIED ? untried(s, plan, c->home, loses) : SPRAY_PATHS;
	if (unknown < SPRAY_PATHS) {
		c->back = c->home;
		c->home = unknown;
		c->trial.need = rate + rate / 4;
	}
	if (c->home != plan->home)
		c->first = first;
	return 0;
}

/* Has home be what it was before the trial. */
static __always_inline void end_trial(struct connection *c)
{
	c->path[SPRAY_PATH(c->home)].rate = 0;
	c->trial.need = 0;
	c->home = c->back;
	c->first = 0;
}

/* Remembers what the connection knows of the paths, and what they carried. */
__attribute__((noinline)) int remember(struct connection *c, const struct segment *s, const struct plan *plan)
{
	__u64 time = bpf_ktime_get_ns();

	if (!c || !s || !plan)
		return 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		const struct spray_path *p = &c->path[i];
		__u32 bytes = p->sent - c->counted[i];
		struct memory *m, next = {};
		struct network n;

		/* What is still in flight alone does not show that the path carries anything. */
		if (!(plan->may >> i & 1) || !bytes || (c->heard && !p->gone))
			continue;
		c->counted[i] = p->sent;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (!m) {
			bpf_map_update_elem(&networks, &n, &next, BPF_NOEXIST);
			m = bpf_map_lookup_elem(&networks, &n);
			if (!m)
				continue;
		}
		__sync_fetch_and_add(&m->stream, bytes);
		if (p->gone)
			m->seen = time;
		/* What a path brings beside another home says nothing of what it loses as home. */
		if (p->packets < LEARNED || !p->rate || (i != c->home && m->loses && known(m, time)))
			continue;
		m->shortest = spray_shortest(p);
		m->loses = i == c->home && spray_loses_bare(p);
		m->rate = m->loses ? spray_lossy_rate(p, ((__u32)(time / 1000) - c->began) / 1000, m->rate) : p->rate;
		m->learned = time;
	}
	return 0;
}

/* Leaves a path for a time that grows with each pause soon after another, for all of the network. */
__attribute__((noinline)) int leave(struct connection *c, const struct segment *s, __u32 i, __u32 mark, __u32 now)
{
	__u64 first, time = bpf_ktime_get_ns();
	struct memory *known, next = {};
	struct spray_path *p;
	struct network n;

	if (!c || !s)
		return 0;
	p = &c->path[SPRAY_PATH(i)];
	first = (spray_loses(p) ? SPRAY_LOSS_PAUSE : SPRAY_PAUSE) * 1000ULL;
	network_of(&s->ends, s->family, mark, &n);
	known = bpf_map_lookup_elem(&networks, &n);
	next.pause = first;
	if (known) {
		next = *known;
		next.pause = first;
		if (known->until > time)
			next.pause = known->pause > first ? known->pause : first;
		else if (known->until + 8 * known->pause > time)
			next.pause = 2 * known->pause;
		if (next.pause > SPRAY_MAX_PAUSE * 1000ULL)
			next.pause = SPRAY_MAX_PAUSE * 1000ULL;
	}
	next.until = time + next.pause;
	next.pauses++;
	bpf_map_update_elem(&networks, &n, &next, 0);
	p->until = now + next.pause / 1000;
	p->packets = p->late = p->lost = p->bare = 0;
	p->paused = 1;
	p->window = SPRAY_FIRST_WINDOW;
	return 0;
}

/* The index of the first record from low on whose end is at or after a sequence number. */
static __always_inline __u32 search(const struct connection *c, __u32 low, __u32 sequence)
{
	__u32 high = c->head;

	if (high - low > RECORDS)
		low = high - RECORDS;
	for (int i = 0; i < 10 && low != high; i++) {
		__u32 middle = low + (high - low) / 2;

		if (spray_later(sequence, c->records[middle & (RECORDS - 1)].end))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Whether what home carries is overdue while what others carry arrives. */
static __always_inline int silent(const struct connection *c)
{
	const struct spray_path *home = &c->path[SPRAY_PATH(c->home)];
	int silent = 0;

	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		silent |= i != c->home && c->path[i].gone && spray_stalled(home, &c->path[i], 1);
	return silent;
}

/* Applies that nothing arrived over any path for a while: that says nothing of one of them. */
static __always_inline void interrupted(struct connection *c, __u32 now)
{
	c->outage = now ? now : 1;
	c->watch.since = now;
	c->watch.worse = 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		c->path[i].progress = now;
}

/* Notes that the segment is sent again; home it goes, or over another path if home is dead. */
__attribute__((noinline)) int retransmit(struct connection *c, const struct segment *s, const struct plan *plan, __u32 now)
{
	__u32 at, best = SPRAY_PATHS;
	struct spray_path *home;
	struct record *r;

	if (!c || !s || !plan)
		return 0;
	at = search(c, c->tail, s->sequence + 1);
	r = &c->records[at & (RECORDS - 1)];
	home = &c->path[SPRAY_PATH(c->home)];
	if (at - c->tail < c->head - c->tail && !r->arrived && !r->retransmitted)
		r->retransmitted = now ? now : 1;
	if (c->trial.need) {
		end_trial(c);
		if (!(plan->may >> SPRAY_PATH(c->home) & 1))
			c->home = plan->home;
		home = &c->path[SPRAY_PATH(c->home)];
	}
	if (c->waits && spray_later(now - c->waits, spray_answered(home)))
		c->common = 1;
	/* Where acknowledgments are never seen, they arrive elsewhere, and silence says nothing. */
	if (!c->heard || (!spray_dead(home, now) && !silent(c)))
		return c->home;
	for (__u32 i = 1; i < SPRAY_PATHS; i++) {
		__u32 other = SPRAY_PATH(c->home + i);

		if (plan->may >> other & 1 &&
		    (best == SPRAY_PATHS || (c->path[other].gone && spray_later(c->path[other].progress, c->path[SPRAY_PATH(best)].progress))))
			best = other;
	}
	if (best == SPRAY_PATHS)
		return c->home;
	if (spray_outage(c->path, c->home, now))
		interrupted(c, now);
	if (!c->waits) {
		c->waits = now ? now : 1;
		c->before = c->home;
	}
	c->former = c->home;
	c->alive = home->progress ? home->progress : 1;
	home->shortest = 0; /* it is measured again */
	c->died = now ? now : 1;
	home->progress = now;
	best = SPRAY_PATH(best);
	c->path[best].progress = now;
	c->path[best].paused = 0;
	c->home = best;
	c->first = 0;
	return best;
}

/* What is chosen by for a segment with data. */
struct choice {
	__u32 now;
	__u32 size;
	__u32 arrival; /* the earliest that is expected so far */
	__u32 quiet;   /* home is silent */
	__u32 harm;    /* other paths harm what home carries */
};

enum {
	NOT_CHOSEN,
	CHOSEN,
	LEFT, /* the path is to be left */
};

/* Whether a path other than home is chosen in place of those before it. */
__attribute__((noinline)) int consider(struct connection *c, __u32 i, struct choice *by)
{
	struct spray_path *p, *home;

	if (!c || !by)
		return NOT_CHOSEN;
	p = &c->path[SPRAY_PATH(i)];
	home = &c->path[SPRAY_PATH(c->home)];
	if (p->paused) {
		if (p->until - by->now <= SPRAY_MAX_PAUSE)
			return NOT_CHOSEN;
		p->paused = 0;
	}
	if (spray_stalled(p, home, 2) || (p->packets && (by->harm || spray_harms(p))))
		return LEFT;
	/* In slow start, and where home has no queue, others gain nothing that a loss there is worth. */
	if (!by->quiet && (c->bytes < SPRAY_CAREFUL || !spray_queued(home)))
		return NOT_CHOSEN;
	return spray_better(p, home, by->size, &by->arrival) ? CHOSEN : NOT_CHOSEN;
}

/*
 * The path that has brought most is home, where data on home is overtaken: the others are left then, and
 * it may be home that is late. One that was dead is not.
 */
__attribute__((noinline)) int settle(struct connection *c, const struct plan *plan)
{
	__u32 most;

	if (!c || !plan)
		return 0;
	most = SPRAY_PATH(c->home);
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		if (plan->may >> i & 1 && c->path[i].shortest && c->path[i].gone > c->path[SPRAY_PATH(most)].gone)
			most = i;
	if (most == c->home)
		return 0;
	if (c->home == plan->home)
		c->first = c->path[SPRAY_PATH(c->home)].rate;
	c->home = most;
	c->alive = 0;
	c->trial.need = 0;
	c->path[SPRAY_PATH(most)].paused = 0;
	return 0;
}

/* The path over which new data arrives first, and leaves those that harm. */
__attribute__((noinline)) int first(struct connection *c, const struct segment *s, const struct plan *plan, __u32 now)
{
	struct choice by = { .now = now };
	__u32 all = 0, chosen;
	struct spray_path *home;

	if (!c || !s || !plan)
		return 0;
	chosen = c->home;
	home = &c->path[SPRAY_PATH(chosen)];
	if (!home->shortest)
		return chosen;
	by.size = s->length;
	by.quiet = silent(c);
	for (__u32 i = 0; i < SPRAY_PATHS; i++)
		all += c->path[i].gone;
	/* What overtakes data on home has that retransmitted. */
	if (home->late > SPRAY_LATE + home->packets / 256) {
		home->late = home->packets = 0;
		by.harm = 1;
		settle(c, plan);
		chosen = c->home;
		home = &c->path[SPRAY_PATH(chosen)];
	}
	by.harm |= spray_worse(&c->watch, home, now, all, all - home->gone);
	by.arrival = by.quiet ? 0xffffffff : spray_arrival(home, by.size);
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		int what;

		if (i == c->home || !(plan->may >> i & 1))
			continue;
		what = consider(c, i, &by);
		if (what == CHOSEN)
			chosen = i;
		else if (what == LEFT)
			leave(c, s, i, plan->mark[i], now);
	}
	return chosen;
}

/* Counts a segment as sent over a path, and has a record say so. */
static __always_inline void write(struct connection *c, __u32 at, __u32 path, __u32 now, __u32 size)
{
	struct record *r = &c->records[at & (RECORDS - 1)];
	struct spray_path *p = &c->path[SPRAY_PATH(path)];

	spray_send(p, now, size);
	r->end = c->next;
	r->length = size;
	r->sent = now;
	r->acknowledged = p->gone;
	r->retransmitted = 0;
	r->path = path;
	r->arrived = 0;
	r->lost = SPRAY_NONE;
}

/*
 * Sends new data home while all records are used. The last one grows, or is used again once it has
 * arrived: what is not counted waits on home all the same, so that what is sent there later would seem
 * to be slow.
 */
__attribute__((noinline)) int send_home(struct connection *c, __u32 now, __u32 size)
{
	struct record *last;

	if (!c)
		return 0;
	last = &c->records[(c->head - 1) & (RECORDS - 1)];
	if (c->head - c->tail < RECORDS) {
		write(c, c->head, c->home, now, size);
		c->head++;
	} else if (last->arrived) {
		write(c, c->head - 1, c->home, now, size);
	} else if (last->path == c->home) {
		last->end = c->next;
		last->length += size;
		spray_send(&c->path[SPRAY_PATH(c->home)], now, size);
	}
	return c->home;
}

/* The path of a segment with data. */
__attribute__((noinline)) int choose(struct __sk_buff *skb, const struct segment *s, const struct plan *plan)
{
	__u32 now = bpf_ktime_get_ns() / 1000, at, size, chosen;
	struct connection *c;

	if (!s || !plan)
		return 0;
	at = place(&s->ends);
	size = s->length;
	c = find(&s->ends, at);
	if (!c || !c->bytes || c->rule != plan->rule) {
		if (!c || !c->bytes || idle(c->used, now))
			c = begin(skb, s, plan, at, now);
		else
			c = 0;
		if (!c)
			return plan->home;
	}
	c->used = now;
	if (!(plan->may >> SPRAY_PATH(c->home) & 1))
		c->home = plan->home;
	if (spray_later(c->next, s->sequence)) {
		return retransmit(c, s, plan, now);
	}
	if (!c->bytes)
		recall(c, s, plan, now);
	if (!(c->head % LEARNED)) {
		if (c->head == LEARNED && !c->heard)
			__sync_fetch_and_add(&unheard, 1);
		remember(c, s, plan);
	}
	if (c->bytes < 0x40000000)
		c->bytes += size;
	if (c->next != s->sequence) /* what is between was sent while the route had no program */
		c->stamp = timestamp(skb, s, 0);
	c->next = s->sequence + size;
	if (c->head - c->tail >= RECORDS - 1)
		return send_home(c, now, size);
	/* Home is not the first path because it was faster. Losses can make it slower than that. */
	if (c->first && c->bytes < 0x40000000 && spray_loses(&c->path[SPRAY_PATH(c->home)]) &&
	    (__u64)c->bytes * 1000 < (__u64)(now - c->began) * c->first) {
		leave(c, s, c->home, plan->mark[SPRAY_PATH(c->home)], now);
		c->home = plan->home;
		c->first = c->trial.need = 0;
		c->path[SPRAY_PATH(c->home)].paused = 0;
	}
	if (spray_later(now - c->period, SPRAY_ROUNDS)) {
		c->period = now;
		if (now - c->died > SPRAY_ROUNDS)
			c->died = 0;
		if (now - c->outage > SPRAY_ROUNDS)
			c->outage = 0;
		for (__u32 i = 0; i < SPRAY_PATHS; i++) {
			struct spray_path *p = &c->path[i];

			if (p->shortest) {
				p->shortest2 = p->shortest;
				p->shortest = p->smooth;
			}
		}
	}
	chosen = first(c, s, plan, now);
	write(c, c->head, chosen, now, size);
	c->head++;
	return chosen;
}

static __always_inline struct datagrams *find_datagrams(const struct ends *e, __u32 at)
{
	struct datagrams *f = bpf_map_lookup_elem(&flows, &at);

	if (f && same(&f->ends, e))
		return f;
	at ^= 1;
	f = bpf_map_lookup_elem(&flows, &at);
	return f && same(&f->ends, e) ? f : 0;
}

/* Begins a flow in one of its two places, if there is an idle one. */
static __always_inline struct datagrams *begin_datagrams(const struct segment *s, const struct plan *plan, __u32 at, __u32 now)
{
	struct datagrams *f = bpf_map_lookup_elem(&flows, &at);

	if (!f || (f->packets && !idle(f->used, now))) {
		at ^= 1;
		f = bpf_map_lookup_elem(&flows, &at);
		if (!f || (f->packets && !idle(f->used, now)))
			return 0;
	}
	__builtin_memset(f, 0, sizeof(*f));
	__builtin_memcpy(&f->ends, &s->ends, sizeof(f->ends));
	f->home = plan->home;
	f->rule = plan->rule;
	f->progress = now;
	return f;
}

/* What the flows to the client of a datagram have in common, in one of two places; 0 if there is none. */
static __always_inline struct client *client_of(const struct segment *s, const struct plan *plan, __u32 now, int *begins)
{
	__u32 address = s->family == 4 ? *(const __u32 *)(s->ends.remote + 12) : 0, at;
	__u64 prefix = *(const __u64 *)s->ends.remote, h = (prefix ^ address) * 0x9e3779b97f4a7c15ULL;
	struct client *d, *unused = 0;

	h ^= h >> 29;
	h *= 0xbf58476d1ce4e5b9ULL;
	at = (h >> 32) & (CLIENTS - 1);
	for (int i = 0; i < 2; i++, at ^= 1) {
		d = bpf_map_lookup_elem(&clients, &at);
		if (!d)
			return 0;
		if (idle(d->used, now)) {
			unused = unused ? unused : d;
		} else if (d->prefix == prefix && d->address == address) {
			unused = d->rule == plan->rule ? 0 : d;
			break;
		}
		d = 0;
	}
	if (unused) {
		d = unused;
		__builtin_memset(d, 0, sizeof(*d));
		d->prefix = prefix;
		d->address = address;
		d->rule = plan->rule;
		d->turns.since = now;
		*begins = 1;
	}
	if (d)
		d->used = now;
	return d;
}

/* Counts what a flow carried over a path; known is what is remembered of the path, if anything. */
static __always_inline void count(const struct network *n, struct memory *known, __u64 bytes)
{
	__u64 *all = bpf_map_lookup_elem(&volumes, &n->mark);
	struct memory next = {};

	if (all)
		__sync_fetch_and_add(all, bytes);
	else
		bpf_map_update_elem(&volumes, &n->mark, &bytes, BPF_NOEXIST);
	if (known) {
		__sync_fetch_and_add(&known->datagrams, bytes);
		return;
	}
	next.datagrams = bytes;
	bpf_map_update_elem(&networks, n, &next, BPF_NOEXIST);
}

/* Reads what TCP measured of the paths, and what other flows of datagrams to the network did. */
__attribute__((noinline)) int consult(struct datagrams *f, struct client *d, const struct segment *s, const struct plan *plan, int begins)
{
	__u64 time = bpf_ktime_get_ns(), most = 0;
	struct memory *m;
	struct network n;

	if (!f || !d || !s || !plan)
		return 0;
	for (__u32 i = 0; i < SPRAY_PATHS; i++) {
		struct spray_queue *q = &d->queue[i];

		q->rate = 0;
		if (!(plan->may >> i & 1))
			continue;
		network_of(&s->ends, s->family, plan->mark[i], &n);
		m = bpf_map_lookup_elem(&networks, &n);
		if (f->bytes[i]) {
			count(&n, m, f->bytes[i]);
			f->bytes[i] = 0;
		}
		if (!m)
			continue;
		q->rate = usable(m, time);
		q->delay = m->shortest;
		if (faster(plan, i, m, time, &most) && !f->packets)
			f->home = i;
	}
	network_of(&s->ends, s->family, 0, &n);
	m = bpf_map_lookup_elem(&networks, &n);
	d->turns.paused = m && m->until > time;
	if (m && begins && known(m, time)) {
		d->turns.home = d->turns.share = m->rate;
		d->turns.state = SPRAY_SPRAYED;
	}
	spray_share(d->queue, f->home, d->turns.share);
	return 0;
}

/* Remembers what flows of datagrams found: the rate of home alone, or that spraying brings no more. */
__attribute__((noinline)) int conclude(struct client *d, const struct segment *s, int gains)
{
	__u64 time = bpf_ktime_get_ns(), first = SPRAY_LOSS_PAUSE * 1000ULL;
	struct memory *known, next = {};
	struct network n;

	if (!d || !s)
		return 0;
	network_of(&s->ends, s->family, 0, &n);
	known = bpf_map_lookup_elem(&networks, &n);
	if (known)
		next = *known;
	if (gains) {
		next.rate = d->turns.home;
		next.learned = time;
	} else {
		next.learned = 0;
		if (next.until <= time) {
			next.pause = next.until && next.until + 8 * next.pause > time ? 2 * next.pause : first;
			if (next.pause > SPRAY_MAX_PAUSE * 1000ULL)
				next.pause = SPRAY_MAX_PAUSE * 1000ULL;
			next.until = time + next.pause;
		}
		d->turns.paused = 1;
	}
	bpf_map_update_elem(&networks, &n, &next, 0);
	return 0;
}

/* The path over which the next datagram of a flow arrives first. */
__attribute__((noinline)) int enqueue(struct client *d, const struct datagrams *f, __u32 may, __u32 size, __u32 now)
{
	return d && f ? spray_queue_choose(&d->turns, d->queue, SPRAY_PATH(f->home), may, f->total, size, now) : 0;
}

/* Counts a datagram, and says whether spraying gains. */
__attribute__((noinline)) int turn(struct client *d, __u32 home, __u32 chosen, __u32 size, __u32 now)
{
	return d ? spray_turn(&d->turns, d->queue[SPRAY_PATH(home)].delay, now, size, chosen != home) : 0;
}

/* The path of a datagram. */
__attribute__((noinline)) int choose_datagram(const struct segment *s, const struct plan *plan)
{
	__u32 now = bpf_ktime_get_ns() / 1000, at, home, chosen, limit;
	struct datagrams *f;
	struct client *d;
	int verdict, begins = 0, lost = 0;

	if (!s || !plan)
		return 0;
	at = place(&s->ends);
	f = find_datagrams(&s->ends, at);
	if (!f || f->rule != plan->rule) {
		if (!f || idle(f->used, now))
			f = begin_datagrams(s, plan, at, now);
		else
			f = 0;
		if (!f)
			return plan->home;
	}
	f->used = now;
	d = client_of(s, plan, now, &begins);
	if (!d)
		return plan->home;
	if (!(f->packets % LEARNED) || begins)
		consult(f, d, s, plan, begins);
	if (!f->packets)
		f->first = f->home;
	f->packets++;
	if (!f->packets)
		f->packets = 1;
	/* A peer without a route is left until it has one again. */
	if (!f->away && plan->may >> SPRAY_PATH(f->first) & 1)
		f->home = f->first;
	else if (!(plan->may >> SPRAY_PATH(f->home) & 1))
		f->home = plan->home;
	/* If it is silent again, it is left again sooner, and for longer. */
	if (f->away && now - f->away >= f->wait && plan->may >> SPRAY_PATH(f->first) & 1) {
		f->home = f->first;
		f->away = 0;
		f->left = now ? now : 1;
		f->progress = now;
	}
	if (f->silent && f->heard == f->progress) {
		/* All paths were silent: what failed is what they have in common. */
		if (f->silent >= (plan->may & 1) + (plan->may >> 1 & 1) + (plan->may >> 2 & 1) + (plan->may >> 3 & 1) &&
		    plan->may >> SPRAY_PATH(f->first) & 1) {
			f->home = f->first;
			f->away = 0;
			f->wait /= 2;
		}
		f->silent = 0;
	}
	home = SPRAY_PATH(f->home);
	/* Where a client never sends, silence says nothing. */
	limit = (f->left && now - f->left < SPRAY_SUSPECT) || (d->turns.doubt && now - d->turns.doubt < SPRAY_SUSPECT) ? SPRAY_DEAD / 3 :
															SPRAY_DEAD;
	if (3 * d->queue[home].delay > limit)
		limit = 3 * d->queue[home].delay;
	if (f->heard == f->progress) {
		/* One acknowledgment of QUIC has no answer until the server responds, which takes its time. */
		if (s->length >= SPRAY_ANSWERED || f->small == f->heard)
			f->progress = now;
		f->small = f->heard;
	}
	/* A sender that gets no acknowledgments says more than a client that is heard. */
	if (s->length >= SPRAY_ANSWERED)
		lost = backoff_sent(&f->backoff, now, s->length) >= (f->left && now - f->left < SPRAY_SUSPECT ? 1 : BACKOFF_TIMES);
	if (lost || (f->heard && f->heard != f->progress && spray_later(now - f->progress, limit))) {
		if (f->backoff.times >= BACKOFF_TIMES)
			f->backoff.times = BACKOFF_TIMES - 1;
		for (__u32 i = 1; i < SPRAY_PATHS; i++) {
			__u32 other = SPRAY_PATH(home + i);

			if (plan->may >> other & 1) {
				f->home = home = other;
				f->progress = now;
				f->away = now ? now : 1;
				if (++f->silent > 1)
					break;
				f->wait = f->wait > SPRAY_AWAY / 2 ? 2 * f->wait : SPRAY_AWAY;
				if (f->wait > SPRAY_MAX_PAUSE)
					f->wait = SPRAY_MAX_PAUSE;
				break;
			}
		}
	}
	chosen = enqueue(d, f, plan->may, s->length, now);
	if (f->total < SPRAY_BEGIN)
		f->total += s->length;
	f->bytes[SPRAY_PATH(chosen)] += s->length;
	verdict = turn(d, home, chosen, s->length, now);
	if (verdict == SPRAY_LEAVES)
		f->left = now ? now : 1;
	if (verdict)
		conclude(d, s, verdict == SPRAY_GAINS);
	return chosen;
}

#define LWT_DROP 2

/*
 * The program of the routes of a plan, small so that it is loaded in no time. When the daemon has
 * ended, there is nothing to continue with, and packets go home.
 */
SEC("lwt_xmit")
int enter(struct __sk_buff *skb)
{
	__u32 index = plan_index;
	const struct plan *plan = bpf_map_lookup_elem(&plans, &index);
	__u32 home;

	if (!plan)
		return LWT_DROP;
	home = plan->mark[SPRAY_PATH(plan->home)];
	/* A packet with such a mark has been here: its rule is gone. */
	if ((skb->mark & MARK_MASK) == (home & MARK_MASK))
		return LWT_DROP;
	skb->cb[0] = index;
	bpf_tail_call(skb, &sender, 0);
	skb->mark = home;
	return LWT_REROUTE;
}

/* Sends a packet that enter has examined. */
SEC("lwt_xmit")
int send(struct __sk_buff *skb)
{
	__u32 index = skb->cb[0], path;
	struct segment s = {};
	struct plan *plan = bpf_map_lookup_elem(&plans, &index);

	if (!plan)
		return LWT_DROP;
	path = plan->home;
	if (parse(skb, 0, 0, &s)) {
		if (s.protocol == PROTO_TCP && s.flags & TCP_SYN)
			forget(&s);
		else if (s.length)
			path = s.protocol == PROTO_UDP ? choose_datagram(&s, plan) : choose(skb, &s, plan);
	}
	path = SPRAY_PATH(path);
	skb->mark = plan->mark[path];
	return LWT_REROUTE;
}

/* Whether a record was in flight on a path that was dead: it arrives late, and says nothing of the round trip. */
static __always_inline int sent_dead(const struct connection *c, const struct record *r)
{
	return c->died && !c->path[SPRAY_PATH(r->path)].shortest && !spray_later(r->sent, c->died);
}

/* Applies the arrival of a record. */
__attribute__((noinline)) int arrived(struct connection *c, __u32 at, __u32 now)
{
	struct record *r;
	struct spray_path *p, *home;
	int verdict;

	if (!c)
		return 0;
	r = &c->records[at & (RECORDS - 1)];
	if (r->arrived)
		return 0;
	r->arrived = 1;
	if (c->waits) {
		if (c->common) {
			c->home = c->before;
			c->alive = 0;
			interrupted(c, now);
		}
		c->waits = c->common = 0;
	}
	/* A home that carries something again, or was only late, is home again. */
	if (c->alive && r->path == c->former && !r->retransmitted && spray_later(r->sent, c->alive)) {
		c->home = c->former;
		c->alive = 0;
	}
	p = &c->path[SPRAY_PATH(r->path)];
	home = &c->path[SPRAY_PATH(c->home)];
	p->gone += r->length;
	p->progress = now;
	if (r->retransmitted) {
		/* What an outage of all paths lost says nothing of one. */
		if (c->outage && !spray_later(r->sent, c->outage))
			return 0;
		/* Sooner than a round trip after the retransmission, it was the first one that arrived. */
		r->lost = spray_retransmitted(p, spray_later(spray_shortest(home), now - r->retransmitted), now);
		return 0;
	}
	if (c->old || sent_dead(c, r))
		return 0;
	spray_arrived(p, home->rate, now - r->sent, r->length, r->acknowledged);
	if (!c->trial.need || r->path != c->home)
		return 0;
	verdict = spray_tried(&c->trial, p->gone, now);
	if (verdict == SPRAY_LEAVES)
		end_trial(c);
	else if (verdict == SPRAY_GAINS)
		c->trial.need = 0;
	return 0;
}

/* Records that an acknowledgment, and that a block of one, has arrive at most. */
#define ARRIVALS 48
#define BLOCK 16

/* Applies a block of a SACK option, whose end arrived last. */
__attribute__((noinline)) int sacked(struct connection *c, __u32 ack, __u32 left, __u32 right, __u32 now)
{
	__u32 at;

	if (!c || left == right || !spray_later(right, ack) || spray_later(right, c->next))
		return 0;
	at = search(c, c->tail, right);
	for (int i = 0; i < BLOCK && at - c->tail < c->head - c->tail; i++) {
		struct record *r = &c->records[at & (RECORDS - 1)];

		if (spray_later(r->end, right) || spray_later(left, r->end - r->length))
			break;
		arrived(c, at, now);
		at--;
	}
	return 0;
}

/* Applies that a packet arrived again (RFC 2883): if the path had lost it, it was the first one. */
__attribute__((noinline)) int twice(struct connection *c, __u32 right, __u32 now)
{
	struct spray_path *p;
	struct record *r;
	__u32 at;

	if (!c)
		return 0;
	at = search(c, c->head > RECORDS ? c->head - RECORDS : 0, right);
	r = &c->records[at & (RECORDS - 1)];
	if (at == c->head || r->end != right || r->lost == SPRAY_NONE)
		return 0;
	p = &c->path[SPRAY_PATH(r->path)];
	spray_found(p, r->lost);
	r->lost = SPRAY_NONE;
	if (!sent_dead(c, r))
		spray_arrived(p, c->path[SPRAY_PATH(c->home)].rate, now - r->sent, r->length, r->acknowledged);
	return 0;
}

SEC("tc")
int receive(struct __sk_buff *skb)
{
	__u32 now, ack, echo, zero = 0, at, edge[8] = {};
	struct segment s = {};
	struct connection *c;
	struct datagrams *f;
	__u8 *options;

	if (!parse(skb, ETHERNET_HEADER, 1, &s))
		return TC_NEXT;
	if (s.protocol == PROTO_UDP) {
		f = find_datagrams(&s.ends, place(&s.ends));
		if (f) {
			now = bpf_ktime_get_ns() / 1000;
			f->heard = f->progress = now ? now : 1;
		}
		return TC_NEXT;
	}
	if (!(s.flags & TCP_ACK))
		return TC_NEXT;
	c = find(&s.ends, place(&s.ends));
	if (!c || !c->bytes)
		return TC_NEXT;
	ack = s.acknowledgment;
	if (spray_later(ack, c->next))
		return TC_NEXT;
	c->heard = 1;
	now = bpf_ktime_get_ns() / 1000;
	/* Where the client has its options in another order, nothing is known. */
	echo = c->stamp ? timestamp(skb, &s, 1) : 0;
	c->old = echo && spray_later(c->stamp, echo);
	for (int i = 0; i < ARRIVALS && c->tail != c->head; i++) {
		__u32 tail = c->tail;

		if (spray_later(c->records[tail & (RECORDS - 1)].end, ack))
			break;
		arrived(c, tail, now);
		c->tail = tail + 1;
	}
	if (s.options_length >= 10) {
		options = bpf_map_lookup_elem(&scratch, &zero);
		at = s.options_length;
		asm volatile("" : "+r"(at));
		if (!options || at < 10 || at > 40 || bpf_skb_load_bytes(skb, s.options, options, at))
			return TC_NEXT;
		at = 0;
		for (int i = 0; i < 8 && at + 10 <= s.options_length; i++) {
			__u8 kind = options[at & 63], length = options[(at + 1) & 63];

			if (kind == 1) {
				at++;
				continue;
			}
			if (kind == 5 && length >= 10) {
				for (int e = 0; e < 8 && 6 + 4 * e <= length; e++)
					edge[e] = (__u32)options[(at + 2 + 4 * e) & 63] << 24 | options[(at + 3 + 4 * e) & 63] << 16 |
						  options[(at + 4 + 4 * e) & 63] << 8 | options[(at + 5 + 4 * e) & 63];
				break;
			}
			if (kind == 0 || length < 2)
				break;
			at += length;
		}
	}
	if (edge[0] != edge[1] && !spray_later(edge[1], ack))
		twice(c, edge[1], now);
	/* A receiver may acknowledge several arrivals at once, and what arrived twice in the first block (RFC 2883). */
	for (int i = 0; i < 4; i++)
		sacked(c, ack, edge[2 * i], edge[2 * i + 1], now);
	return TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
