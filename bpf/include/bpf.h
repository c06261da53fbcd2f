/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Section names, map definitions and helpers for eBPF programs.
 *
 * It declares only what the programs here use, with the values of include/uapi/linux/bpf.h, so
 * that the objects do not depend on installed headers.
 */
#ifndef TABANE_BPF_H
#define TABANE_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]

/* For a structure of the kernel: the loader sets the offsets of its members. */
#define KERNEL __attribute__((preserve_access_index))

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* Converts between network and host byte order. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ntohs(x) __builtin_bswap16(x)
#define ntohl(x) __builtin_bswap32(x)
#define ntohll(x) __builtin_bswap64(x)
#else
#define ntohs(x) (x)
#define ntohl(x) (x)
#define ntohll(x) (x)
#endif
#define htons(x) ntohs(x)
#define htonl(x) ntohl(x)
#define htonll(x) ntohll(x)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_STACK = 23,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
};

enum {
	BPF_SK_STORAGE_GET_F_CREATE = 1,
};

enum {
	BPF_NOEXIST = 1,
};

enum {
	BPF_F_RECOMPUTE_CSUM = 1 << 0, /* of bpf_skb_store_bytes */
};

/* Of bpf_l4_csum_replace: the address is in a pseudo header, and a checksum of 0 stays, as there is none. */
enum {
	BPF_F_PSEUDO_HDR = 1 << 4,
	BPF_F_MARK_MANGLED_0 = 1 << 5,
};

/* Of bpf_skb_adjust_room: room behind the Ethernet header. */
enum {
	BPF_ADJ_ROOM_MAC = 1,

	BPF_F_ADJ_ROOM_FIXED_GSO = 1 << 0,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 = 1 << 1,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 = 1 << 2,
	BPF_F_ADJ_ROOM_ENCAP_L4_UDP = 1 << 4,
	BPF_F_ADJ_ROOM_DECAP_L3_IPV4 = 1 << 7, /* Linux 6.3 */
	BPF_F_ADJ_ROOM_DECAP_L3_IPV6 = 1 << 8,
};

/*
 * The context of a tc program: struct __sk_buff up to the last member that is used. The verifier
 * identifies members by offset.
 */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys __attribute__((aligned(8)));
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk __attribute__((aligned(8)));
	__u32 gso_size;
};

/* In the value of a map: no other processor has the value while it is locked. */
struct bpf_spin_lock {
	__u32 val;
};

/* A neighbor that a packet is sent to (struct bpf_redir_neigh). */
struct bpf_redir_neigh {
	__u32 nh_family;
	__u32 nh[4];
};

/* Return value of a tc program: TCX_NEXT, for cls_bpf TC_ACT_UNSPEC, passes the packet to the
 * next program. */
enum {
	TC_NEXT = -1,
	TC_DROP = 2,
};

/* The context of a raw tracepoint: its arguments. */
struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 size) = (void *)10;
static long (*bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)11;
static long (*bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)12;
static long (*bpf_clone_redirect)(struct __sk_buff *skb, __u32 ifindex, __u64 flags) = (void *)13;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_vlan_push)(struct __sk_buff *skb, __u16 protocol, __u16 tci) = (void *)18;
static long (*bpf_skb_vlan_pop)(struct __sk_buff *skb) = (void *)19;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static long (*bpf_skb_change_head)(struct __sk_buff *skb, __u32 by, __u64 flags) = (void *)43;
static long (*bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 by, __u32 mode, __u64 flags) = (void *)50;
static long (*bpf_setsockopt)(void *sk, int level, int name, void *value, int length) = (void *)49;
static long (*bpf_fib_lookup)(void *ctx, void *params, int size, __u32 flags) = (void *)69;
static long (*bpf_map_push_elem)(void *map, const void *value, __u64 flags) = (void *)87;
static long (*bpf_map_pop_elem)(void *map, void *value) = (void *)88;
static long (*bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static __s64 (*bpf_csum_update)(struct __sk_buff *skb, __u32 sum) = (void *)40;
static __u64 (*bpf_jiffies64)(void) = (void *)118;
static long (*bpf_ringbuf_output)(void *map, const void *data, __u64 size, __u64 flags) = (void *)130;
static void *(*bpf_ringbuf_reserve)(void *map, __u64 size, __u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static long (*bpf_redirect_neigh)(__u32 ifindex, struct bpf_redir_neigh *params, int size, __u64 flags) = (void *)152;
static long (*bpf_loop)(__u32 turns, void *callback, void *context, __u64 flags) = (void *)181;

#endif
