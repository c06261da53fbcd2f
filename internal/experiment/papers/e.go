package papers

import (
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// controls are the congestion controls that the paper compares over several paths.
var controls = []string{"lia", "newreno", "vegas"}

// ofE returns a metric of a service over a transport in one case.
func ofE(text, cell, service, transport, metric string, divide float64) Value {
	return Value{Text: text, Cases: []string{cell}, Traffic: service, Transport: transport, Metric: metric, Divide: divide, Digits: 2}
}

// inLab is where trials of pages ran on a busy machine.
const inLab = "docs/measured/webqoe-findings.json"

var paperE = []Figure{
	{
		ID: "E3", Title: "Fig. 3 and 4, congestion window",
		Published: "LIA smallest in environments 2 and 4",
		Scenario:  "webqoe", Backend: result.BackendLab, Kernel: inLab,
		Cells: scenario.Selection{Cases: []string{"env4-h2"}, Transports: controls},
		Values: []Value{
			ofE("environment 4 over HTTP/2, map: LIA %s segments", "env4-h2", "map", "lia", result.PathWindow, 0),
			ofE("NewReno %s", "env4-h2", "map", "newreno", result.PathWindow, 0),
			ofE("Vegas %s", "env4-h2", "map", "vegas", result.PathWindow, 0),
			ofE("shop: LIA %s", "env4-h2", "shop", "lia", result.PathWindow, 0),
			ofE("NewReno %s", "env4-h2", "shop", "newreno", result.PathWindow, 0),
			ofE("Vegas %s", "env4-h2", "shop", "vegas", result.PathWindow, 0),
		},
		Claims: []scenario.Expectation{
			{Name: "Env. 4, map: LIA is below NewReno", Metric: result.PathWindow, Case: "env4-h2", Traffic: "map", Transport: "lia", Relative: "transport:newreno", AtMost: bound(0.95)},
			{Name: "Env. 4, map: LIA is below Vegas", Metric: result.PathWindow, Case: "env4-h2", Traffic: "map", Transport: "lia", Relative: "transport:vegas", AtMost: bound(0.95)},
			{Name: "Env. 4, shop: LIA is below NewReno", Metric: result.PathWindow, Case: "env4-h2", Traffic: "shop", Transport: "lia", Relative: "transport:newreno", AtMost: bound(0.95)},
			{Name: "Env. 4, shop: LIA is below Vegas", Metric: result.PathWindow, Case: "env4-h2", Traffic: "shop", Transport: "lia", Relative: "transport:vegas", AtMost: bound(0.95)},
		},
		Because: "The shop's window is not below that of Vegas, and of four differences one is significant after Holm's correction. Transfers over HTTP/1.1 are too short: windows hardly leave slow start. Environment 2 was not run over HTTP/2.",
		See:     "webqoe.md#what-paper-e-found",
	},
	{
		ID: "E5", Title: "Fig. 5 and 6, throughput",
		Published: "Vegas by far the highest in environment 3",
		Scenario:  "webqoe", Backend: result.BackendLab, Kernel: inLab,
		Cells: scenario.Selection{Cases: []string{"env3-h2"}, Transports: controls},
		Values: []Value{
			ofE("environment 3 over HTTP/2, map: LIA %s Mbit/s", "env3-h2", "map", "lia", result.PathThroughput, 1e6),
			ofE("NewReno %s", "env3-h2", "map", "newreno", result.PathThroughput, 1e6),
			ofE("Vegas %s", "env3-h2", "map", "vegas", result.PathThroughput, 1e6),
		},
		Claims: []scenario.Expectation{
			{Name: "Env. 3: Vegas is above LIA", Metric: result.PathThroughput, Case: "env3-h2", Traffic: "map", Transport: "vegas", Relative: "transport:lia", AtLeast: bound(1.05)},
			{Name: "Env. 3: Vegas is above NewReno", Metric: result.PathThroughput, Case: "env3-h2", Traffic: "map", Transport: "vegas", Relative: "transport:newreno", AtLeast: bound(1.05)},
		},
		Because: "Eight trials on a busy machine do not decide it: Vegas takes delays of the host for those of the network. Two trials on a quieter one had Vegas highest by 7 to 12 %, without significance.",
		See:     "webqoe.md#what-paper-e-found",
	},
	{
		ID: "E6", Title: "Fig. 5 to 8, throughput, satisfaction and load",
		Published: "lower where links are congested",
		Scenario:  "webqoe-load", Backend: result.BackendLab, Kernel: "docs/measured/webqoe-load.json",
		Cells: scenario.Selection{Cases: []string{"e1-0", "e1-95"}, Transports: []string{"tcp", "lia"}},
		Values: []Value{
			{Text: "load 0 and 0.95 of each link: TCP waits %s s", Cases: []string{"e1-0", "e1-95"}, Transport: "tcp", Metric: result.Waiting, Digits: 2},
			{Text: "LIA %s", Cases: []string{"e1-0", "e1-95"}, Transport: "lia", Metric: result.Waiting, Digits: 2},
		},
		Claims: []scenario.Expectation{
			{Name: "Load makes TCP wait", Metric: result.Waiting, Case: "e1-95", Traffic: "map", Transport: "tcp", Relative: "case:e1-0", AtLeast: bound(1.5)},
			{Name: "Load makes LIA wait", Metric: result.Waiting, Case: "e1-95", Traffic: "map", Transport: "lia", Relative: "case:e1-0", AtLeast: bound(1.5)},
			{Name: "Load leaves the path of TCP less", Metric: result.PathThroughput, Case: "e1-95", Traffic: "map", Transport: "tcp", Relative: "case:e1-0", AtMost: bound(0.7)},
			{Name: "Load leaves the paths of LIA less", Metric: result.PathThroughput, Case: "e1-95", Traffic: "map", Transport: "lia", Relative: "case:e1-0", AtMost: bound(0.7)},
		},
		Because: "Satisfaction takes people; that of a model falls from 5.0 to 3.1 (TCP) and 3.7 (LIA).",
		See:     "webqoe.md#load",
	},
	{
		ID: "E7", Title: "Fig. 7 and 8, satisfaction and congestion controls",
		Published: "no significant difference",
		Command:   "tabane qoe", Verdict: NotTested,
		Because: "It takes people. `tabane qoe` runs the study with them; the report of webqoe has an estimate of a model instead.",
		See:     "study.md",
	},
	{
		ID: "E9", Title: "Fig. 9 to 12, effectiveness and efficiency",
		Published: "no significant difference but effectiveness Vegas > NewReno",
		Command:   "tabane lab run webqoe", Verdict: NotTested,
		Ours:    "a player meets all conditions",
		Because: "A player does not fail as people do; `tabane qoe` runs the study with people.",
		See:     "study.md",
	},
}
