// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counts packets and bytes per flow and SID where a network interface receives and sends.
 *
 * Needs Linux 6.6 to be attached with tcx, Linux 5.14 with cls_bpf. It uses no types of the
 * kernel's, so a kernel without BTF runs it too. It neither changes packets nor decides about them.
 */
#include "bpf.h"
#include "packet.h"

enum {
	RECEIVED,
	SENT,
};

/* Length of a VLAN tag that is kept in the skb's metadata. */
#define TAG 4

/*
 * Each known flow owns a slot. User space maps the slots, so that reading them takes no system
 * call. Slots are allocated here and freed by user space only, once no program can still be
 * counting for the previous owner.
 */

struct count {
	__u64 packets;
	__u64 bytes;
};

/* The owner of a slot. User space considers the key complete when mark equals mark_of(owner), so
 * that the stores need no memory barrier. When user space removes a flow, it sets removed in the
 * key. */
struct owner {
	struct flow_key key;
	__u32 mark;
} __attribute__((aligned(8)));

/* Two adjacent cache lines, which are prefetched together; the owner is in the first. */
struct slot {
	struct owner owner;
	struct count count;
	__u64 unused[6];
};

/* User space sets the sizes of these three. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* Slot number of each flow; the mark of its key is in the upper half. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct flow_key);
	__type(value, __u64);
} places SEC(".maps");

/* Free slots, last in first out, which keeps the slots in use together. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 32768);
	__type(value, __u32);
} spare SEC(".maps");

/*
 * A hint which slot a packet's flow may own. A wrong hint only sends the packet through the slow
 * path. The table is at most 32 kB: the kernel allocates that much with kmalloc, which huge
 * pages map, and more with vmalloc, whose 4 kB pages miss the TLB more often.
 */
#define HINTS_IN_ROW 16
#define HINT_ROWS 500
struct hint_row {
	__u32 slots[HINTS_IN_ROW];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HINT_ROWS);
	__type(key, __u32);
	__type(value, struct hint_row);
} hints SEC(".maps");

/* Packets that belong to no flow, by reason. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, enum reason);
	__type(value, struct count);
} reasons SEC(".maps");

/* Number of packets on the wire of an skb with a payload. */
static __attribute__((noinline)) __u32 packets_of(struct __sk_buff *skb, __u32 headers)
{
	__u32 segments = skb->gso_segs;

	/* With LRO the NIC may not report the number of segments. */
	if (!segments && skb->gso_size && headers && skb->len > headers)
		segments = segments_of(skb, skb->len - headers);
	return segments ? segments : 1;
}

/* Packets of the skb on the wire, and their bytes from the link-layer header on. */
static __always_inline struct count size_on_wire(struct __sk_buff *skb, int direction, int tagged, __u32 headers)
{
	struct count size = {.packets = 1};

	/* Without a payload it is one packet; gso_segs is in another cache line. */
	if (skb->len != headers)
		size.packets = packets_of(skb, headers);
	if (direction == SENT)
		/* skb->wire_len includes the headers of every segment. */
		size.bytes = skb->wire_len;
	else
		size.bytes = skb->len + (size.packets - 1) * headers;
	if (tagged)
		size.bytes += size.packets * TAG;
	return size;
}

/* A flow is mostly on one CPU at a time: an atomic add costs less than summing per-CPU counters. */
static __always_inline void add(struct count *to, struct count size)
{
	__sync_fetch_and_add(&to->packets, size.packets);
	__sync_fetch_and_add(&to->bytes, size.bytes);
}

/* 2^64 divided by the golden ratio, for multiplicative hashing. */
#define SPREAD 0x9e3779b97f4a7c15ULL
#define OWNER_WORDS (sizeof(struct owner) / sizeof(__u64))

/* A hash of the key that a different or a partly written key is unlikely to have. Never 0. */
static __always_inline __u32 mark_of(const struct owner *owner)
{
	const __u64 *words = (const __u64 *)owner;
	__u64 mark = 0;

#pragma unroll
	for (unsigned int i = 0; i < OWNER_WORDS - 1; i++)
		mark = (mark + words[i]) * SPREAD;
	mark = (mark + (__u32)words[OWNER_WORDS - 1]) * SPREAD >> 32;
	return mark ? mark : 1;
}

/* Index of a flow's hint: a cheap hash of its addresses, interface and ports. */
static __always_inline __u32 hint_of(const __u64 *addresses, __u64 rest)
{
	__u64 sum = (addresses[0] ^ addresses[1] ^ addresses[2] ^ addresses[3]) + rest;

	return (sum * SPREAD >> 32) * (HINT_ROWS * HINTS_IN_ROW) >> 32;
}

static __always_inline int is_owner(const struct owner *owner, const struct owner *flow)
{
	const __u64 *a = (const __u64 *)owner, *b = (const __u64 *)flow;
	__u64 differ = 0;

#pragma unroll
	for (unsigned int i = 0; i < OWNER_WORDS; i++)
		differ |= a[i] ^ b[i];
	return !differ;
}

#define NO_SLOT (~0U)

/*
 * The slot of a flow that has one. The kernel may reuse the entry of a removed flow while
 * it is read here; the mark detects that. The entry is copied at once.
 */
static __always_inline __u32 find_slot(const struct owner *flow)
{
	const volatile __u64 *entry = bpf_map_lookup_elem(&places, &flow->key);
	__u64 value;

	if (!entry)
		return NO_SLOT;
	value = *entry;
	return value >> 32 == flow->mark ? (__u32)value : NO_SLOT;
}

/* The slot of a flow; allocates one if it has none. */
static __attribute__((noinline)) __u32 take_slot(const struct owner *flow)
{
	__u32 number = find_slot(flow);
	struct slot *slot;
	__u64 entry;

	if (number != NO_SLOT)
		return number;
	/* Another CPU may have allocated the last free slot for the same flow. */
	if (bpf_map_pop_elem(&spare, &number))
		return find_slot(flow);
	entry = number | (__u64)flow->mark << 32;
	if (bpf_map_update_elem(&places, &flow->key, &entry, BPF_NOEXIST)) {
		/* It was first. */
		bpf_map_push_elem(&spare, &number, 0);
		return find_slot(flow);
	}
	slot = bpf_map_lookup_elem(&slots, &number);
	if (slot)
		slot->owner = *flow;
	return number;
}

static __always_inline enum reason count_flow(struct owner *flow, struct count size)
{
	const __u64 *words = (const __u64 *)flow;
	__u32 number, hint, row;
	struct hint_row *hinted;
	struct slot *slot;

	flow->mark = mark_of(flow);
	hint = hint_of(words, words[6]);
	row = hint / HINTS_IN_ROW;
	hinted = bpf_map_lookup_elem(&hints, &row);
	if (!hinted)
		return REASON_FULL;
	number = hinted->slots[hint % HINTS_IN_ROW];
	slot = bpf_map_lookup_elem(&slots, &number);
	if (!slot || !is_owner(&slot->owner, flow)) {
		number = take_slot(flow);
		slot = bpf_map_lookup_elem(&slots, &number);
		if (!slot)
			return REASON_FULL;
		hinted->slots[hint % HINTS_IN_ROW] = number;
	}
	add(&slot->count, size);
	return REASON_COUNTED;
}

/* Counts any packet. */
static __attribute__((noinline)) int count_any(struct __sk_buff *skb, int direction, int raw)
{
	struct owner flow = {};
	struct count size, *all;
	__u32 headers = 0;
	__u32 reason;

	reason = find_flow(skb, raw, &flow.key, &headers);
	size = size_on_wire(skb, direction, skb->vlan_present, headers);
	if (reason == REASON_COUNTED) {
		flow.key.ifindex = skb->ifindex;
		flow.key.direction = direction;
		reason = count_flow(&flow, size);
	}
	if (reason == REASON_COUNTED)
		return 0;
	all = bpf_map_lookup_elem(&reasons, &reason);
	if (all) {
		all->packets += size.packets;
		all->bytes += size.bytes;
	}
	return 0;
}

/*
 * Fast path: counts a packet of a flow that has a slot, if it is TCP over IPv6, plain or
 * encapsulated. Returns nonzero when it did.
 *
 * Between two packets code and data are evicted from the caches, so the cost is the number of
 * cache lines touched. That is why it compares with the slot's owner in place, where find_flow
 * copies, and handles only this case.
 */
static __always_inline int count_known(struct __sk_buff *skb, int direction, int raw)
{
	const __u8 *h = (const __u8 *)(long)skb->data;
	const __u8 *end = (const __u8 *)(long)skb->data_end;
	__u32 headers = raw ? 0 : ETHERNET_HEADER;
	__u32 length, hint, number, row;
	const __u64 *addresses, *owner;
	struct hint_row *hinted;
	__u64 sid[2] = {}, rest;
	struct slot *slot;

	if (h + headers + IPV6_HEADER + TCP_HEADER > end || skb->vlan_present)
		return 0;
	if ((raw ? (__u16)skb->protocol : *(const __u16 *)(h + ETHERNET_TYPE)) != htons(ETHERTYPE_IPV6))
		return 0;
	h += headers;
	headers += IPV6_HEADER;
	if (h[0] >> 4 != 6)
		return 0;
	if (unlikely(h[IPV6_NEXT] != PROTO_TCP)) {
		length = IPV6_HEADER;
		if (h[IPV6_NEXT] == PROTO_ROUTING) {
			if (h[IPV6_HEADER] != PROTO_IPV6)
				return 0;
			length += ((__u32)h[IPV6_HEADER + 1] + 1) * 8;
		} else if (h[IPV6_NEXT] != PROTO_IPV6) {
			return 0;
		}
		copy((__u8 *)sid, h + IPV6_DESTINATION, sizeof(sid));
		h += length;
		headers += length;
		if (h + IPV6_HEADER + TCP_HEADER > end || h[0] >> 4 != 6 || h[IPV6_NEXT] != PROTO_TCP)
			return 0;
	}
	headers += (h[IPV6_HEADER + TCP_OFFSET] >> 4) * 4;

	addresses = (const __u64 *)(h + IPV6_SOURCE);
	/* Layout of the key: the ports, then the interface. */
	rest = ntohl(*(const __u32 *)(h + IPV6_HEADER)) | (__u64)skb->ifindex << 32;
	hint = hint_of(addresses, rest);
	row = hint / HINTS_IN_ROW;
	hinted = bpf_map_lookup_elem(&hints, &row);
	if (!hinted)
		return 0;
	number = hinted->slots[hint % HINTS_IN_ROW];
	slot = bpf_map_lookup_elem(&slots, &number);
	if (!slot)
		return 0;
	/* Prefetch: the atomic add below waits until all earlier instructions have retired. */
	(void)*(volatile __u64 *)&slot->count.packets;
	owner = (const __u64 *)&slot->owner;
	if ((owner[0] ^ addresses[0]) | (owner[1] ^ addresses[1]) | (owner[2] ^ addresses[2]) | (owner[3] ^ addresses[3]) |
	    (owner[4] ^ sid[0]) | (owner[5] ^ sid[1]) | (owner[6] ^ rest))
		return 0;
	/* Family, protocol and direction, with removed being 0. */
	if ((__u32)owner[7] != htonl(6 << 24 | PROTO_TCP << 16 | direction << 8))
		return 0;
	add(&slot->count, size_on_wire(skb, direction, 0, headers));
	return 1;
}

static __always_inline int count(struct __sk_buff *skb, int direction, int raw)
{
	if (!count_known(skb, direction, raw))
		count_any(skb, direction, raw);
	return TC_NEXT;
}

SEC("tc")
int received(struct __sk_buff *skb)
{
	return count(skb, RECEIVED, 0);
}

SEC("tc")
int sent(struct __sk_buff *skb)
{
	return count(skb, SENT, 0);
}

/* The same for links without a link-layer header, such as tun. */
SEC("tc")
int received_raw(struct __sk_buff *skb)
{
	return count(skb, RECEIVED, 1);
}

SEC("tc")
int sent_raw(struct __sk_buff *skb)
{
	return count(skb, SENT, 1);
}

char _license[] SEC("license") = "Dual BSD/GPL";
