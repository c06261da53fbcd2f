// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The programs of the paths' interfaces whose packets begin with the IP header. They are compiled apart, because with
 * the length of the link's header in a variable each packet would take longer.
 */
#include "packet.h"

enum { LINK_HEADER = 0 }; /* bytes before the IP header */

#include "join.h"
#include "restore.h"

char _license[] SEC("license") = "Dual BSD/GPL";
