package papers

import (
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

var paperC = []Figure{
	{
		ID: "C4", Title: "Fig. 4, TCP over two equal paths in turn",
		Published: "without delay about 92 % of the sum; at 50 ms 66 % of what the window allows (one path: 77 %), repaired by a window of 16 times the size",
		Scenario:  "datagram-tcp", Backend: result.BackendSim, Kernel: "docs/measured/datagram-tcp.json",
		Cells: scenario.Selection{Transports: []string{"primary-2006", "both-2006", "both-2006-x16", "primary-rfc", "both-rfc"}},
		Values: []Value{
			{Text: "without delay %s of the sum at 512 kbit/s, 1.5 and 8 Mbit/s", Cases: []string{"512k-0", "1.5M-0", "8M-0"}, Transport: "both-2006", Metric: result.Goodput, Relative: result.LimitRate, Digits: 2},
			{Text: "8 Mbit/s, 50 ms: %s kbit/s of the 5200 that the window allows", Cases: []string{"8M-50"}, Transport: "both-2006", Metric: result.Goodput, Divide: 1e3},
			{Text: "one path %s", Cases: []string{"8M-50"}, Transport: "primary-2006", Metric: result.Goodput, Divide: 1e3},
			{Text: "16 times the window %s", Cases: []string{"8M-50"}, Transport: "both-2006-x16", Metric: result.Goodput, Divide: 1e3},
			{Text: "each path late by up to 2 ms, without a threshold that adapts: %s", Cases: []string{"8M-50-late"}, Transport: "both-rfc", Metric: result.Goodput, Divide: 1e3},
			{Text: "one path %s", Cases: []string{"8M-50-late"}, Transport: "primary-rfc", Metric: result.Goodput, Divide: 1e3},
			{Text: "on the kernel %s", Cases: []string{"8M-50"}, Transport: "both-2006", Metric: result.Goodput, Stat: mean, Divide: 1e3, Kernel: true},
			{Text: "one path %s", Cases: []string{"8M-50"}, Transport: "primary-2006", Metric: result.Goodput, Stat: mean, Divide: 1e3, Kernel: true},
			{Text: "16 times the window %s", Cases: []string{"8M-50"}, Transport: "both-2006-x16", Metric: result.Goodput, Stat: mean, Divide: 1e3, Kernel: true},
		},
		Claims: []scenario.Expectation{
			{Name: "Without delay both paths carry 92 % of the sum or more", Metric: result.Goodput, Case: "*-0", Transport: "both-2006", Relative: result.LimitRate, AtLeast: bound(0.92)},
			{Name: "At 50 ms two paths carry two thirds of what the window allows", Metric: result.Goodput, Case: "8M-50", Transport: "both-2006", AtLeast: bound(0.6 * 5.2e6), AtMost: bound(0.72 * 5.2e6)},
			{Name: "16 times the window repairs it", Metric: result.Goodput, Case: "8M-50", Transport: "both-2006-x16", Relative: result.LimitRate, AtLeast: bound(0.92)},
		},
		Because: "Paths that are exactly equal reorder nothing, so TCP has all that the window allows. Where each is late by up to 2 ms, a TCP with a fixed threshold has 0.89 over two of what it has over one (published 0.86), that of Linux 2.4 as much.",
		See:     "../scenarios/datagram-tcp",
	},
	{
		ID: "C5", Title: "Fig. 5, TCP over unequal paths",
		Published: "unequal delays: the ratio hardly matters; 8 and 1.5 Mbit/s: the ratio of the rates (16:3) is best",
		Scenario:  "datagram-ratio", Backend: result.BackendSim, Kernel: "docs/measured/datagram-ratio.json",
		Cells: scenario.Selection{Transports: []string{"ratio-2006", "secondary-2006", "ratio", "secondary"}},
		Values: []Value{
			{Text: "8 and 1.5 Mbit/s: %s kbit/s with 1:1, 3:1, 16:3, 8:1, 20:1", Cases: []string{"rate-1-1", "rate-3-1", "rate-16-3", "rate-8-1", "rate-20-1"}, Transport: "ratio-2006", Metric: result.Goodput, Divide: 1e3},
			{Text: "unequal delays: %s with 1:1, 2:1, 16:3", Cases: []string{"delay-1-1", "delay-2-1", "delay-16-3"}, Transport: "ratio-2006", Metric: result.Goodput, Divide: 1e3},
			{Text: "one path %s", Cases: []string{"delay-1-1"}, Transport: "secondary-2006", Metric: result.Goodput, Divide: 1e3},
			{Text: "today's TCP 1:1 %s", Cases: []string{"delay-1-1"}, Transport: "ratio", Metric: result.Goodput, Divide: 1e3},
			{Text: "on the kernel, unequal rates: %s", Cases: []string{"rate-1-1", "rate-3-1", "rate-16-3", "rate-8-1", "rate-20-1"}, Transport: "ratio-2006", Metric: result.Goodput, Stat: mean, Divide: 1e3, Kernel: true},
			{Text: "unequal delays: %s", Cases: []string{"delay-1-1", "delay-2-1", "delay-16-3"}, Transport: "ratio-2006", Metric: result.Goodput, Stat: mean, Divide: 1e3, Kernel: true},
			{Text: "one path %s", Cases: []string{"delay-1-1"}, Transport: "secondary-2006", Metric: result.Goodput, Stat: mean, Divide: 1e3, Kernel: true},
		},
		Claims: []scenario.Expectation{
			{Name: "Unequal rates: 1:1 is far worse than 16:3", Metric: result.Goodput, Case: "rate-1-1", Transport: "ratio-2006", Relative: "case:rate-16-3", AtMost: bound(0.6)},
			{Name: "Unequal rates: 3:1 is worse than 16:3", Metric: result.Goodput, Case: "rate-3-1", Transport: "ratio-2006", Relative: "case:rate-16-3", AtMost: bound(0.95)},
			{Name: "Unequal rates: 20:1 is no better than 16:3", Metric: result.Goodput, Case: "rate-20-1", Transport: "ratio-2006", Relative: "case:rate-16-3", AtMost: bound(1.05)},
			{Name: "Unequal delays: 16:3 and 1:1 are about equal", Metric: result.Goodput, Case: "delay-16-3", Transport: "ratio-2006", Relative: "case:delay-1-1", AtLeast: bound(0.8), AtMost: bound(1.25)},
		},
		Because: "With unequal delays more packets overtake than a window of 65 kB lets follow, so in the simulator they count as lost, and every ratio has less than one path. The kernel finds losses by time, and there the ratio hardly matters, as published.",
		See:     "../scenarios/datagram-ratio",
	},
	{
		ID: "Cs5", Title: "section 5.2, UDP",
		Published: "about the sum of the rates, with all delays",
		Scenario:  "datagram-udp", Backend: result.BackendLab, Kernel: "docs/measured/datagram-udp.json",
		Cells: scenario.Selection{Cases: []string{"equal", "both50", "both100", "delay"}, Transports: []string{"primary", "secondary", "ratio-1-1"}},
		Values: []Value{
			{Text: "1:1: %s Mbit/s without delay, with 50, 100, and 100 and 50 ms", Cases: []string{"equal", "both50", "both100", "delay"}, Transport: "ratio-1-1", Metric: result.Goodput, Stat: mean, Divide: 1e6, Digits: 2},
			{Text: "one path %s", Cases: []string{"equal"}, Transport: "primary", Metric: result.Goodput, Stat: mean, Divide: 1e6, Digits: 2},
		},
		Claims: []scenario.Expectation{
			{Name: "Two paths carry about twice what one does", Metric: result.Goodput, Transport: "ratio-1-1", Stat: mean, Relative: "transport:primary", AtLeast: bound(1.85), AtMost: bound(2.05)},
		},
		See: "../scenarios/datagram-udp",
	},
	{
		ID: "C6", Title: "Fig. 6, reordering",
		Published: "splitting by the ratio of the rates reduces it",
		Scenario:  "datagram-udp", Backend: result.BackendSim, Kernel: "docs/measured/datagram-udp.json",
		Cells: scenario.Selection{Cases: []string{"rate"}, Transports: []string{"ratio-1-1", "ratio-16-3"}},
		Values: []Value{
			{Text: "1:1 by up to %s numbers", Cases: []string{"rate"}, Transport: "ratio-1-1", Metric: result.ReorderedBehind},
			{Text: "16:3 by up to %s", Cases: []string{"rate"}, Transport: "ratio-16-3", Metric: result.ReorderedBehind},
			{Text: "on the kernel %s", Cases: []string{"rate"}, Transport: "ratio-1-1", Metric: result.ReorderedBehind, Stat: mean, Kernel: true},
			{Text: "and %s", Cases: []string{"rate"}, Transport: "ratio-16-3", Metric: result.ReorderedBehind, Stat: mean, Kernel: true},
		},
		Claims: []scenario.Expectation{
			{Name: "By rate, datagrams are behind by fewer numbers", Metric: result.ReorderedBehind, Transport: "ratio-16-3", Relative: "transport:ratio-1-1", AtMost: bound(0.5)},
		},
		See: "../scenarios/datagram-udp",
	},
	{
		ID: "Ct1", Title: "Table 1, the largest rate of the gateway",
		Published: "84.74 ± 0.97 Mbit/s without NAT, 34.48 ± 0.19 with it, on links of 100 Mbit/s",
		Scenario:  "datagram-limit", Backend: result.BackendLab, Kernel: "docs/measured/datagram-limit.json",
		Cells: scenario.Selection{Cases: []string{"ethernet"}, Transports: []string{"primary", "plain-1-1", "nat-1-1"}},
		Values: []Value{
			{Text: "%s Mbit/s without NAT", Cases: []string{"ethernet"}, Transport: "plain-1-1", Metric: result.Goodput, Stat: mean, Divide: 1e6, Digits: 2},
			{Text: "%s with it", Cases: []string{"ethernet"}, Transport: "nat-1-1", Metric: result.Goodput, Stat: mean, Divide: 1e6, Digits: 2},
			{Text: "%s without gateways", Cases: []string{"ethernet"}, Transport: "primary", Metric: result.Goodput, Stat: mean, Divide: 1e6, Digits: 2},
		},
		Claims: []scenario.Expectation{
			{Name: "Without NAT the gateway carries the published rate or more", Metric: result.Goodput, Transport: "plain-1-1", Stat: mean, AtLeast: bound(84.74e6)},
			{Name: "With NAT too", Metric: result.Goodput, Transport: "nat-1-1", Stat: mean, AtLeast: bound(34.48e6)},
		},
		Because: "Here the links are the limit, not the gateway: without them it forwards 1354 Mbit/s, with NAT 1318.",
		See:     "gateway-measured.md#the-open-plane",
	},
}
