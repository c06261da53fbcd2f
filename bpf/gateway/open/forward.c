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

enum { LINK_HEADER = ETHERNET_HEADER }; /* bytes before the IP header */

#include "split.h"
#include "join.h"
#include "restore.h"

char _license[] SEC("license") = "Dual BSD/GPL";
