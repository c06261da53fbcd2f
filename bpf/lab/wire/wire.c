// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Makes the frames that a veth interface sends those of a real Ethernet interface: no shorter than 60 bytes, the rest of which
 * is not zero, and optionally with a trailer behind the packet and a tag with a priority.
 *
 * It runs at tcx egress, before the interface completes checksums that are left to it. These cover all that follows their start
 * then, also what is added here, so the sum of that is subtracted in advance. Where checksums stay incomplete, because the
 * interface has the offload, the receiver ends the packet where its IP header says, as with any other.
 *
 * Super-packets are none of a wire, and stay as they are but for the tag. Needs Linux 6.6 with BTF.
 */
#include "bpf.h"

enum {
	MIN_FRAME = 60, /* IEEE 802.3, without the FCS */
	MAX_TRAILER = 64,
	FILL = 0xa5,

	ETHERTYPE_VLAN = 0x8100,
	PRIORITY_SHIFT = 13, /* in a tag */
	CHECKSUM_PARTIAL = 3,
	HW_CSUM = 1 << 3, /* NETIF_F_HW_CSUM */
};

/* Bytes behind each frame that stays within longest, which is the longest frame of the link. */
volatile const __u32 trailer;
volatile const __u32 longest;
/* Whether frames have a tag with this priority and without a virtual LAN. */
volatile const __u8 tagged;
volatile const __u8 priority;

/* Members of the kernel's structures that are read here. */
struct net_device {
	__u64 features;
} KERNEL;

struct sk_buff {
	struct net_device *dev;
	__u8 ip_summed : 2;
	__u16 csum_start, csum_offset;
	unsigned char *head, *data;
} KERNEL;

extern void *bpf_cast_to_kern_ctx(void *context) __attribute__((section(".ksyms"))); /* Linux 6.2 */

static __always_inline __u32 summed(const struct sk_buff *kernel)
{
	__u64 bits = *((const __u8 *)kernel + __builtin_preserve_field_info(kernel->ip_summed, 0));

	return bits << __builtin_preserve_field_info(kernel->ip_summed, 4) >> __builtin_preserve_field_info(kernel->ip_summed, 5);
}

/* The sum of n bytes of FILL (RFC 1071), the first of which is the second one of a word if odd. */
static __always_inline __u16 sum_of(__u32 n, __u32 odd)
{
	__u32 sum = n / 2 * (FILL << 8 | FILL);

	if (n & 1)
		sum += odd ? FILL : FILL << 8;
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Subtracts what a frame has from an offset on from a checksum that the interface is going to complete. */
static __always_inline long discount(struct __sk_buff *skb, __u32 from, __u32 n)
{
	const struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	__u32 start;

	if (summed(kernel) != CHECKSUM_PARTIAL || kernel->dev->features & HW_CSUM)
		return 0;
	start = kernel->csum_start - (__u32)(kernel->data - kernel->head);
	return bpf_l4_csum_replace(skb, start + kernel->csum_offset, 0, (__u16)~htons(sum_of(n, (from - start) & 1)), BPF_F_PSEUDO_HDR);
}

/* Adds bytes behind a frame. Where the kernel refuses to, it stays as it is, or gets zeros, which change no checksum. */
static __always_inline void extend(struct __sk_buff *skb, __u32 from, __u32 n)
{
	__u8 fill[MIN_FRAME + MAX_TRAILER];

	if (!n || n > sizeof(fill))
		return;
	__builtin_memset(fill, FILL, sizeof(fill));
	if (!bpf_skb_change_tail(skb, from + n, 0) && !discount(skb, from, n))
		bpf_skb_store_bytes(skb, from, fill, n, 0);
}

SEC("tc")
int ethernet(struct __sk_buff *skb)
{
	__u32 length = skb->len, end = length < MIN_FRAME ? MIN_FRAME : length;

	if (!skb->gso_size) {
		if (end + trailer <= longest)
			end += trailer;
		extend(skb, length, end - length);
	}
	if (tagged && !skb->vlan_present)
		bpf_skb_vlan_push(skb, htons(ETHERTYPE_VLAN), priority << PRIORITY_SHIFT);
	return TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
