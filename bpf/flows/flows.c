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

/* What has been counted. born is the time at which the entry was made, on the one CPU that made it, 0 on others: it
 * tells user space an entry from a later one of the same flow. */
struct flow_count {
	__u64 packets;
	__u64 bytes;
	__u64 born;
};

struct reason_count {
	__u64 packets;
	__u64 bytes;
};

/* The flows. User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct flow_count);
} flows SEC(".maps");

/* All packets there were: those in flows under REASON_COUNTED, the others by why they are not. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, enum reason);
	__type(value, struct reason_count);
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

static __always_inline enum reason count_flow(struct flow_key *key, __u64 packets, __u64 bytes)
{
	struct flow_count *count = bpf_map_lookup_elem(&flows, key);
	struct flow_count first = {};

	if (unlikely(!count)) {
		first.packets = packets;
		first.bytes = bytes;
		first.born = bpf_ktime_get_ns();
		if (!bpf_map_update_elem(&flows, key, &first, BPF_NOEXIST))
			return REASON_COUNTED;
		/* Another CPU has made it meanwhile, or there is no room. */
		count = bpf_map_lookup_elem(&flows, key);
		if (!count)
			return REASON_FULL;
	}
	count->packets += packets;
	count->bytes += bytes;
	return REASON_COUNTED;
}

static __always_inline int count(struct __sk_buff *skb, int direction, int raw)
{
	struct flow_key key = {};
	struct reason_count *all;
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
