/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the programs of the open plane share with user space: the tables, and how packets are counted in them.
 * LINK_HEADER, the bytes before the IP header, is of the program that includes this.
 */
#ifndef TABANE_OPEN_TABLES_H
#define TABANE_OPEN_TABLES_H

#include "packet.h"
#include "sched.h"

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

static __always_inline const struct setup *read_setup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&setups, &zero);
}

#endif
