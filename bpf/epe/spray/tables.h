/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the programs keep: the paths of a route, connections of TCP, flows of UDP, and what is remembered of networks. */
#ifndef TABANE_SPRAY_TABLES_H
#define TABANE_SPRAY_TABLES_H

#include "packet.h"
#include "spray.h"
#include "backoff.h"

/* Half of the connections that bulk is sprayed of at once; records hold what is in flight. */
#define CONNECTIONS 1024
#define FLOWS 4096 /* the same for UDP */
#define CLIENTS 4096 /* of UDP */
#define RECORDS 512
#define LEARNED 128 /* after so many packets, what is known of a path is remembered, and then again */
#define IDLE 2000000 /* after so many microseconds a connection may be replaced by another */

/* The peers of the networks with the same ones. */
struct plan {
	__u32 home; /* path 0 to SPRAY_PATHS - 1 */
	__u32 may;  /* bit i is path i */
	__u32 rule; /* what the paths belong to */
	__u32 mark[SPRAY_PATHS];
};

struct ends {
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
};

struct record {
	__u32 end; /* sequence number after the last byte */
	__u32 length;
	__u32 sent; /* time */
	__u32 acknowledged;
	__u32 retransmitted; /* time; 0: not */
	__u8 path;
	__u8 arrived;
	__u8 lost; /* enum spray_loss */
	__u8 unused;
};

struct connection {
	struct ends ends;
	__u32 used;
	__u32 bytes;
	__u32 next; /* sequence number of new data */
	__u32 head;
	__u32 tail;
	__u32 resumed; /* tail when the connection waited for data last */
	__u32 home;
	__u32 rule;
	__u32 period; /* start of the present one for shortest */
	__u32 heard; /* an acknowledgment was seen */
	__u32 old; /* the last one was for what was sent elsewhere, and says nothing of a round trip */
	__u32 began; /* time */
	__u32 died; /* time at which home was left as dead; 0: never */
	__u32 waits; /* time at which home died, if nothing has arrived since; 0: it has */
	__u32 before; /* what was home then */
	__u32 former; /* what was home before it died last */
	__u32 alive; /* time of the last arrival over that by then; 0: none died, or it is home again */
	__u32 common; /* what was sent again over the home since did not arrive either */
	__u32 outage; /* time until which nothing arrived over any path; 0: there was none */
	__u32 stamp; /* timestamp (RFC 7323) of the first segment that was not; 0: it had none */
	__u32 first; /* what is remembered of the rate of the first path, if another one is home; or 0 */
	__u32 back; /* what was home before the trial */
	struct spray_trial trial;
	struct spray_watch watch;
	struct spray_path path[SPRAY_PATHS];
	__u32 counted[SPRAY_PATHS]; /* bytes of a path that are in its memory */
	struct record records[RECORDS];
};

/* A flow of UDP. */
struct datagrams {
	struct ends ends;
	__u32 used;
	__u32 packets;
	__u32 home;
	__u32 rule;
	__u32 heard; /* time of the last packet of the client; 0: never */
	__u32 progress; /* as heard, or when the first packet since was sent that needs an answer */
	__u32 small; /* heard, when the last packet was sent that needs none */
	__u32 left; /* time at which it left all paths but home; 0: never */
	__u32 first; /* where it began */
	__u32 away; /* time at which it left that; 0: it has not */
	__u32 wait; /* how long it stays away */
	__u32 silent; /* times in a row that home was left, since the client was silent */
	__u32 total; /* bytes, up to SPRAY_BEGIN */
	struct backoff backoff;
	__u32 bytes[SPRAY_PATHS]; /* carried since they were counted */
};

/*
 * What the flows of UDP to a client, an IPv4 address or a /64, have in common: each alone would find
 * the paths empty that the others fill.
 */
struct client {
	__u64 prefix;  /* 0 of IPv4 */
	__u32 address; /* of IPv4; 0 of IPv6 */
	__u32 used;
	__u32 rule;
	struct spray_turns turns;
	struct spray_queue queue[SPRAY_PATHS];
};

/*
 * What is remembered of a path to a client network, /48 or /24, by its mark; with the mark 0 what
 * spraying of datagrams brought there, and the rate of home alone.
 */
struct network {
	__u8 prefix[8]; /* of an IPv4 address ::ffff/96 is left out */
	__u32 mark;
	__u32 family;
};

struct memory {
	__u64 until; /* nanoseconds */
	__u64 pause; /* nanoseconds, the last one */
	__u64 pauses;
	__u64 seen; /* nanoseconds, a packet arrived over it; 0: never */
	__u64 tried; /* nanoseconds, it was home for a trial; 0: never */
	__u64 learned; /* nanoseconds, of what follows; 0: never */
	__u64 loses; /* as home, without a queue: rate is what connections brought over it */
	__u32 shortest;
	__u32 rate;
	__u64 datagrams; /* bytes that flows of UDP carried over it */
	__u64 stream; /* bytes that connections of TCP did, without retransmissions */
};

const struct plan *_plan __attribute__((unused));
const struct network *_network __attribute__((unused));
const struct memory *_memory __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CONNECTIONS);
	__type(key, __u32);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOWS);
	__type(key, __u32);
	__type(value, struct datagrams);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLIENTS);
	__type(key, __u32);
	__type(value, struct client);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct network);
	__type(value, struct memory);
} networks SEC(".maps");

/* Bytes that flows of UDP carried over all paths with a mark. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} volumes SEC(".maps");

/* Where options of a TCP header are copied to. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[64]);
} scratch SEC(".maps");

/* The program that those of all plans continue with: it is loaded once. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sender SEC(".maps");

/* Connections that have sent LEARNED packets, of which no acknowledgment was seen. */
__u64 unheard;

/* The plan of a program. */
volatile const __u32 plan_index;

/*
 * Whether the place of what was used last at a time may be another's. Another processor can have used
 * it after now was read.
 */
static __always_inline int idle(__u32 used, __u32 now)
{
	return now - used > IDLE && used - now > IDLE;
}

#endif
