/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Senders of datagrams that get no acknowledgments, whose contents cannot be read: QUIC then sends one
 * or two packets, and again after twice as long each time (RFC 9002, section 6.2.1). Packets of the
 * client say nothing there: it probes likewise while only the way to it is interrupted.
 */
#ifndef TABANE_BACKOFF_H
#define TABANE_BACKOFF_H

enum {
	BACKOFF_LEAST = 20000, /* us between two probes: less than any timer of QUIC, which has 25 ms for a late acknowledgment */
	BACKOFF_PROBES = 4, /* packets that are sent at once then, at most */
	BACKOFF_TIMES = 2, /* times in a row that a pause was twice the one before: a sender gets no acknowledgments */
	BACKOFF_PACKET = 1500, /* bytes; several may be sent as one */
};

struct backoff {
	__u32 last; /* time of the last packet; 0: none */
	__u32 gap;  /* the last pause; 0: packets were sent without any */
	__u32 times;
	__u32 packets; /* since that pause */
};

/* Counts what is sent, and returns how many times in a row a pause was twice the one before. */
static __attribute__((always_inline)) inline __u32 backoff_sent(struct backoff *b, __u32 now, __u32 size)
{
	__u32 gap = now - b->last, packets = 1 + size / BACKOFF_PACKET;

	if (!b->last || gap < BACKOFF_LEAST || gap < b->gap / 8) {
		b->packets += packets;
		if (b->packets > BACKOFF_PROBES)
			b->gap = b->times = 0;
	} else {
		b->times = b->gap && gap > b->gap && gap - b->gap > b->gap / 8 * 7 && gap - b->gap < b->gap / 8 * 9 ? b->times + 1 : 0;
		b->gap = gap;
		b->packets = packets;
	}
	b->last = now ? now : 1;
	return b->times;
}

#endif
