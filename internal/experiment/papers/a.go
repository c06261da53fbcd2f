package papers

import (
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

const (
	// The transports of paper A, and the modes of "tabane measure" for its networks.
	tcp, epe, multipath = "tcp", "mptcp-epe", "multipath"
	// ofTCP relates a value to that of TCP over BGP's best path.
	ofTCP = transportPrefix + tcp
	// nineNetworks are the trials of nine client networks, fourteen is the one of Fig. 14.
	nineNetworks, fourteen = "docs/measured/measure-nine/trials.csv", "isp-e"
)

// ofA returns goodput of paper A in Mbit/s.
func ofA(text, traffic, transport, metric string, cases ...string) Value {
	return Value{Text: text, Cases: cases, Traffic: traffic, Transport: transport, Metric: metric, Divide: 1e6, Digits: 1}
}

// timeA returns a time of paper A in ms.
func timeA(text, routers, metric string, cases ...string) Value {
	return Value{Text: text, Cases: cases, Transport: routers, Metric: metric, Divide: 1e-3}
}

// parallel returns the goodput of Fig. 14 in a mode, relative to one TCP connection.
func parallel(text, mode string) Value {
	return Value{Text: text, Cases: []string{fourteen}, Transport: mode, Metric: result.Goodput, Relative: ofTCP, Digits: 2}
}

var paperA = []Figure{
	{
		ID: "A8", Title: "Fig. 8, goodput in the patterns 1.1 to 1.4",
		Published: "MPTCP EPE at least TCP everywhere; BI near the sum of both links in 1.3 and 1.4",
		Scenario:  "epe-steady", Backend: result.BackendLab, Kernel: "docs/measured/epe-steady.json",
		Values: []Value{
			ofA("BI: TCP %s Mbit/s", "bi", tcp, result.Goodput, "1.1", "1.2", "1.3", "1.4"),
			ofA("MPTCP EPE %s", "bi", epe, result.Goodput, "1.1", "1.2", "1.3", "1.4"),
			{Text: "%s %% of the limit", Cases: []string{"1.1", "1.2", "1.3", "1.4"}, Traffic: "bi", Transport: epe, Metric: result.Goodput, Relative: result.LimitRate, Divide: 0.01, Digits: 1},
			ofA("CBR of 25 Mbit/s: TCP %s", "cbr", tcp, result.Goodput, "1.1", "1.2", "1.3", "1.4"),
			ofA("MPTCP EPE %s", "cbr", epe, result.Goodput, "1.1", "1.2", "1.3", "1.4"),
		},
		Claims: []scenario.Expectation{
			{Name: "MPTCP EPE has at least what TCP has", Metric: result.Goodput, Transport: epe, Relative: ofTCP, AtLeast: bound(0.995)},
			{Name: "BI has nearly the sum in 1.3", Metric: result.Goodput, Case: "1.3", Traffic: "bi", Transport: epe, Relative: result.LimitRate, AtLeast: bound(0.95)},
			{Name: "BI has nearly the sum in 1.4", Metric: result.Goodput, Case: "1.4", Traffic: "bi", Transport: epe, Relative: result.LimitRate, AtLeast: bound(0.95)},
		},
		See: "../scenarios/epe-steady",
	},
	{
		ID: "A9", Title: "Fig. 9, goodput before and after a change",
		Published: "2.1: BI about 45 Mbit/s, then about 30, CBR holds 25; 2.3 and 2.4: near 45 after the change",
		Scenario:  "epe-change", Backend: result.BackendLab, Kernel: "docs/measured/epe-change.json",
		Values: []Value{
			ofA("2.1: BI %s Mbit/s", "bi", epe, result.GoodputBefore, "2.1"),
			ofA("then %s", "bi", epe, result.GoodputAfter, "2.1"),
			{Text: "CBR %s in the worst second", Cases: []string{"2.1"}, Traffic: "cbr", Transport: epe, Metric: result.WorstSecond, Stat: "min", Divide: 1e6, Digits: 1},
			ofA("2.3 and 2.4: %s after the change", "bi", epe, result.GoodputAfter, "2.3", "2.4"),
		},
		Claims: []scenario.Expectation{
			{Name: "2.1: BI has about 45 Mbit/s", Metric: result.GoodputBefore, Case: "2.1", Traffic: "bi", Transport: epe, AtLeast: bound(0.9 * 45e6), AtMost: bound(1.1 * 45e6)},
			{Name: "2.1: then about 30", Metric: result.GoodputAfter, Case: "2.1", Traffic: "bi", Transport: epe, AtLeast: bound(0.9 * 30e6), AtMost: bound(1.1 * 30e6)},
			{Name: "2.1: CBR holds its rate", Metric: result.GoodputAfter, Case: "2.1", Traffic: "cbr", Transport: epe, Relative: result.OfferedRate, AtLeast: bound(0.98)},
			{Name: "2.3: BI has about 45 after the change", Metric: result.GoodputAfter, Case: "2.3", Traffic: "bi", Transport: epe, AtLeast: bound(0.9 * 45e6), AtMost: bound(1.1 * 45e6)},
			{Name: "2.4: BI has about 45 after the change", Metric: result.GoodputAfter, Case: "2.4", Traffic: "bi", Transport: epe, AtLeast: bound(0.9 * 45e6), AtMost: bound(1.1 * 45e6)},
		},
		Because: "The links carry 45 and 30 Mbit/s with all headers, 41.6 and 27.7 of payload.",
		See:     "../scenarios/epe-change",
	},
	{
		ID: "A10", Title: "Fig. 10, time from a change of policy to the routes",
		Published: "medians with FRR: EPE Route about 190 ms (3.1) and 310 ms (3.2), best path about equal",
		Scenario:  "epe-routes", Backend: result.BackendLab, Routers: "embedded,frr", Kernel: "docs/measured/epe-routes.json",
		Values: []Value{
			timeA("FRR: EPE Route %s ms (3.1, 3.2)", "frr", result.EPERoute, "3.1", "3.2"),
			timeA("best path %s", "frr", result.BestPath, "3.1", "3.2"),
			timeA("embedded routers: EPE Route %s", "embedded", result.EPERoute, "3.1", "3.2"),
			timeA("best path %s", "embedded", result.BestPath, "3.1", "3.2"),
		},
		Claims: []scenario.Expectation{
			{Name: "3.1: the EPE Route follows within the published time", Metric: result.EPERoute, Case: "3.1", Transport: "frr", AtMost: bound(0.19)},
			{Name: "3.2: the EPE Route follows within the published time", Metric: result.EPERoute, Case: "3.2", Transport: "frr", AtMost: bound(0.31)},
			{Name: "3.1: as soon as the best path", Metric: result.EPERoute, Case: "3.1", Transport: "frr", Relative: result.BestPath, AtLeast: bound(0.8), AtMost: bound(1.25)},
			{Name: "3.2: as soon as the best path", Metric: result.EPERoute, Case: "3.2", Transport: "frr", Relative: result.BestPath, AtLeast: bound(0.8), AtMost: bound(1.25)},
			{Name: "A withdrawal takes longer", Metric: result.EPERoute, Case: "3.2", Transport: "frr", Relative: "case:3.1", AtLeast: bound(1.2)},
		},
		Because: "Both follow a change at once, and sooner. With FRR each hop takes the 50 ms for which its bgpd delays updates; the best path of 3.2 takes one more hop. The paper names neither version nor timers of its FRR.",
		See:     "../scenarios/epe-routes",
	},
	{
		ID: "A12", Title: "Fig. 12 and 13, nine client ISPs",
		Published: "at least 10 % better in 6 of 9, at least 50 % in 4, about 8 % worse in 2",
		Command:   "make measure-nine", Backend: BackendMeasure, Trials: nineNetworks,
		Values: []Value{
			{Text: "median of MPTCP / that of TCP in models of nine networks: %s", Cases: []string{"isp-a", "isp-b", "isp-c", "isp-d", "isp-e", "isp-f", "isp-g", "isp-h", "isp-i"}, Transport: multipath, Metric: result.Goodput, Relative: ofTCP, Digits: 2},
		},
		Counts: []Count{
			{Name: "At least 10 % better in 6", Mode: multipath, AtLeast: 1.1, Want: 6},
			{Name: "At least 50 % better in 4", Mode: multipath, AtLeast: 1.5, Want: 4},
			{Name: "About 8 % worse in 2", Mode: multipath, AtLeast: 0.89, Below: 0.95, Want: 2},
			{Name: "Worse by more in none", Mode: multipath, Below: 0.89},
		},
		Because: "The paper's networks are real ones of which it gives no properties; ours are models, so other numbers of them gain and lose. What it saw of single ones is there: two and three times the goodput where the best path is lossy or slow, and a tenth less where both paths share a last mile that one connection fills (C).",
		See:     "measured/measure-nine/report.html",
	},
	{
		ID: "A14", Title: "Fig. 14, 1 to 12 parallel TCP connections",
		Published: "goodput falls with the number; MPTCP has about what 6 have",
		Command:   "make measure-nine", Backend: BackendMeasure, Trials: nineNetworks,
		Values: []Value{
			parallel("of one connection: 3 have %s", "parallel:3"), parallel("6 %s", "parallel:6"), parallel("9 %s", "parallel:9"), parallel("12 %s", "parallel:12"),
			parallel("MPTCP %s", multipath),
		},
		Claims: []scenario.Expectation{
			{Name: "3 have less than one", Metric: result.Goodput, Case: fourteen, Transport: "parallel:3", Relative: ofTCP, AtMost: bound(0.98)},
			{Name: "6 have less than 3", Metric: result.Goodput, Case: fourteen, Transport: "parallel:6", Relative: "transport:parallel:3", AtMost: bound(0.98)},
			{Name: "9 have less than 6", Metric: result.Goodput, Case: fourteen, Transport: "parallel:9", Relative: "transport:parallel:6", AtMost: bound(0.98)},
			{Name: "12 have less than 9", Metric: result.Goodput, Case: fourteen, Transport: "parallel:12", Relative: "transport:parallel:9", AtMost: bound(0.98)},
			{Name: "MPTCP has about what 6 have", Metric: result.Goodput, Case: fourteen, Transport: multipath, Relative: "transport:parallel:6", AtLeast: bound(0.9), AtMost: bound(1.1)},
		},
		Because: "A line does not make more connections carry less: in the simulator 3 to 12 carry what one does or more, with each of six queues and round trips. What does it in the paper's network, hosts or a radio, is not in the paper.",
		See:     "measured/measure-nine/report.html",
	},
	{
		ID: "As4", Title: "section 4, SRv6 Flow Stats",
		Published: "throughput of each subflow every 100 ms",
		Command:   "tabane flows",
		Ours:      "the same, and TCP's state", Verdict: Reproduced,
		See: "flows.md",
	},
}
