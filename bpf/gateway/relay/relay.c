// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Relays open messages as a member of an alliance does: between a leader on its short link and one home
 * agent. It replaces the outer addresses and ports, and neither reads nor delivers what is in a message.
 *
 * It runs at tcx or cls_bpf ingress of the short link and of the line, before the sockets of the sealed plane,
 * because open messages have no UDP checksum and may be super-packets, which sockets know nothing of.
 * Sealed messages between the same addresses and ports go on to these sockets, which relay them, but count
 * against the same rate.
 *
 * Needs Linux 5.13.
 */
#include "packet.h"

enum {
	MAX_HOPS = 256,

	OPEN = 6, /* type of the message */
	OPEN_HEADER = 24,
	SHORTEST = UDP_HEADER + OPEN_HEADER + IPV4_HEADER,
};

/* What messages are relayed: where they arrive, where from, and to which port. */
struct hop_key {
	__u8 source[16]; /* IPv4 is mapped into IPv6, here and below */
	__u32 ifindex;
	__u16 source_port, destination_port; /* in network byte order */
	__u32 protocol;			     /* skb->protocol */
};

/* How they are relayed. */
struct hop {
	__u8 local[16]; /* what they are for; zero: any address of this host */
	__u8 from[16], to[16];
	__u16 from_port, to_port; /* in network byte order */
	__u32 ifindex;
	__u32 mark;
	__u32 state; /* index of states */
	__u64 per_byte; /* time of a byte at the rate, in 2^-16 ns */
	/*
	 * How long a burst may be, in ns at the rate: with sealed messages, and with open ones, less, because
	 * probes must not be lost with the packets that exceed the rate.
	 */
	__u64 burst, burst_open;
};

struct hop_state {
	struct bpf_spin_lock lock;
	__u32 reserved;
	__u64 due; /* when the rate allows what has passed, in ns */
	__u64 packets, bytes; /* open, as on the wire: each segment of a super-packet counts */
	__u64 dropped;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_HOPS);
	__type(key, struct hop_key);
	__type(value, struct hop);
} hops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_HOPS);
	__type(key, __u32);
	__type(value, struct hop_state);
} states SEC(".maps");

/* The first headers of a message. */
struct outer {
	__u8 destination[16] __attribute__((aligned(8)));
	struct hop_key key;
	__u32 length;  /* with them, by the first */
	__u32 headers; /* before the message in it */
	__u8 hops;
	__u8 open; /* it is one that can be relayed */
};

static __always_inline int is_open(const __u8 *udp, const void *end)
{
	/* With a checksum it would have to be adjusted; gateways send none. */
	return udp + SHORTEST <= (const __u8 *)end && udp[UDP_HEADER] == OPEN && !*(const __u16 *)(udp + 6);
}

/* Reads the headers; false means that the packet is the kernel's. */
static __always_inline int read_outer(struct __sk_buff *skb, struct outer *o)
{
	const __u8 *h = (const __u8 *)(long)skb->data + ETHERNET_HEADER, *end = (const __u8 *)(long)skb->data_end;

	o->key.protocol = skb->protocol;
	o->key.ifindex = skb->ifindex;
	if (skb->protocol == htons(ETHERTYPE_IPV4)) {
		if (h + IPV4_HEADER + UDP_HEADER > end || h[0] != 0x45 || h[9] != PROTO_UDP || number(h + 6) & IPV4_DF_MASK)
			return 0;
		map_address(o->key.source, h + 12);
		map_address(o->destination, h + 16);
		o->hops = h[IPV4_TTL];
		o->length = ip_length(h, 0);
		h += IPV4_HEADER;
		o->headers = ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER;
	} else if (skb->protocol == htons(ETHERTYPE_IPV6)) {
		if (h + IPV6_HEADER + UDP_HEADER > end || h[0] >> 4 != 6 || h[IPV6_NEXT] != PROTO_UDP)
			return 0;
		copy(o->key.source, h + IPV6_SOURCE, 16);
		copy(o->destination, h + IPV6_DESTINATION, 16);
		o->hops = h[IPV6_HOP_LIMIT];
		o->length = ip_length(h, 1);
		h += IPV6_HEADER;
		o->headers = ETHERNET_HEADER + IPV6_HEADER + UDP_HEADER;
	} else {
		return 0;
	}
	o->key.source_port = *(const __u16 *)h;
	o->key.destination_port = *(const __u16 *)(h + 2);
	o->open = is_open(h, end) && (skb->gso_size || ETHERNET_HEADER + o->length >= o->headers - UDP_HEADER + SHORTEST);
	return 1;
}

/* The bytes before the payload of each segment of a super-packet, which is one of TCP without options of IP. */
static __always_inline __u32 headers_of(struct __sk_buff *skb, const struct outer *o)
{
	__u32 inner = o->headers + OPEN_HEADER;
	__u8 version, offset;

	if (bpf_skb_load_bytes(skb, inner, &version, sizeof(version)))
		return inner;
	inner += version >> 4 == 6 ? IPV6_HEADER : IPV4_HEADER;
	if (bpf_skb_load_bytes(skb, inner + TCP_OFFSET, &offset, sizeof(offset)))
		return inner;
	return inner + (offset >> 4) * 4;
}

static __always_inline int is_local(const struct hop *hop, const struct outer *o)
{
	const __u64 *local = (const __u64 *)hop->local, *to = (const __u64 *)o->destination;

	if (!(local[0] | local[1]))
		return 1;
	return local[0] == to[0] && local[1] == to[1];
}

/* Replaces what is between the hop limit and the ports. */
static __always_inline int rewrite_ipv4(struct __sk_buff *skb, const struct hop *hop)
{
	struct {
		__u16 hops, check;
		__u32 from, to;
		__u16 from_port, to_port;
	} now, old;
	__u64 sum;

	if (bpf_skb_load_bytes(skb, ETHERNET_HEADER + IPV4_TTL, &old, sizeof(old)))
		return -1;
	now.hops = old.hops - htons(0x0100);
	now.from = *(const __u32 *)(hop->from + 12);
	now.to = *(const __u32 *)(hop->to + 12);
	now.from_port = hop->from_port;
	now.to_port = hop->to_port;
	/* RFC 1624. */
	sum = (__u64)(__u16)~old.check + (__u16)~old.hops + (__u32)~old.from + (__u32)~old.to;
	sum += (__u64)now.hops + now.from + now.to;
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	now.check = ~((sum & 0xffff) + (sum >> 16));
	return bpf_skb_store_bytes(skb, ETHERNET_HEADER + IPV4_TTL, &now, sizeof(now), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int rewrite_ipv6(struct __sk_buff *skb, const struct hop *hop, __u8 hops)
{
	struct {
		__u8 next, hops;
		__u8 from[16], to[16];
		__u16 from_port, to_port;
	} __attribute__((packed)) now = {.next = PROTO_UDP, .hops = hops - 1, .from_port = hop->from_port, .to_port = hop->to_port};

	__builtin_memcpy(now.from, hop->from, sizeof(now.from));
	__builtin_memcpy(now.to, hop->to, sizeof(now.to));
	return bpf_skb_store_bytes(skb, ETHERNET_HEADER + IPV6_NEXT, &now, sizeof(now), BPF_F_RECOMPUTE_CSUM);
}

SEC("tc")
int relay(struct __sk_buff *skb)
{
	__u32 linear = ETHERNET_HEADER + IPV6_HEADER + SHORTEST, segments = 1, size;
	struct outer o = {};
	struct hop_state *state;
	const struct hop *hop;
	__u64 now, due, burst;
	int within;

	if (!is_for_host(skb))
		return TC_NEXT;
	if (unlikely(skb->data_end - skb->data < linear))
		bpf_skb_pull_data(skb, skb->len < linear ? skb->len : linear);
	if (!read_outer(skb, &o))
		return TC_NEXT;
	hop = bpf_map_lookup_elem(&hops, &o.key);
	if (!hop || !is_local(hop, &o))
		return TC_NEXT;
	state = bpf_map_lookup_elem(&states, &hop->state);
	if (!state)
		return TC_NEXT;
	if (trim(skb, ETHERNET_HEADER, o.length)) {
		__sync_fetch_and_add(&state->dropped, 1);
		return TC_DROP;
	}
	size = skb->len - ETHERNET_HEADER;
	if (o.open && skb->gso_size) {
		__u32 headers = headers_of(skb, &o);

		if (skb->len > headers) {
			segments = segments_of(skb, skb->len - headers);
			size += (segments - 1) * (headers - ETHERNET_HEADER);
		}
	}
	now = bpf_ktime_get_ns();
	burst = o.open ? hop->burst_open : hop->burst;

	bpf_spin_lock(&state->lock);
	due = state->due;
	if ((__s64)(due - now) < 0)
		due = now;
	due += size * hop->per_byte >> 16;
	within = due - now <= burst && (!o.open || o.hops > 1);
	if (within) {
		state->due = due;
		if (o.open) {
			state->packets += segments;
			state->bytes += size;
		}
	} else {
		state->dropped += segments;
	}
	bpf_spin_unlock(&state->lock);
	if (!within)
		return TC_DROP;
	if (!o.open)
		return TC_NEXT;
	if (skb->protocol == htons(ETHERTYPE_IPV4) ? rewrite_ipv4(skb, hop) : rewrite_ipv6(skb, hop, o.hops))
		return TC_DROP;
	/* The route is that of the sockets. */
	skb->mark = hop->mark;
	return bpf_redirect_neigh(hop->ifindex, 0, 0, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
