// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counts packets and bytes per flow and SID where a network interface receives and sends.
 *
 * Needs Linux 6.6 to be attached with tcx, Linux 5.14 with cls_bpf. It uses no types of the kernel's, so a kernel
 * without BTF runs it too. It neither changes packets nor decides about them.
 */
#include "bpf.h"
#include "packet.h"

enum {
	RECEIVED,
	SENT,
};

/* How long a VLAN tag is that is kept beside the packet. */
#define TAG 4

/*
 * A flow has a slot as long as user space knows it. The counters and the owners of slots lie in memory that user space
 * has mapped, so that reading them takes no system call. Slots are handed out here and given back by user space alone,
 * when no program can have a count for the former owner under way.
 */

struct count {
	__u64 packets;
	__u64 bytes;
};

/* Whose slot it is. User space takes the key for whole when mark is what mark_of makes of it: that needs no order among
 * the stores, which on some processors has a price. */
struct owner {
	struct flow_key key;
	__u64 mark;
};

/* User space sets the sizes of these four. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct owner);
} owners SEC(".maps");

/* The slot of each flow, and above it half of the key's mark. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct flow_key);
	__type(value, __u64);
} slots SEC(".maps");

/* Slots that nobody has. The last to come back is the first to go, which keeps those in use together. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 32768);
	__type(value, __u32);
} spare SEC(".maps");

/* All packets there were: those in flows under REASON_COUNTED, the others by why they are not. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, enum reason);
	__type(value, struct count);
} reasons SEC(".maps");

/* How many packets the skb is on the wire, and in how many bytes from the link layer's header on. */
static __always_inline void size_on_wire(struct __sk_buff *skb, int direction, __u32 headers, __u64 *packets, __u64 *bytes)
{
	__u32 segments = skb->gso_segs;

	/* A NIC that joins segments itself may leave their number out. */
	if (!segments && skb->gso_size && headers && skb->len > headers)
		segments = (skb->len - headers + skb->gso_size - 1) / skb->gso_size;
	if (!segments)
		segments = 1;
	*packets = segments;
	if (direction == SENT)
		/* The kernel has added the headers of every segment. */
		*bytes = skb->wire_len;
	else
		*bytes = skb->len + (__u64)(segments - 1) * headers;
	if (skb->vlan_present)
		*bytes += (__u64)segments * TAG;
}

/* A number that hardly any other key has, and no key that is only partly written. Never 0. */
static __always_inline __u64 mark_of(const struct flow_key *key)
{
	const __u64 *words = (const __u64 *)key;
	__u64 mark = 1;

#pragma unroll
	for (int i = 0; i < (int)(sizeof(*key) / sizeof(*words)); i++)
		mark = mark * 0x9e3779b97f4a7c15ULL + words[i];
	return mark ? mark : 1;
}

#define NO_SLOT (~0U)

/*
 * The slot of a flow that has one. The kernel may use the entry of a flow that was removed for another one while it is
 * looked at here: half of the mark tells. The entry is read in one piece.
 */
static __always_inline __u32 find_slot(const struct flow_key *key, __u64 mark)
{
	const volatile __u64 *entry = bpf_map_lookup_elem(&slots, key);
	__u64 value;

	if (!entry)
		return NO_SLOT;
	value = *entry;
	return value >> 32 == mark >> 32 ? (__u32)value : NO_SLOT;
}

/* Gives a flow a slot. */
static __attribute__((noinline)) __u32 take_slot(const struct flow_key *key, __u64 mark)
{
	struct owner *owner;
	__u32 slot = 0;
	__u64 entry;

	/* Another CPU may have taken the last one for the same flow. */
	if (bpf_map_pop_elem(&spare, &slot))
		return find_slot(key, mark);
	entry = slot | mark >> 32 << 32;
	if (bpf_map_update_elem(&slots, key, &entry, BPF_NOEXIST)) {
		/* It was faster. */
		bpf_map_push_elem(&spare, &slot, 0);
		return find_slot(key, mark);
	}
	owner = bpf_map_lookup_elem(&owners, &slot);
	if (owner) {
		owner->key = *key;
		owner->mark = mark;
	}
	return slot;
}

static __always_inline enum reason count_flow(const struct flow_key *key, __u64 packets, __u64 bytes)
{
	__u64 mark = mark_of(key);
	__u32 slot = find_slot(key, mark);
	struct count *count;

	if (unlikely(slot == NO_SLOT))
		slot = take_slot(key, mark);
	count = bpf_map_lookup_elem(&counts, &slot);
	if (!count)
		return REASON_FULL;
	/* A flow is mostly on one CPU at a time: adding at once costs less than reading a counter for each of them. */
	__sync_fetch_and_add(&count->packets, packets);
	__sync_fetch_and_add(&count->bytes, bytes);
	return REASON_COUNTED;
}

static __always_inline int count(struct __sk_buff *skb, int direction, int raw)
{
	struct flow_key key = {};
	struct count *all;
	__u64 packets, bytes;
	__u32 headers = 0;
	__u32 reason;

	reason = find_flow(skb, raw, &key, &headers);
	size_on_wire(skb, direction, headers, &packets, &bytes);
	if (reason == REASON_COUNTED) {
		key.ifindex = skb->ifindex;
		key.direction = direction;
		reason = count_flow(&key, packets, bytes);
	}
	all = bpf_map_lookup_elem(&reasons, &reason);
	if (all) {
		all->packets += packets;
		all->bytes += bytes;
	}
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

/* The same for links whose packets begin with IP, such as tun. */
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
