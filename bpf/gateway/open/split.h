/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* split: sends packets of the LAN over the paths. */
#ifndef TABANE_OPEN_SPLIT_H
#define TABANE_OPEN_SPLIT_H

#include "address.h"
#include "headers.h"
#include "owner.h"
#include "session.h"

static __always_inline int leave(__u32 why)
{
	__u64 *n = bpf_map_lookup_elem(&lefts, &why);

	if (n)
		++*n;
	return TC_NEXT;
}

/* Adds to a set, which nearly always has it. */
static __always_inline void note(__u64 *set, __u32 more)
{
	if (more & ~*set)
		__sync_fetch_and_or(set, more);
}

/* Not 0 if v is not. The product of two of these is not 0 if neither is. */
static __always_inline __u64 fold(__u64 v)
{
	return (__u32)(v | v >> 32);
}

/* 0 if the packet matches. Products instead of conditions: with these, the verifier follows each
 * combination of them through each rule. */
static __always_inline __u64 differs(const struct rule *r, const struct packet *p)
{
	__u64 protocol = (__u64)(r->protocol[0] ^ p->protocol) * (__u64)(r->protocol[1] ^ p->protocol) * r->has_protocol;
	__u64 port = (__u64)r->port * (__u64)(r->port ^ p->source_port) * (__u64)(r->port ^ p->destination_port);
	__u64 dscp = (__u64)(r->dscp ^ p->dscp) * r->has_dscp;
	__u64 family = (__u64)(r->family ^ p->family) * r->family;
	__u64 mark = (r->mark ^ p->mark) & r->mark_mask;
	__u64 source = ((p->source[0] ^ r->prefix[0]) & r->mask[0]) | ((p->source[1] ^ r->prefix[1]) & r->mask[1]);
	__u64 destination = ((p->destination[0] ^ r->prefix[0]) & r->mask[0]) | ((p->destination[1] ^ r->prefix[1]) & r->mask[1]);

	return protocol | port | dscp | family | mark | fold(source) * fold(destination);
}

/*
 * The rule of a packet: the first that matches, or MAX_RULES. A global function, so that the verifier
 * checks it once, and not all that follows with each way through it.
 */
__attribute__((noinline)) int find_rule(const struct policy *policy, const struct packet *p)
{
	if (!policy || !p)
		return MAX_RULES;
	for (__u32 i = 0; i < MAX_RULES; i++) {
		if (i >= policy->rules)
			break;
		if (!differs(&policy->rule[i], p))
			return i;
	}
	return MAX_RULES;
}

/* The hash of a flow. Fragments of a datagram have only addresses and protocol in common. */
static __always_inline __u32 hash_flow(const struct packet *p)
{
	__u64 h = p->protocol;

	if (!p->fragment)
		h |= (__u64)p->source_port << 16 | (__u64)p->destination_port << 32;
	h = (h ^ p->source[0]) * 0x9e3779b97f4a7c15ULL;
	h = (h ^ h >> 32 ^ p->source[1]) * 0xd6e8feb86659fd93ULL;
	h = (h ^ h >> 32 ^ p->destination[0]) * 0x9e3779b97f4a7c15ULL;
	h = (h ^ h >> 32 ^ p->destination[1]) * 0xd6e8feb86659fd93ULL;
	return h >> 32;
}

/* Decrements the TTL. */
static __always_inline int hop(struct __sk_buff *skb, const struct packet *p)
{
	if (p->family == AF_INET) {
		__u8 *h = (__u8 *)(long)skb->data + LINK_HEADER;
		__u32 check;

		if (h + IPV4_HEADER > (__u8 *)(long)skb->data_end)
			return -1;
		/* RFC 1624. */
		check = *(__u16 *)(h + IPV4_CHECK) + htons(0x0100);
		*(__u16 *)(h + IPV4_CHECK) = check + (check >= 0xffff);
		h[IPV4_TTL]--;
		return 0;
	} else {
		__u8 hops = p->hops - 1;

		return bpf_skb_store_bytes(skb, LINK_HEADER + IPV6_HOP_LIMIT, &hops, sizeof(hops), BPF_F_RECOMPUTE_CSUM);
	}
}

/* The parameters of bpf_fib_lookup (struct bpf_fib_lookup). */
struct fib {
	__u8 family, protocol;
	__u16 source_port, destination_port, length;
	__u32 ifindex, class;
	__u32 source[4], destination[4];
	__u32 vlan;
	__u8 addresses[12]; /* source, destination */
};

/* Sends a copy of the packet to a neighbor whose address the kernel knows: probes over the same path keep it known. */
static __always_inline void send_copy(struct __sk_buff *skb, const struct way *way, const struct bpf_redir_neigh *to)
{
	struct fib f = {.family = to->nh_family, .ifindex = way->ifindex};
	__u8 link[12];

	__builtin_memcpy(f.destination, to->nh, sizeof(f.destination));
	if (bpf_fib_lookup(skb, &f, sizeof(f), BPF_FIB_LOOKUP_OUTPUT))
		return;
	__builtin_memcpy(link, f.addresses + 6, 6);
	__builtin_memcpy(link + 6, f.addresses, 6);
	if (!bpf_skb_store_bytes(skb, 0, link, sizeof(link), 0))
		bpf_clone_redirect(skb, way->ifindex, 0);
}

static __always_inline const struct bpf_redir_neigh *neighbor(const struct way *way, int ipv6)
{
	return ipv6 || !way->ipv4.nh_family ? &way->ipv6 : &way->ipv4;
}

static __always_inline __u32 overhead(__u32 family)
{
	return family == AF_INET ? OUTER_IPV4 : OUTER_IPV6;
}

/*
 * Writes the headers of the tunnel over path i, for which there is room. UDP has no checksum: with one,
 * the receiver's kernel would merge messages of one length for the socket of the sealed plane. (RFC 6935
 * allows that over IPv6.)
 */
static __always_inline int write_outer(struct __sk_buff *skb, const struct plan *plan, const struct outer *o, __u32 i)
{
	__u8 *h = (__u8 *)(long)skb->data + LINK_HEADER;
	const __u8 *end = (const __u8 *)(long)skb->data_end;
	const __u8 *outer;
	struct header *header;

	if (!o || i >= SCHED_PATHS)
		return -1;
	outer = plan->outer[SCHED_PATH(i)];
	if (plan->tunnel == AF_INET) {
		__u16 length = htons(OUTER_IPV4 + o->length);
		__u32 sum;

		if (h + OUTER_IPV4 > end)
			return -1;
		copy(h, outer, OUTER_IPV4);
		sum = *(const __u16 *)(outer + IPV4_CHECK) + htons(o->class) + length;
		sum = (sum & 0xffff) + (sum >> 16);
		h[1] = o->class;
		*(__u16 *)(h + 2) = length;
		*(__u16 *)(h + IPV4_CHECK) = ~(sum + (sum >> 16));
		*(__u16 *)(h - 2) = htons(ETHERTYPE_IPV4);
		h += IPV4_HEADER;
	} else {
		if (h + OUTER_IPV6 > end)
			return -1;
		copy(h, outer, OUTER_IPV6);
		*(__u32 *)h = htonl(6U << 28 | o->class << 20);
		*(__u16 *)(h + 4) = htons(OVER_UDP + o->length);
		*(__u16 *)(h - 2) = htons(ETHERTYPE_IPV6);
		h += IPV6_HEADER;
	}
	*(__u16 *)(h + 4) = htons(OVER_UDP + o->length);
	header = (struct header *)(h + UDP_HEADER);
	if (o->header.number)
		header->path |= OPEN_COPIED;
	header->size = o->header.size;
	header->number = o->header.number;
	header->count = htonl(o->count[SCHED_PATH(i)]);
	header->sequence = o->header.sequence;
	return 0;
}

/* Reports a packet without a session. Global for the same reason. */
__attribute__((noinline)) int want(const struct session_key *key, const struct packet *p, __u32 peer)
{
	struct wanted w = {.peer = peer};

	if (!key || !p)
		return 0;
	__builtin_memcpy(&w.key, key, sizeof(w.key));
	__builtin_memcpy(w.source, p->source, sizeof(w.source));
	return bpf_ringbuf_output(&wants, &w, sizeof(w), 0);
}

/* Whether there is an open session for a packet to a peer, which is wanted if not. Returns why the packet has to be
 * left to the kernel, else LEFTS. */
static __always_inline int find_session(struct __sk_buff *skb, const struct setup *set, const struct packet *p, __u32 peer, __u32 family)
{
	struct session_key key = {};
	struct session *s;
	int why;

	if (p->family != family)
		return LEFT_FAMILY;
	why = session_of(skb, p, &key);
	if (why != LEFTS)
		return why;
	s = session_with(set, &key);
	if (!s) {
		want(&key, p, peer);
		return LEFT_SESSION;
	}
	if (*(__u64 *)s->source != p->source[0] || *(__u64 *)(s->source + 8) != p->source[1])
		return LEFT_COLLISION;
	if (s->state != SESSION_OPEN)
		return LEFT_SESSION;
	set_used(s);
	return LEFTS;
}

/*
 * Makes room for the headers of the tunnel. bpf_skb_change_head takes half as long as bpf_skb_adjust_room, but keeps
 * neither the kernel's sum of the packet nor what offload and copies need, and no other protocol than the packet's.
 * write_outer writes over the Ethernet header that it leaves behind, and bpf_redirect_neigh makes another one.
 */
static __always_inline int encapsulate(struct __sk_buff *skb, const struct packet *p, __u32 family, int path)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;

	if (family == p->family && path != SCHED_EVERYWHERE && !skb->gso_size && summed(skb) < CHECKSUM_COMPLETE) {
		__u8 *h;

		if (bpf_skb_change_head(skb, overhead(family), 0))
			return -1;
		h = (__u8 *)(long)skb->data;
		if (h + LINK_HEADER > (__u8 *)(long)skb->data_end)
			return -1;
		*(__u16 *)(h + ETHERNET_TYPE) = skb->protocol;
		return 0;
	}
	flags |= family == AF_INET ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	return bpf_skb_adjust_room(skb, overhead(family), BPF_ADJ_ROOM_MAC, flags);
}

/* Sends copies on all paths of the plan but one, which it returns. Global for the same reason. */
__attribute__((noinline)) int send_copies(struct __sk_buff *skb, const struct plan *plan, __u32 ipv6)
{
	__u32 last = 0, zero = 0;
	const struct outer *outer = bpf_map_lookup_elem(&outers, &zero);

	if (!plan)
		return 0;
	for (__u32 i = 1; i < SCHED_PATHS; i++)
		last += (i - last) & sched_in(plan->choice.may, i);
	for (__u32 i = 0; i < SCHED_PATHS; i++) {
		if (i == last || !(plan->choice.may >> i & 1))
			continue;
		if (!plan->tunnel || !write_outer(skb, plan, outer, i))
			send_copy(skb, &plan->way[i], neighbor(&plan->way[i], ipv6));
	}
	return last;
}

/* Begins the headers of the tunnel. Returns why the packet has to be left to the kernel, else LEFTS. */
static __always_inline int prepare(struct __sk_buff *skb, const struct packet *p, struct outer *o)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *h;

	if (!o)
		return LEFT_PATHS;
	/* The sealed plane fits the segment size of the connection to the tunnel. */
	if (p->protocol == PROTO_TCP && p->flags & TCP_SYN)
		return LEFT_SYN;
	o->length = skb->len - LINK_HEADER;
	o->class = p->class;
	o->header.size = 0;
	o->header.number = 0;
	o->header.sequence = 0;
	if (!skb->gso_size)
		return LEFTS;
	/* Those of UDP are lost where the tunnel ends, if nobody has segmented them before. */
	if (p->protocol != PROTO_TCP || !is_plain(p) || o->length > 0xffff - OUTER_IPV6)
		return LEFT_SUPER;
	h = view(skb, p->transport + TCP_SEQUENCE, sizeof(__u32), room);
	if (!h)
		return LEFT_MALFORMED;
	o->header.size = htons(skb->gso_size);
	o->header.sequence = *(const __u32 *)h;
	return LEFTS;
}

/* Has the kernel segment a super-packet, whose segments this program gets again. Returns TC_NEXT if it cannot. */
static __always_inline int segment(struct __sk_buff *skb, const struct setup *set)
{
	if (!set->segmenter || skb->ifindex == set->segmented || bpf_skb_store_bytes(skb, 0, set->address, 6, 0))
		return TC_NEXT;
	return bpf_redirect(set->segmenter, 0);
}

SEC("tc")
int split(struct __sk_buff *skb)
{
	const struct setup *set = read_setup();
	__u32 owner, zero = 0, slot, size, segments = 1, length, flow = 0;
	const struct policy *policy;
	struct sched_flow *entry = 0;
	struct packet p = {};
	struct plan_key key = {};
	const struct plan *plan;
	struct rule_state *rule;
	struct outer *outer = 0;
	struct peer *peer;
	const struct way *way;
	__u32 why, family;
	__u64 before;
	int verdict;
	__s64 now;
	int path;

	if (!is_for_host(skb))
		return TC_NEXT;
	if (!pull_headers(skb, &p) || !set)
		return TC_NEXT;
	owner = owner_of(set, p.destination, p.family);
	if (!owner || owner > MAX_PEERS)
		return TC_NEXT;
	why = read_headers(skb, &p);
	if (why != LEFTS)
		return leave(why);
	if (p.hops <= 1)
		return leave(LEFT_HOPS);
	key.generation = *(volatile const __u32 *)&set->generation;
	slot = key.generation & 1;
	policy = bpf_map_lookup_elem(&policies, &slot);
	if (!policy || !key.generation)
		return leave(LEFT_PATHS);
	key.peer = owner - 1;
	p.mark = skb->mark;
	if (!policy->always)
		key.rule = find_rule(policy, &p);
	/* User space has not begun to replace it. */
	if (*(volatile const __u32 *)&policy->generation != key.generation)
		return leave(LEFT_PATHS);
	plan = bpf_map_lookup_elem(&plans, &key);
	if (!plan || !plan->choice.may)
		return leave(LEFT_PATHS);

	length = skb->len - LINK_HEADER;
	size = length;
	p.headers -= LINK_HEADER;
	if (skb->gso_size) {
		if (length <= p.headers)
			return leave(LEFT_MALFORMED);
		segments = segments_of(skb, length - p.headers);
		size += (segments - 1) * p.headers;
		length = skb->gso_size + p.headers;
		if (plan->slow) {
			verdict = segment(skb, set);
			if (verdict != TC_NEXT)
				return verdict;
		}
	}
	if (length > plan->mtu || size > SCHED_MAX_SIZE)
		return leave(LEFT_SIZE);
	family = p.family;
	if (plan->tunnel) {
		outer = bpf_map_lookup_elem(&outers, &zero);
		why = prepare(skb, &p, outer);
		if (why == LEFT_SUPER) {
			verdict = segment(skb, set);
			if (verdict != TC_NEXT)
				return verdict;
		}
		if (why != LEFTS)
			return leave(why);
		family = plan->tunnel;
		size += segments * overhead(family);
	}

	if (plan->table != NOT_FLOW) {
		flow = hash_flow(&p);
		slot = plan->table * SCHED_FLOWS + flow % SCHED_FLOWS;
		entry = bpf_map_lookup_elem(&flows, &slot);
		if (!entry)
			return leave(LEFT_PATHS);
	}
	zero = key.peer;
	peer = bpf_map_lookup_elem(&peers, &zero);
	if (!peer || key.rule >= MAX_RULES)
		return leave(LEFT_PATHS);
	rule = &peer->rule[key.rule];
	now = bpf_ktime_get_ns();
	if (plan->nat) {
		why = find_session(skb, set, &p, key.peer, plan->nat);
		if (why != LEFTS)
			return leave(why);
	}

	path = sched_next(&plan->choice, &peer->queues, &rule->state, entry, now, size, flow);
	if (path < 0)
		return leave(LEFT_PATHS);
	add_count(&rule->sent, segments, size);
	if (path == SCHED_EVERYWHERE) {
		__u64 copies = 0;

		for (__u32 i = 0; i < SCHED_PATHS; i++) {
			__s64 m = sched_in(plan->choice.may, i);
			__u64 before = add_count(&peer->sent[i], segments & m, size & m);

			if (outer)
				outer->count[i] = before;
			copies += segments & m;
		}
		add(&rule->copies, copies - segments); /* but for the packet itself */
		note(&rule->used, plan->choice.may);
		before = add(&peer->copied, segments);
		if (outer)
			outer->header.number = htonl(before + 1);
	} else {
		before = add_count(&peer->sent[SCHED_PATH(path)], segments, size);
		if (outer)
			outer->count[SCHED_PATH(path)] = before;
		note(&rule->used, 1U << path);
	}
	if (hop(skb, &p))
		return leave(LEFT_MALFORMED);
	if (plan->tunnel && encapsulate(skb, &p, family, path))
		return leave(LEFT_TUNNEL);
	if (path == SCHED_EVERYWHERE)
		path = send_copies(skb, plan, family == AF_INET6);
	if (plan->tunnel && write_outer(skb, plan, outer, path))
		return TC_DROP;
	way = &plan->way[SCHED_PATH(path)];
	if (plan->nat) {
		struct place at = {.address = LINK_HEADER + (p.family == AF_INET ? 12 : IPV6_SOURCE)};

		set_checksum(&at, &p);
		if (set_address(skb, &at, p.source, way->source))
			return TC_DROP;
	}
	return bpf_redirect_neigh(way->ifindex, (struct bpf_redir_neigh *)neighbor(way, family == AF_INET6), sizeof(way->ipv4), 0);
}
#endif
