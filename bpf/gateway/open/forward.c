// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The open plane of a gateway: sends packets of the LAN to other gateways' prefixes over several
 * paths, each packet on the one that the discipline of its rule chooses, as it is but for the TTL, with
 * the path's address as its source (struct session), or in a tunnel that does not encrypt (struct header).
 *
 * split runs at tcx or cls_bpf ingress of the LAN's interfaces, before the kernel routes. What it does
 * not send it leaves to the kernel, which routes it into the tunnel of the sealed plane: packets with
 * options, those too big for a path, or whose TTL ends, and all while no path can be used. User space
 * decides which paths can be used, and how, whenever that changes (struct plan); per packet it does
 * nothing.
 *
 * join runs at ingress of the paths' interfaces, takes packets out of the tunnel, and has the kernel
 * route them. restore runs there too, and gives packets of NAT sessions the hosts' addresses again, and
 * count, which counts packets that are as the hosts made them. raw.c has these three for interfaces without
 * Ethernet headers, such as those of PPP and of modems.
 *
 * Needs Linux 5.13 with BTF; a tunnel of one IP version in the other, Linux 6.3. Since Linux 6.2 checksums cost less.
 */
#include "packet.h"
#include "sched.h"

/* Bytes before the IP header. raw.c has none. */
#ifndef RAW
enum { LINK_HEADER = ETHERNET_HEADER };
#endif

enum {
	MAX_PEERS = 256,
	MAX_RULES = 64,
	MAX_TABLES = 32, /* tables of flows */

	AF_INET = 2,
	AF_INET6 = 10,

	PROTO_ICMP = 1,
	PROTO_DCCP = 33,
	PROTO_ICMPV6 = 58,
	PROTO_SCTP = 132,
	PROTO_UDPLITE = 136,

	IPV4_OFFSET = 0x1fff,
	IPV4_CHECK = 10,

	/* Headers with TCP without options. More is not pulled: it costs as much as looking up the plan. */
	LINEAR_IPV4 = LINK_HEADER + IPV4_HEADER + TCP_HEADER,
	LINEAR_IPV6 = LINK_HEADER + IPV6_HEADER + TCP_HEADER,

	BPF_FIB_LOOKUP_OUTPUT = 2,
	NOT_FLOW = 0xffffffff,
	OWN = 0xffffffff,    /* in routes */
	ORIGIN_PEER = 0xffff, /* of a value of origins: the number of the peer, and above it that of the path */
	ORIGIN_PATH = 16,
	NOBODY = 0xfffffffe, /* not in origins; in routes, or not: of no peer and not the LAN's */

	TCP_SEQUENCE = 4,
	TCP_SYN = 2,
	ECN_MASK = 3,
	ECN_CE = 3,

	OPEN = 6, /* type of the message */
	OPEN_COPIED = 0x80,
	OPEN_PATH = SCHED_PATHS - 1,

	SESSION_SLOTS = 1 << 19, /* twice as many as sessions */
	SESSION_PROBES = 32,

	ICMP_UNREACHABLE = 3,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMP_ECHO_REPLY = 0,
	ICMP_ECHO = 8,
	ICMPV6_ECHO = 128,
	ICMPV6_ECHO_REPLY = 129,
	ICMP_HEADER = 8,
	ICMP_CHECK = 2,

	/* How the kernel knows a packet's checksum (ip_summed of struct sk_buff). */
	CHECKSUM_COMPLETE = 2,
	CHECKSUM_PARTIAL = 3,
	TRANSPORT_CHECKSUM = 31, /* bounds the offset of a checksum in its header */

	OWNERS = 256,
	IS_ORIGIN = 0x100,

	SEEN = 4096, /* numbers of copied packets that a receiver remembers */
	MAX_SEGMENTS = 128,
};

/* Why a packet to a peer was left to the kernel. */
enum left {
	LEFT_MALFORMED,
	LEFT_OPTIONS,
	LEFT_SOURCE,
	LEFT_HOPS,
	LEFT_SIZE,
	LEFT_PATHS,
	LEFT_SYN,
	LEFT_SUPER,
	LEFT_TUNNEL,
	LEFT_FAMILY,
	LEFT_PROTOCOL,
	LEFT_FRAGMENT,
	LEFT_SESSION,
	LEFT_COLLISION,
	LEFTS,
};

/* Why a message from a path was dropped. */
enum refusal {
	REFUSED_COOKIE,
	REFUSED_MALFORMED,
	REFUSED_SOURCE,
	REFUSED_DUPLICATE,
	REFUSED_CONGESTION,
	REFUSED_SESSION,
	REFUSED_DESTINATION,
	REFUSALS,
};

/* The mark of packets of peers' hosts, which firewalls know them by: nothing else distinguishes those of join from
 * strangers', and connection tracking sees one direction only, because split is before it. Other bits than those of
 * MARK_BITS are of other programs. */
enum marking {
	MARK_OF_PEER = 4791,
	MARK_BITS = 0xffff,
};

/* What rules know of a packet. IPv4 addresses are mapped into IPv6. */
struct packet {
	__u64 source[2];
	__u64 destination[2];
	__u16 source_port, destination_port; /* in host byte order, 0 where there are none */
	__u8 protocol, dscp, family, hops;
	__u32 transport; /* bytes before the header of TCP or UDP */
	__u32 headers;	 /* bytes before the payload of TCP or UDP, or of IP */
	__u32 fragment;
	__u8 class, flags; /* flags of TCP */
	__u16 reserved;
	__u32 mark; /* of the packet in the kernel */
};

/* What the tunnel puts between UDP and a packet, big-endian. */
struct header {
	__u8 type;
	__u8 path;	 /* with OPEN_COPIED if the packet was sent over others, too */
	__u16 size;	 /* of the segments' payload if it is a super-packet, or was one, else 0 */
	__u32 number;	 /* among the copied packets to the peer, from 1; else 0 */
	__u64 cookie;	 /* of the receiver */
	__u32 count;	 /* packets over this path before, modulo 2^32 */
	__u32 sequence; /* of TCP, of the first segment of the super-packet */
};

enum {
	OVER_UDP = UDP_HEADER + sizeof(struct header),
	OUTER_IPV4 = IPV4_HEADER + OVER_UDP,
	OUTER_IPV6 = IPV6_HEADER + OVER_UDP,
};

/* What the headers of a packet in the tunnel have that is not of the path. count is that of each path. */
struct outer {
	struct header header;
	__u32 count[SCHED_PATHS];
	__u32 length, class;
};

/* Matches if all parts do. An address is compared in the bits of mask. */
struct rule {
	__u64 prefix[2], mask[2];
	__u16 port;		  /* 0: any */
	__u8 protocol[2]; /* one of them; the same twice for one */
	__u8 has_protocol;
	__u8 dscp;
	__u8 has_dscp;
	__u8 family; /* of the prefix, 0: any */
	__u32 mark, mark_mask;
};

/* What packets are read with. The policy in use is the one of policies with this generation; 0 is none. */
struct setup {
	__u32 port; /* UDP port of the tunnel, in host byte order */
	__u32 generation;
	__u32 epoch; /* changes after routes and origins do */
	/* A pair of interfaces without offloads: what is sent on the first arrives in segments at the second; 0: none. */
	__u32 segmenter, segmented;
	__u8 address[8]; /* of the second */
	__u32 seed[6];	 /* of the table of sessions, for each word of a key */
};

struct policy {
	__u32 generation;
	__u32 rules;
	__u32 always; /* the first rule matches all packets */
	__u32 reserved;
	struct rule rule[MAX_RULES];
};

/*
 * Where packets of a path go: to the neighbor, on the interface. A family of 0 means there is none. It is
 * as long as a cache line.
 */
struct way {
	__u32 ifindex;
	struct bpf_redir_neigh ipv4, ipv6;
	__u8 source[16]; /* of NAT, IPv4 mapped into IPv6 */
	__u32 reserved;
};

/* What a rule does with packets to a peer. What each packet needs comes first. */
struct plan {
	__u32 mtu;    /* the smallest of the paths, inside the tunnel if there is one */
	__u32 table;  /* of flows */
	__u32 tunnel; /* address family of the tunnel of all paths, 0: none */
	__u32 nat;    /* address family of the sources of all paths, 0: packets keep theirs */
	__u32 slow;   /* a path is busy for long with a super-packet */
	__u32 reserved;
	struct sched_plan choice;
	struct way way[SCHED_PATHS];
	/*
	 * The headers of the tunnel of each path, with the cookie and the number of the path: lengths and
	 * class are 0, the checksum of IPv4 is the sum of the rest.
	 */
	__u8 outer[SCHED_PATHS][OUTER_IPV6];
};

struct plan_key {
	__u32 generation; /* that of the policy */
	__u16 peer, rule;
};

struct count {
	__u64 packets; /* as on the wire: each segment of a super-packet counts */
	__u64 bytes;   /* of IP packets */
};

struct rule_state {
	struct sched_state state;
	struct count sent;
	__u64 copies;
	__u64 used; /* paths */
};

/* What changes with each packet to a peer, by atomic operations. */
struct peer {
	__u64 copied; /* number of the last copied packet in the tunnel */
	struct sched_queues queues;
	struct count sent[SCHED_PATHS];
	struct rule_state rule[MAX_RULES];
};

/* What has arrived from a peer with NAT or mode plain, by path. */
struct counted {
	struct count path[SCHED_PATHS];
};

/* What has arrived over a path. */
struct arrived {
	/* The numbers of the first packet that arrived, and of the one after the last, which is never 0 and does not wrap:
	 * those between that did not arrive are lost. Before the count, so that who reads both never sees more than are. */
	__u64 first, next;
	struct count count;
};

/* A session of a peer, which sends the cookie that is its key. */
struct receiver {
	__u32 peer;
	__u32 reserved;
	struct arrived path[SCHED_PATHS];
	__u32 seen[SEEN]; /* numbers of copied packets, at their value modulo SEEN */
};

struct route {
	__u32 length; /* of what follows */
	__u32 family;
	__u8 address[16];
};

/*
 * A flow of a NAT session, by what the gateways do not change: two flows that differ in the source
 * alone cannot both have sessions.
 */
struct session_key {
	__u8 destination[16];
	__u16 source_port, destination_port; /* in host byte order; of an echo, the identifier and the type */
	__u8 protocol, family;
	__u16 peer; /* 0: this gateway sends the flow; else the number of the peer that does, plus 1 */
} __attribute__((aligned(8)));

enum session_state {
	SESSION_NONE,	 /* the slot was never used: the search ends */
	SESSION_DELETED, /* the search goes on */
	SESSION_CLOSED,	 /* packets are left: it is not agreed on yet, or refused, or ends */
	SESSION_OPEN,
};

/* It is as long as a cache line. */
struct session {
	struct session_key key;
	__u8 source[16]; /* of the host */
	__u64 used;	 /* in ns, up to SESSION_TICK ago */
	__u32 state;
	__u32 tick; /* of used */
	__u64 reserved;
};

/*
 * How exact the time of a session's last packet is, as the number of bits that jiffies are shifted by: 1.28 s with 100
 * jiffies per second, 0.13 s with 1000. Reading them costs nothing, reading the clock as much as looking up a session.
 */
#define SESSION_TICK 7

/* A packet of a flow without a session. */
struct wanted {
	struct session_key key;
	__u8 source[16];
	__u32 peer;
	__u32 reserved;
};

struct origin {
	__u8 address[16];
	__u32 family;
};

/* Where packets of a peer with mode plain arrive. */
struct line {
	__u32 ifindex;
	__u32 peer;
};

/* What routes or origins have of an address: of family, or of family | IS_ORIGIN. */
struct owner {
	__u64 address[2];
	__u32 family;
	__u32 epoch;
	__u32 owner;
	__u32 reserved;
};

/* Keep the types in the object, for the bindings. */
const enum session_state *_session_state __attribute__((unused));
const struct wanted *_wanted __attribute__((unused));
const struct session *_session __attribute__((unused));
const enum left *_left __attribute__((unused));
const enum refusal *_refusal __attribute__((unused));
const enum marking *_marking __attribute__((unused));
const enum sched_rule *_sched_rule __attribute__((unused));

/* A prefix that packets of a peer may be sent to. IPv4 addresses are mapped into IPv6. */
struct reach {
	__u32 length; /* of what follows */
	__u32 peer;
	__u8 address[16];
};

/* The number of the peer plus 1, OWN for this host's addresses, NOBODY for those that no peer may send from, or 0 for what is
 * the LAN's. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, struct route);
	__type(value, __u32);
} routes SEC(".maps");

/* The last answers of routes and origins, which take several times as long. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OWNERS);
	__type(key, __u32);
	__type(value, struct owner);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct setup);
} setups SEC(".maps");

/* That in use, and the one before or after it, by the last bit of the generation. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct policy);
} policies SEC(".maps");

/* A hash map, because what user space updates there is replaced as a whole: no packet sees half of it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2 * MAX_PEERS * MAX_RULES); /* of two generations */
	__type(key, struct plan_key);
	__type(value, struct plan);
} plans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PEERS);
	__type(key, __u32);
	__type(value, struct peer);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TABLES * SCHED_FLOWS);
	__type(key, __u32);
	__type(value, struct sched_flow);
} flows SEC(".maps");

/* Room for the headers of the packet that is sent, which is too much for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct outer);
} outers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LEFTS);
	__type(key, __u32);
	__type(value, __u64);
} lefts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8 * MAX_PEERS);
	__type(key, __u64);
	__type(value, struct receiver);
} receivers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REFUSALS);
	__type(key, __u32);
	__type(value, __u64);
} refusals SEC(".maps");

/*
 * A hash table with open addressing, because a session of another one per packet is in no cache: one line is read here, four in
 * a hash map. User space writes it, and uses a slot again only when no packet has it any more.
 */
struct session_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SESSION_SLOTS);
	__type(key, __u32);
	__type(value, struct session);
};

/* The table, from the first session on. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct session_table);
} sessions SEC(".maps");

/* The addresses of the paths of peers with NAT: the numbers of the peers, and of the path. A path beyond SCHED_PATHS
 * means that several paths have the address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PEERS * SCHED_PATHS);
	__type(key, struct origin);
	__type(value, __u32);
} origins SEC(".maps");

/* The number of the path whose packets arrive there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PEERS * SCHED_PATHS);
	__type(key, struct line);
	__type(value, __u32);
} lines SEC(".maps");

/* By the number of the peer. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_PEERS);
	__type(key, __u32);
	__type(value, struct counted);
} arrivals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} wants SEC(".maps");

/* Whether packets of a peer may only be sent to what is in allowed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PEERS);
	__type(key, __u32);
	__type(value, __u32);
} limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, struct reach);
	__type(value, __u32);
} allowed SEC(".maps");

static __always_inline int refuse(__u32 why)
{
	__u64 *n = bpf_map_lookup_elem(&refusals, &why);

	if (n)
		++*n;
	return TC_DROP;
}

static __always_inline int leave(__u32 why)
{
	__u64 *n = bpf_map_lookup_elem(&lefts, &why);

	if (n)
		++*n;
	return TC_NEXT;
}

/* Passes a packet of a peer's host, or an error about one to it, to the kernel. */
static __always_inline int deliver(struct __sk_buff *skb)
{
	/* The kernel permits no store of a part. */
	*(volatile __u32 *)&skb->mark = (skb->mark & ~MARK_BITS) | MARK_OF_PEER;
	return TC_NEXT;
}

/* Adds to what several processors count. Returns what it was before. */
static __always_inline __u64 add(__u64 *to, __u64 n)
{
	return __sync_fetch_and_add(to, n);
}

static __always_inline __u64 add_count(struct count *to, __u64 packets, __u64 bytes)
{
	__sync_fetch_and_add(&to->bytes, bytes);
	return add(&to->packets, packets);
}

/* Adds to a set, which nearly always has it. */
static __always_inline void note(__u64 *set, __u32 more)
{
	if (more & ~*set)
		__sync_fetch_and_or(set, more);
}

static __always_inline void load_pair(__u64 *to, const __u8 *from)
{
	to[0] = *(const __u64 *)from;
	to[1] = *(const __u64 *)(from + 8);
}

static __always_inline void load_mapped(__u64 *to, const __u8 *from)
{
	to[0] = 0;
	to[1] = (__u64) * (const __u32 *)from << 32 | htonl(0xffff);
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP || protocol == PROTO_UDPLITE || protocol == PROTO_DCCP ||
	       protocol == PROTO_SCTP;
}

static __always_inline const struct setup *read_setup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&setups, &zero);
}

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

/* Reads the addresses and the protocol, that of the first extension header if there are any; false means that the packet
 * is none of IP. */
static __always_inline int addresses(struct __sk_buff *skb, struct packet *p)
{
	const __u8 *h = (const __u8 *)(long)skb->data + LINK_HEADER, *end = (const __u8 *)(long)skb->data_end;

	if (skb->protocol == htons(ETHERTYPE_IPV4)) {
		if (h + IPV4_HEADER > end)
			return 0;
		p->family = AF_INET;
		p->protocol = h[9];
		load_mapped(p->source, h + 12);
		load_mapped(p->destination, h + 16);
		return 1;
	}
	if (skb->protocol == htons(ETHERTYPE_IPV6)) {
		if (h + IPV6_HEADER > end)
			return 0;
		p->family = AF_INET6;
		p->protocol = h[IPV6_NEXT];
		load_pair(p->source, h + IPV6_SOURCE);
		load_pair(p->destination, h + IPV6_DESTINATION);
		return 1;
	}
	return 0;
}

/* Makes the headers linear and reads what addresses does. */
static __always_inline int pull_headers(struct __sk_buff *skb, struct packet *p)
{
	__u32 linear = LINEAR_IPV6;

	if (skb->protocol == htons(ETHERTYPE_IPV4))
		linear = LINEAR_IPV4;
	if (unlikely(skb->data_end - skb->data < linear))
		bpf_skb_pull_data(skb, skb->len < linear ? skb->len : linear);
	return addresses(skb, p);
}

/* Ends the frame of a packet where it does. */
static __always_inline int trim_packet(struct __sk_buff *skb, const struct packet *p)
{
	const __u8 *h = (const __u8 *)(long)skb->data + LINK_HEADER;

	if (h + IPV4_HEADER > (const __u8 *)(long)skb->data_end)
		return -1;
	return trim(skb, LINK_HEADER, ip_length(h, p->family == AF_INET6));
}

/* Reads the rest of the headers, and removes what follows the packet in its frame. Returns why the packet has to be left
 * to the kernel, else LEFTS. */
static __always_inline int read_headers(struct __sk_buff *skb, struct packet *p)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *h, *end;
	__u32 offset;

	p->flags = 0;
	if (trim_packet(skb, p))
		return LEFT_MALFORMED;
	h = (const __u8 *)(long)skb->data + LINK_HEADER;
	end = (const __u8 *)(long)skb->data_end;
	if (p->family == AF_INET) {
		__u16 field;

		if (h + IPV4_HEADER > end || h[0] >> 4 != 4)
			return LEFT_MALFORMED;
		if (h[0] != 0x45)
			return LEFT_OPTIONS;
		/* Of no host: this network, loopback, multicast, broadcast (RFC 1812, section 5.3.7). */
		if (h[12] == 0 || h[12] == 127 || h[12] >= 224)
			return LEFT_SOURCE;
		p->class = h[1];
		p->hops = h[IPV4_TTL];
		p->dscp = p->class >> 2;
		field = number(h + 6);
		p->fragment = field & IPV4_DF_MASK;
		offset = LINK_HEADER + IPV4_HEADER;
		if (field & IPV4_OFFSET) {
			p->headers = offset;
			return LEFTS;
		}
	} else {
		if (h + IPV6_HEADER > end || h[0] >> 4 != 6)
			return LEFT_MALFORMED;
		/* Unspecified, loopback, link-local, multicast. */
		if (h[IPV6_SOURCE] == 0 || h[IPV6_SOURCE] >= 0xfe)
			return LEFT_SOURCE;
		p->class = number(h) >> 4;
		p->dscp = p->class >> 2;
		p->hops = h[IPV6_HOP_LIMIT];
		offset = LINK_HEADER + IPV6_HEADER;
		/* Of interest to routers. */
		if (p->protocol == PROTO_HOP_BY_HOP)
			return LEFT_OPTIONS;
		if (unlikely(is_extension(p->protocol))) {
			__u64 next;

			/* The only place of a fragment header that hosts use. */
			if (p->protocol == PROTO_FRAGMENT) {
				if (h + IPV6_HEADER + FRAGMENT_HEADER > end)
					return LEFT_MALFORMED;
				p->fragment = 1;
				p->headers = offset;
				if (number(h + IPV6_HEADER + 2) >> 3) {
					p->protocol = h[IPV6_HEADER];
					return LEFTS;
				}
			}
			next = skip_extensions(skb, offset, p->protocol);
			if (NEXT_REASON(next) == REASON_FRAGMENT)
				return LEFT_OPTIONS;
			if (NEXT_REASON(next))
				return LEFT_MALFORMED;
			offset = NEXT_OFFSET(next);
			p->protocol = NEXT_TYPE(next);
		}
	}
	p->transport = p->headers = offset;
	if (has_ports(p->protocol)) {
		h = view(skb, offset, 2 * sizeof(__u16), room);
		if (!h)
			return LEFT_MALFORMED;
		p->source_port = number(h);
		p->destination_port = number(h + 2);
		p->headers = offset + UDP_HEADER;
	}
	if (p->protocol == PROTO_TCP) {
		h = view(skb, offset + TCP_OFFSET, sizeof(__u16), room);
		if (!h)
			return LEFT_MALFORMED;
		p->headers = offset + (h[0] >> 4) * 4;
		p->flags = h[1];
	}
	return LEFTS;
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

static __always_inline int is_icmp(const struct packet *p)
{
	return p->protocol == (p->family == AF_INET ? PROTO_ICMP : PROTO_ICMPV6);
}

static __always_inline int is_echo(__u32 family, __u8 type)
{
	return family == AF_INET ? type == ICMP_ECHO || type == ICMP_ECHO_REPLY : type == ICMPV6_ECHO || type == ICMPV6_ECHO_REPLY;
}

/* Whether the headers of a packet end where those without options and extension headers do. */
static __always_inline int is_plain(const struct packet *p)
{
	return p->transport == LINK_HEADER + (p->family == AF_INET ? IPV4_HEADER : IPV6_HEADER);
}

/* Sets the key of the session of a packet that read_headers has read. Returns why it can have none, else LEFTS. */
static __always_inline int session_of(struct __sk_buff *skb, const struct packet *p, struct session_key *key)
{
	if (p->fragment)
		return LEFT_FRAGMENT;
	if (!is_plain(p))
		return LEFT_OPTIONS;
	__builtin_memcpy(key->destination, p->destination, sizeof(key->destination));
	key->protocol = p->protocol;
	key->family = p->family;
	if (p->protocol == PROTO_TCP || p->protocol == PROTO_UDP) {
		key->source_port = p->source_port;
		key->destination_port = p->destination_port;
	} else if (is_icmp(p)) {
		__u8 h[ICMP_HEADER];

		if (bpf_skb_load_bytes(skb, p->transport, h, sizeof(h)))
			return LEFT_MALFORMED;
		if (!is_echo(p->family, h[0]))
			return LEFT_PROTOCOL;
		key->source_port = h[4] << 8 | h[5];
		key->destination_port = h[0];
	} else {
		return LEFT_PROTOCOL;
	}
	return LEFTS;
}

/*
 * The hash of a session: that of hosts' choice collide no more often than others, because they do not know the seed. NH of UMAC
 * (RFC 4418, section 5.2.2), whose sums of neighbors are near each other, and a product that spreads them.
 */
static __always_inline __u64 hash_session(const struct setup *set, const struct session_key *key)
{
	const __u32 *k = (const __u32 *)key, *s = set->seed;
	__u64 h = (__u64)(k[0] + s[0]) * (k[1] + s[1]) + (__u64)(k[2] + s[2]) * (k[3] + s[3]) + (__u64)(k[4] + s[4]) * (k[5] + s[5]);

	return (h ^ h >> 32) * 0xd6e8feb86659fd93ULL;
}

/* The session with a key, or NULL. */
static __always_inline struct session *session_with(const struct setup *set, const struct session_key *key)
{
	const __u64 *k = (const __u64 *)key;
	__u32 zero = 0, slot, step;
	void *table = bpf_map_lookup_elem(&sessions, &zero);
	__u64 h;

	if (!table)
		return 0;
	h = hash_session(set, key);
	slot = h >> 32;
	step = h | 1;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < SESSION_PROBES; i++) {
		struct session *s;
		const __u64 *other;
		__u32 state, after;

		slot &= SESSION_SLOTS - 1;
		s = bpf_map_lookup_elem(table, &slot);
		if (!s)
			return 0;
		state = *(volatile __u32 *)&s->state;
		if (state == SESSION_NONE)
			return 0;
		/* 0, so that no processor reads the key before the state. */
		after = state >> 31;
		sched_hide(after);
		other = (const __u64 *)((const __u8 *)s + after);
		if (state != SESSION_DELETED && !((other[0] ^ k[0]) | (other[1] ^ k[1]) | (other[2] ^ k[2])))
			return s;
		slot += step;
	}
	return 0;
}

/* Sets the time of a session's last packet. */
static __always_inline void set_used(struct session *s)
{
	__u32 tick = bpf_jiffies64() >> SESSION_TICK;

	if (s->tick != tick) {
		s->tick = tick;
		s->used = bpf_ktime_get_ns();
	}
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

/* Where a packet has an address, and a checksum that it is part of. */
struct place {
	__u32 family;
	__u32 address;	/* offset in the packet */
	__u32 checksum; /* of TCP, UDP or ICMPv6, in its header, which follows that of IP; 0: none */
	__u32 flags;
};

/* Where a transport has a checksum that the addresses are part of, 0: it has none. */
static __always_inline __u32 checksum_of(__u8 protocol)
{
	if (protocol == PROTO_TCP)
		return 16;
	if (protocol == PROTO_UDP)
		return 6;
	return protocol == PROTO_ICMPV6 ? ICMP_CHECK : 0;
}

/* The checksum of a packet's transport that the addresses are part of. */
static __always_inline void set_checksum(struct place *at, const struct packet *p)
{
	at->family = p->family;
	at->checksum = checksum_of(p->protocol);
	at->flags = BPF_F_PSEUDO_HDR;
	if (p->protocol == PROTO_UDP)
		at->flags |= BPF_F_MARK_MANGLED_0;
}

/* Members of the kernel's structure that are read here. */
struct sk_buff {
	__u8 ip_summed : 2;
} KERNEL;

extern void *bpf_cast_to_kern_ctx(void *context) __attribute__((section(".ksyms"), weak)); /* Linux 6.2 */

/* How the kernel knows the checksum of a packet, CHECKSUM_COMPLETE if that is not known. */
static __always_inline __u32 summed(struct __sk_buff *skb)
{
	const struct sk_buff *kernel;
	__u64 bits;

	if (!bpf_cast_to_kern_ctx)
		return CHECKSUM_COMPLETE;
	kernel = bpf_cast_to_kern_ctx(skb);
	/* The byte that has the bits, and how far to shift it as a number of 64 bits. */
	bits = *((const __u8 *)kernel + __builtin_preserve_field_info(kernel->ip_summed, 0));
	return bits << __builtin_preserve_field_info(kernel->ip_summed, 4) >> __builtin_preserve_field_info(kernel->ip_summed, 5);
}

/* Adds to a sum in one's complement a difference of as many bits. */
static __always_inline __u16 add_sum(__u16 sum, __u16 difference)
{
	__u32 v = (__u32)sum + difference;

	return v + (v >> 16);
}

/* What the words of an address change in a sum that they are part of (RFC 1624). Those of IPv4 differ in the last one. */
static __always_inline __u16 difference(const __u32 *from, const __u32 *to, __u32 family)
{
	__u64 v = (__u64)(__u32)~from[3] + to[3];

	if (family == AF_INET6)
		v += (__u64)(__u32)~from[0] + to[0] + (__u32)~from[1] + to[1] + (__u32)~from[2] + to[2];
	v = (v & 0xffffffff) + (v >> 32);
	v = (v & 0xffff) + (v >> 16);
	return (v & 0xffff) + (v >> 16);
}

/*
 * Replaces an address, which is a word of IPv4 or four of IPv6. The checksum of the transport is changed by hand, because a
 * helper takes as long as several lookups. Where the kernel has summed the packet (CHECKSUM_COMPLETE), helpers keep that right.
 */
static __always_inline int set_address(struct __sk_buff *skb, const struct place *at, const void *from, const void *to)
{
	__u8 *h = (__u8 *)(long)skb->data + LINK_HEADER;
	const __u8 *end = (const __u8 *)(long)skb->data_end;
	__u32 how = summed(skb), header = IPV6_HEADER;
	__u16 by = difference(from, to, at->family), *check;

	if (at->family == AF_INET) {
		header = IPV4_HEADER;
		if (h + IPV4_HEADER > end)
			return -1;
		check = (__u16 *)(h + IPV4_CHECK);
		*check = ~add_sum(~*check, by);
		copy(h + (at->address == LINK_HEADER + 12 ? 12 : 16), to + 12, 4);
	} else {
		if (h + IPV6_HEADER > end)
			return -1;
		copy(h + (at->address == LINK_HEADER + IPV6_SOURCE ? IPV6_SOURCE : IPV6_DESTINATION), to, 16);
		if (how == CHECKSUM_COMPLETE)
			bpf_csum_update(skb, by);
	}
	if (!at->checksum)
		return 0;
	if (how == CHECKSUM_COMPLETE)
		return bpf_l4_csum_replace(skb, LINK_HEADER + header + at->checksum, 0, by, at->flags);
	h += header + (at->checksum & TRANSPORT_CHECKSUM);
	if (h + sizeof(*check) > end)
		return -1;
	check = (__u16 *)h;
	/* UDP without a checksum. */
	if (at->flags & BPF_F_MARK_MANGLED_0 && !*check)
		return 0;
	if (how == CHECKSUM_PARTIAL)
		*check = add_sum(*check, by);
	else
		*check = ~add_sum(~*check, by);
	if (at->flags & BPF_F_MARK_MANGLED_0 && !*check)
		*check = 0xffff;
	return 0;
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

#ifndef RAW
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

/* What the headers of a message in the tunnel say. */
struct message {
	struct header header; /* the cookie in host byte order */
	__u32 outer, inner; /* lengths of the headers around the packet, and of the packet */
	__u32 port;
	__u32 family, outer_class, class;
	__u32 segment; /* of its super-packet, from 0 */
	__u32 headers; /* before the payload of TCP, if size is not 0 */
	__u64 to[2], from[2], host[2]; /* the destination of the tunnel, the source and the destination of the packet */
};

/* Reads the TCP header of a super-packet, or of what was one. */
static __always_inline void read_segment(struct __sk_buff *skb, struct message *m)
{
	__u8 room[LONGEST_VIEW] __attribute__((aligned(8)));
	const __u8 *h = view(skb, LINK_HEADER + m->outer + m->headers, TCP_HEADER, room);
	__u32 sequence;

	if (!h)
		return;
	sequence = ntohl(*(const __u32 *)(h + TCP_SEQUENCE)) - ntohl(m->header.sequence);
	m->segment = sequence / (m->header.size ? ntohs(m->header.size) : 1);
	m->headers += (h[TCP_OFFSET] >> 4) * 4;
}

/*
 * Reads the headers of a message, false for a packet that is none: that is the kernel's, as fragments
 * are. An inner length of 0 means that the packet in it is malformed. Global, so that the verifier
 * checks it once.
 */
__attribute__((noinline)) int read_message(struct __sk_buff *skb, struct message *m)
{
	const __u8 *start = (const __u8 *)(long)skb->data, *h = start + LINK_HEADER, *end = (const __u8 *)(long)skb->data_end;
	__u32 length, udp; /* of the message with its IP header, and without */

	if (!m)
		return 0;
	m->inner = 0;
	if (skb->protocol == htons(ETHERTYPE_IPV4)) {
		if (h + OUTER_IPV4 > end || h[0] != 0x45 || h[9] != PROTO_UDP || number(h + 6) & IPV4_DF_MASK)
			return 0;
		m->outer_class = h[1];
		length = ip_length(h, 0);
		load_mapped(m->to, h + 16);
		m->outer = OUTER_IPV4;
		h += IPV4_HEADER;
	} else if (skb->protocol == htons(ETHERTYPE_IPV6)) {
		if (h + OUTER_IPV6 > end || h[0] >> 4 != 6 || h[IPV6_NEXT] != PROTO_UDP)
			return 0;
		m->outer_class = number(h) >> 4 & 0xff;
		length = ip_length(h, 1);
		load_pair(m->to, h + IPV6_DESTINATION);
		m->outer = OUTER_IPV6;
		h += IPV6_HEADER;
	} else {
		return 0;
	}
	if (h[UDP_HEADER] != OPEN)
		return 0;
	m->port = number(h + 2);
	udp = number(h + 4);
	h += UDP_HEADER;
	__builtin_memcpy(&m->header, h, sizeof(m->header));
	m->header.cookie = ntohll(m->header.cookie);
	h += sizeof(struct header);
	m->segment = 0;
	if (h + IPV4_HEADER > end)
		return 1;
	if (h[0] == 0x45) {
		m->family = AF_INET;
		m->class = h[1];
		load_mapped(m->from, h + 12);
		load_mapped(m->host, h + 16);
		m->inner = ip_length(h, 0);
		m->headers = IPV4_HEADER;
		if (m->header.size && h[9] == PROTO_TCP)
			read_segment(skb, m);
	} else if (h[0] >> 4 == 6 && h + IPV6_HEADER <= end) {
		m->family = AF_INET6;
		m->class = number(h) >> 4 & 0xff;
		load_pair(m->from, h + IPV6_SOURCE);
		load_pair(m->host, h + IPV6_DESTINATION);
		m->inner = ip_length(h, 1);
		m->headers = IPV6_HEADER;
		if (m->header.size && h[IPV6_NEXT] == PROTO_TCP)
			read_segment(skb, m);
	} else {
		return 1;
	}
	/* The packet is in the payload of UDP, that is in the message, and that in the frame, each of which may be longer. The
	 * length of a super-packet is that of all segments, which may be more than the field holds. */
	if (!skb->gso_size && (OVER_UDP + m->inner > udp || m->outer - OVER_UDP + udp > length || LINK_HEADER + length > skb->len))
		m->inner = 0;
	return 1;
}

/*
 * Marks a packet as its tunnel was (RFC 6040, section 4.2). Only by helpers: a program that writes to packets itself has the
 * kernel look at each packet of TCP first, because the sender keeps a clone of it.
 */
static __always_inline int mark(struct __sk_buff *skb, const struct message *m)
{
	const __u8 *h = (const __u8 *)(long)skb->data + LINK_HEADER;
	__u8 class = m->class | ECN_CE;

	if (m->family == AF_INET)
		return bpf_l3_csum_replace(skb, LINK_HEADER + IPV4_CHECK, htons(0x4500 | m->class), htons(0x4500 | class), sizeof(__u16)) ||
		       bpf_skb_store_bytes(skb, LINK_HEADER + 1, &class, sizeof(class), 0);
	if (h + IPV6_HEADER > (const __u8 *)(long)skb->data_end)
		return -1;
	class = h[1] | ECN_CE << 4;
	return bpf_skb_store_bytes(skb, LINK_HEADER + 1, &class, sizeof(class), BPF_F_RECOMPUTE_CSUM);
}

/* Counts packets that have arrived over a path, the first of which is the sender's count-th. */
static __always_inline void count_arrived(struct arrived *a, __u32 count, __u32 segments, __u32 bytes)
{
	add_count(&a->count, segments, bytes);
	for (__u32 i = 0; i < SCHED_TRIES; i++) {
		__u64 before = *(volatile __u64 *)&a->next, after = (__u64)count + segments;

		if (before)
			after = before + (__s32)(count + segments - (__u32)before);
		else
			a->first = count;
		if ((__s64)(after - before) <= 0 || __sync_val_compare_and_swap(&a->next, before, after) == before)
			break;
	}
}

/* All ones if a copied packet with this number has not arrived yet: what was seen there is neither the same nor a later one. */
static __always_inline __s64 see(__u32 *seen, __u32 number)
{
	__u32 before = *(volatile __u32 *)seen;
	__s64 later = sched_negative(-(__s64)(__s32)(number - before));
	/* Another processor may have the same packet. */
	__s64 other = __sync_val_compare_and_swap(seen, before, before + ((number - before) & later)) ^ before;

	return later & ~sched_negative(-other);
}

SEC("tc")
int join(struct __sk_buff *skb)
{
	__u32 linear = LINK_HEADER + OUTER_IPV6 + IPV6_HEADER;
	const struct setup *set = read_setup();
	__u32 segments = 1, number;
	__s64 fresh = -1;
	struct message m = {};
	struct receiver *r;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u16 type;

	if (!is_for_host(skb))
		return TC_NEXT;
	if (!set || !set->port)
		return TC_NEXT;
	if (skb->protocol == htons(ETHERTYPE_IPV4))
		linear = LINK_HEADER + OUTER_IPV4 + IPV6_HEADER;
	if (unlikely(skb->data_end - skb->data < linear))
		bpf_skb_pull_data(skb, skb->len < linear ? skb->len : linear);
	if (!read_message(skb, &m))
		return TC_NEXT;
	/* The port is not compared: paths over members have others. */
	r = bpf_map_lookup_elem(&receivers, &m.header.cookie);
	if (!r) {
		/* What this host only forwards may be for another gateway. */
		__u32 outside = skb->protocol == htons(ETHERTYPE_IPV4) ? AF_INET : AF_INET6;

		return m.port == set->port && owner_of(set, m.to, outside) == OWN ? refuse(REFUSED_COOKIE) : TC_NEXT;
	}
	if (!m.inner)
		return refuse(REFUSED_MALFORMED);
	if (owner_of(set, m.from, m.family) != r->peer + 1)
		return refuse(REFUSED_SOURCE);
	if (is_of_no_host(m.host, m.family) || !may_reach(r->peer, m.host))
		return refuse(REFUSED_DESTINATION);
	if (trim(skb, LINK_HEADER + m.outer, m.inner))
		return refuse(REFUSED_MALFORMED);
	m.headers += LINK_HEADER + m.outer;
	if (skb->gso_size && skb->len > m.headers)
		segments = segments_of(skb, skb->len - m.headers);

	count_arrived(&r->path[m.header.path & OPEN_PATH], ntohl(m.header.count) + m.segment, segments, skb->len - LINK_HEADER);
	number = ntohl(m.header.number) + m.segment;
	if (m.header.path & OPEN_COPIED) {
		/* A super-packet is delivered if any of its segments has to be. */
		fresh = 0;
		for (__u32 i = 0; i < MAX_SEGMENTS; i++) {
			if (i >= segments)
				break;
			fresh |= see(&r->seen[(number + i) & (SEEN - 1)], number + i);
		}
	}
	if (!fresh)
		return refuse(REFUSED_DUPLICATE);
	if ((m.outer_class & ECN_MASK) == ECN_CE && !(m.class & ECN_MASK))
		return refuse(REFUSED_CONGESTION);

	type = htons(ETHERTYPE_IPV4);
	if (m.family == AF_INET6)
		type = htons(ETHERTYPE_IPV6);
	if (type != skb->protocol)
		flags |= m.family == AF_INET ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 : BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -(__s32)m.outer, BPF_ADJ_ROOM_MAC, flags))
		return refuse(REFUSED_MALFORMED);
	if (LINK_HEADER > 0 && flags != BPF_F_ADJ_ROOM_FIXED_GSO && bpf_skb_store_bytes(skb, ETHERNET_TYPE, &type, sizeof(type), 0))
		return refuse(REFUSED_MALFORMED);
	if ((m.outer_class & ECN_MASK) == ECN_CE && mark(skb, &m))
		return refuse(REFUSED_MALFORMED);
	return deliver(skb);
}

/* What an ICMP error says of the packet that it is about. */
struct quoted {
	struct session_key key;
	__u8 source[16];
	__u32 address, check; /* offsets of the source and of the header's checksum in the error */
	__u32 transport;      /* the same of the checksum of TCP, UDP or ICMPv6; 0: there is none, or it is not quoted */
};

/*
 * Reads the packet in an ICMP error to this host; 0 if it has none of a session. Global for the same
 * reason.
 */
__attribute__((noinline)) int read_quoted(struct __sk_buff *skb, const struct packet *p, struct quoted *q)
{
	__u32 at, checksum;
	__u8 h[IPV6_HEADER + ICMP_HEADER], type;

	if (!p || !q || p->fragment || !is_plain(p) || bpf_skb_load_bytes(skb, p->transport, &type, sizeof(type)))
		return 0;
	at = p->transport + ICMP_HEADER;
	q->key.family = p->family;
	if (p->family == AF_INET) {
		if (type != ICMP_UNREACHABLE && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETER)
			return 0;
		if (bpf_skb_load_bytes(skb, at, h, IPV4_HEADER + ICMP_HEADER) || h[0] != 0x45 || number(h + 6) & IPV4_DF_MASK)
			return 0;
		q->key.protocol = h[9];
		load_mapped((__u64 *)q->source, h + 12);
		load_mapped((__u64 *)q->key.destination, h + 16);
		q->address = at + 12;
		q->check = at + IPV4_CHECK;
		at = IPV4_HEADER;
	} else {
		if (type < 1 || type > 4)
			return 0;
		if (bpf_skb_load_bytes(skb, at, h, IPV6_HEADER + ICMP_HEADER) || h[0] >> 4 != 6)
			return 0;
		q->key.protocol = h[IPV6_NEXT];
		load_pair((__u64 *)q->source, h + IPV6_SOURCE);
		load_pair((__u64 *)q->key.destination, h + IPV6_DESTINATION);
		q->address = at + IPV6_SOURCE;
		at = IPV6_HEADER;
	}
	checksum = at + checksum_of(q->key.protocol);
	q->transport = p->transport + ICMP_HEADER + checksum;
	checksum += sizeof(__u16);
	/* Routers need not quote as much. */
	if (!checksum_of(q->key.protocol) || ip_length(h, p->family == AF_INET6) < checksum || skb->len < q->transport + sizeof(__u16))
		q->transport = 0;
	if (q->key.protocol == PROTO_TCP || q->key.protocol == PROTO_UDP) {
		q->key.source_port = number(h + at);
		q->key.destination_port = number(h + at + 2);
		return 1;
	}
	if (q->key.protocol != (p->family == AF_INET ? PROTO_ICMP : PROTO_ICMPV6) || !is_echo(p->family, h[at]))
		return 0;
	q->key.source_port = number(h + at + 4);
	q->key.destination_port = h[at];
	return 1;
}

/* Changes the checksum of the transport in an ICMP error by that of an address (RFC 5508, REQ-4), and that of the error by it. */
static __always_inline int restore_quoted(struct __sk_buff *skb, const struct packet *p, const struct quoted *q, __u16 by)
{
	int udp = q->key.protocol == PROTO_UDP;
	__u16 check, now;

	if (!q->transport)
		return 0;
	if (bpf_skb_load_bytes(skb, q->transport, &check, sizeof(check)))
		return -1;
	/* UDP without a checksum. */
	if (udp && !check)
		return 0;
	now = ~add_sum(~check, by);
	if (udp && !now)
		now = 0xffff;
	return bpf_skb_store_bytes(skb, q->transport, &now, sizeof(now), 0) ||
	       bpf_l4_csum_replace(skb, p->transport + ICMP_CHECK, check, now, sizeof(now));
}

/*
 * Sends an ICMP error about a packet of a session to the host that has sent the packet. Global for the
 * same reason.
 */
__attribute__((noinline)) int restore_error(struct __sk_buff *skb, const struct packet *p)
{
	struct quoted q = {};
	struct place at = {};
	const struct setup *set = read_setup();
	const struct session *s;
	__u16 by;

	if (!p || !set || !read_quoted(skb, p, &q))
		return TC_NEXT;
	if (*(__u64 *)q.source != p->destination[0] || *(__u64 *)(q.source + 8) != p->destination[1] ||
	    owner_of(set, p->destination, p->family) != OWN)
		return TC_NEXT;
	s = session_with(set, &q.key);
	if (!s)
		return TC_NEXT;
	by = difference((const __u32 *)p->destination, (const __u32 *)s->source, p->family);
	if (restore_quoted(skb, p, &q, by))
		return TC_DROP;
	at.family = p->family;
	if (p->family == AF_INET) {
		__u16 check;

		/* The quoted header sums to the same as before. */
		if (bpf_skb_load_bytes(skb, q.check, &check, sizeof(check)))
			return TC_DROP;
		check = ~add_sum(~check, by);
		if (bpf_skb_store_bytes(skb, q.check, &check, sizeof(check), 0) || bpf_skb_store_bytes(skb, q.address, s->source + 12, 4, 0))
			return TC_DROP;
		at.address = LINK_HEADER + 16;
		return set_address(skb, &at, p->destination, s->source) ? TC_DROP : deliver(skb);
	}
	at.checksum = ICMP_CHECK;
	if (bpf_skb_store_bytes(skb, q.address, s->source, sizeof(s->source), 0) ||
	    bpf_l4_csum_replace(skb, p->transport + at.checksum, 0, by, 0))
		return TC_DROP;
	at.address = LINK_HEADER + IPV6_DESTINATION;
	at.flags = BPF_F_PSEUDO_HDR;
	return set_address(skb, &at, p->destination, s->source) ? TC_DROP : deliver(skb);
}

/* Counts a packet of a peer's path as on the wire: as many as were sent arrive, or are lost. */
static __always_inline void count_packet(const struct __sk_buff *skb, __u32 origin, __u32 headers)
{
	__u32 peer = origin & ORIGIN_PEER, path = origin >> ORIGIN_PATH, segments = 1, size = skb->len - LINK_HEADER;
	struct counted *t = bpf_map_lookup_elem(&arrivals, &peer);

	if (!t || path >= SCHED_PATHS)
		return;
	if (skb->gso_size && skb->len > headers) {
		segments = segments_of(skb, skb->len - headers);
		size += (segments - 1) * (headers - LINK_HEADER);
	}
	t->path[SCHED_PATH(path)].packets += segments;
	t->path[SCHED_PATH(path)].bytes += size;
}

SEC("tc")
int restore(struct __sk_buff *skb)
{
	__u32 origin, owner, why;
	const struct setup *set = read_setup();
	struct session_key key = {};
	struct place at = {};
	struct packet p = {};
	struct session *s;

	if (!is_for_host(skb))
		return TC_NEXT;
	if (!pull_headers(skb, &p) || !set)
		return TC_NEXT;
	origin = origin_of(set, p.source, p.family);
	/* Routers on the way send errors. */
	if (origin == NOBODY && !is_icmp(&p))
		return TC_NEXT;
	why = read_headers(skb, &p);
	if (origin == NOBODY)
		return why == LEFTS ? restore_error(skb, &p) : TC_NEXT;
	owner = owner_of(set, p.destination, p.family);
	if (why != LEFTS)
		return owner ? TC_NEXT : refuse(why == LEFT_MALFORMED ? REFUSED_MALFORMED : REFUSED_SESSION);
	if (owner)
		return is_icmp(&p) ? restore_error(skb, &p) : TC_NEXT;
	count_packet(skb, origin, p.headers);
	/* What the peer's gateway itself sends to hosts comes in the tunnel. */
	if (session_of(skb, &p, &key) != LEFTS)
		return refuse(REFUSED_SESSION);
	key.peer = (origin & ORIGIN_PEER) + 1;
	s = session_with(set, &key);
	if (!s || s->state != SESSION_OPEN)
		return refuse(REFUSED_SESSION);
	set_used(s);
	set_checksum(&at, &p);
	at.address = LINK_HEADER + (p.family == AF_INET ? 12 : IPV6_SOURCE);
	return set_address(skb, &at, p.source, s->source) ? TC_DROP : deliver(skb);
}

/* The number of the path that packets from a peer arrive over at an interface, NULL if it has none there. */
static __always_inline const __u32 *path_of(const struct __sk_buff *skb, __u32 owner)
{
	struct line at = {.ifindex = skb->ifindex, .peer = owner - 1};

	return owner && owner <= MAX_PEERS ? bpf_map_lookup_elem(&lines, &at) : 0;
}

/* Marks an ICMP error of a router about a packet that was sent to a peer. Global for the same reason. */
__attribute__((noinline)) int mark_error(struct __sk_buff *skb, const struct packet *p)
{
	const struct setup *set = read_setup();
	struct quoted q = {};

	if (!p || !set || !read_quoted(skb, p, &q))
		return TC_NEXT;
	if (*(__u64 *)q.source != p->destination[0] || *(__u64 *)(q.source + 8) != p->destination[1] ||
	    !path_of(skb, owner_of(set, (const __u64 *)q.key.destination, p->family)))
		return TC_NEXT;
	return deliver(skb);
}

/* Counts and marks packets of peers with mode plain. */
SEC("tc")
int count(struct __sk_buff *skb)
{
	const struct setup *set = read_setup();
	struct packet p = {};
	const __u32 *path;
	__u32 owner;
	int own;

	if (!is_for_host(skb) || !pull_headers(skb, &p) || !set)
		return TC_NEXT;
	owner = owner_of(set, p.source, p.family);
	path = path_of(skb, owner);
	/* Others' packets are of interest only if they are errors. */
	if (!path && !is_icmp(&p))
		return TC_NEXT;
	if (read_headers(skb, &p) != LEFTS)
		return TC_NEXT;
	if (!path)
		return mark_error(skb, &p);
	/* A peer's gateway may have addresses of its prefixes: its messages are not packets of hosts. */
	own = owner_of(set, p.destination, p.family) == OWN;
	if (own && p.protocol == PROTO_UDP && p.destination_port == set->port)
		return TC_NEXT;
	/* Neighbors on the line are discovered by what no router forwards. */
	if (!own && !is_of_no_host(p.destination, p.family) && !may_reach(owner - 1, p.destination))
		return refuse(REFUSED_DESTINATION);
	count_packet(skb, (owner - 1) | *path << ORIGIN_PATH, p.headers);
	return deliver(skb);
}

char _license[] SEC("license") = "Dual BSD/GPL";
