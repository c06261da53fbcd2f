// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Runs bpf/lib/sched.h in the kernel on packets that a test puts into a map, to compare with
 * internal/gateway/sched.
 */
#include "sched.h"

enum {
	MAX_PACKETS = 1000000,
	MAX_PLANS = 1024,
};

/* A packet, in, and its path, out. */
struct step {
	__s64 now;
	__u32 size, flow;
	__u32 plan;
	__s32 path;
};

/* What goes from one packet to the next. */
struct memory {
	struct sched_queues queues;
	struct sched_state state;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_PACKETS);
	__type(key, __u32);
	__type(value, struct step);
} steps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_PLANS);
	__type(key, __u32);
	__type(value, struct sched_plan);
} plans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct memory);
} memories SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SCHED_FLOWS);
	__type(key, __u32);
	__type(value, struct sched_flow);
} flows SEC(".maps");

/* How many of the steps are to be run. */
__u32 packets;

static long run_step(__u32 i, void *unused)
{
	struct step *s = bpf_map_lookup_elem(&steps, &i);
	struct sched_plan *plan;
	struct sched_flow *flow;
	struct memory *m;
	__u32 zero = 0, slot;

	(void)unused;
	if (!s)
		return 1;
	slot = s->flow % SCHED_FLOWS;
	plan = bpf_map_lookup_elem(&plans, &s->plan);
	m = bpf_map_lookup_elem(&memories, &zero);
	flow = bpf_map_lookup_elem(&flows, &slot);
	if (!plan || !m || !flow)
		return 1;
	s->path = sched_next(plan, &m->queues, &m->state, flow, s->now, s->size, s->flow);
	return 0;
}

SEC("tc")
int run(struct __sk_buff *skb)
{
	(void)skb;
	bpf_loop(packets, run_step, 0, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
