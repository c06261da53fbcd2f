// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "newreno.h"

SEC(".struct_ops.link")
struct tcp_congestion_ops ops = {
	COMMON_OPS,
	.cong_avoid = (void *)cong_avoid,
	.ssthresh = (void *)ssthresh,
	.name = "tabane_newreno",
};
