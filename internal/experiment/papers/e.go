package papers

import (
	"slices"

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

// then is the suffix of controls with the MPTCP of the paper's hosts.
const then = "-2014"

// thenAndNow are the paper's controls with the MPTCP of its hosts, and with that of today.
var thenAndNow = []string{"lia", "lia" + then, "newreno", "newreno" + then, "vegas", "vegas" + then}

// simulatedE returns a metric of paper E in the simulator for each control, with the MPTCP of era.
func simulatedE(era, environment, traffic, metric string, divide float64, digits int) (values []Value) {
	for i, control := range controls {
		text := control + " %s"
		if i == 0 {
			text = environment + ", " + traffic + ": " + text
			if era == "" {
				text = "today " + text
			}
		}
		values = append(values, Value{Text: text, Cases: []string{environment}, Traffic: traffic, Transport: control + era, Metric: metric, Stat: mean, Divide: divide, Digits: digits})
	}
	return values
}

// belowOthers are the claims that LIA has less of a metric than the others in an environment.
func belowOthers(environment, traffic, metric, what string) (claims []scenario.Expectation) {
	for _, other := range controls[1:] {
		claims = append(claims, scenario.Expectation{
			Name: "LIA's " + what + " is below that of " + other + " in " + environment + ", " + traffic, Metric: metric, Case: environment, Traffic: traffic,
			Transport: controls[0] + then, Stat: mean, Relative: transportPrefix + other + then, AtMost: bound(0.95),
		})
	}
	return claims
}

// smallestWindow are the claims that LIA has the smallest window in an environment.
func smallestWindow(environment, traffic string) []scenario.Expectation {
	return belowOthers(environment, traffic, result.SubflowWindow, "window")
}

// fastestVegas are the claims that Vegas has by far the highest throughput in environment 3.
func fastestVegas(traffic string) (claims []scenario.Expectation) {
	for _, other := range controls[:2] {
		claims = append(claims, scenario.Expectation{
			Name: "Vegas is far above " + other + ", " + traffic, Metric: result.Goodput, Case: "env3", Traffic: traffic,
			Transport: controls[2] + then, Stat: mean, Relative: transportPrefix + other + then, AtLeast: bound(1.5),
		})
	}
	return claims
}

// loads are the cases of webqoe-load without delay and loss.
var loads = []string{"e1-0", "e1-50", "e1-70", "e1-80", "e1-90", "e1-95"}

var paperE = []Figure{
	{
		ID: "E3", Title: "Fig. 3 and 4, congestion window",
		Published: "LIA smallest in environments 2 and 4",
		Scenario:  "webqoe-controls", Backend: result.BackendSim,
		Cells: scenario.Selection{Cases: []string{"env2", "env4"}, Traffic: []string{"heavy", "bulk"}, Transports: thenAndNow},
		Values: slices.Concat(
			simulatedE(then, "env2", "heavy", result.SubflowWindow, 0, 1), simulatedE(then, "env4", "heavy", result.SubflowWindow, 0, 1),
			simulatedE("", "env2", "heavy", result.SubflowWindow, 0, 1), simulatedE("", "env4", "heavy", result.SubflowWindow, 0, 1),
			simulatedE(then, "env2", "bulk", result.SubflowWindow, 0, 1), simulatedE(then, "env4", "bulk", result.SubflowWindow, 0, 1),
		),
		Claims: slices.Concat(smallestWindow("env2", "heavy"), smallestWindow("env4", "heavy"), smallestWindow("env2", "bulk"), smallestWindow("env4", "bulk")),
		See:    "../scenarios/webqoe-controls",
	},
	{
		ID: "E4", Title: "Fig. 3 to 6, windows and throughput in a browser",
		Published: "LIA's window smallest in environment 4; Vegas' throughput by far the highest in environment 3",
		Scenario:  "webqoe", Backend: result.BackendLab, Kernel: inLab,
		Cells: scenario.Selection{Cases: []string{"env3-h2", "env4-h2"}, Transports: controls},
		Values: []Value{
			ofE("environment 4 over HTTP/2, map: LIA %s segments", "env4-h2", "map", "lia", result.PathWindow, 0),
			ofE("NewReno %s", "env4-h2", "map", "newreno", result.PathWindow, 0),
			ofE("Vegas %s", "env4-h2", "map", "vegas", result.PathWindow, 0),
			ofE("shop: LIA %s", "env4-h2", "shop", "lia", result.PathWindow, 0),
			ofE("NewReno %s", "env4-h2", "shop", "newreno", result.PathWindow, 0),
			ofE("Vegas %s", "env4-h2", "shop", "vegas", result.PathWindow, 0),
			ofE("environment 3 over HTTP/2, map: LIA %s Mbit/s", "env3-h2", "map", "lia", result.PathThroughput, 1e6),
			ofE("NewReno %s", "env3-h2", "map", "newreno", result.PathThroughput, 1e6),
			ofE("Vegas %s", "env3-h2", "map", "vegas", result.PathThroughput, 1e6),
		},
		Claims: []scenario.Expectation{
			{Name: "Env. 4, map: LIA is below NewReno", Metric: result.PathWindow, Case: "env4-h2", Traffic: "map", Transport: "lia", Relative: "transport:newreno", AtMost: bound(0.95)},
			{Name: "Env. 4, map: LIA is below Vegas", Metric: result.PathWindow, Case: "env4-h2", Traffic: "map", Transport: "lia", Relative: "transport:vegas", AtMost: bound(0.95)},
			{Name: "Env. 4, shop: LIA is below NewReno", Metric: result.PathWindow, Case: "env4-h2", Traffic: "shop", Transport: "lia", Relative: "transport:newreno", AtMost: bound(0.95)},
			{Name: "Env. 4, shop: LIA is below Vegas", Metric: result.PathWindow, Case: "env4-h2", Traffic: "shop", Transport: "lia", Relative: "transport:vegas", AtMost: bound(0.95)},
			{Name: "Env. 3: Vegas is above LIA", Metric: result.PathThroughput, Case: "env3-h2", Traffic: "map", Transport: "vegas", Relative: "transport:lia", AtLeast: bound(1.05)},
			{Name: "Env. 3: Vegas is above NewReno", Metric: result.PathThroughput, Case: "env3-h2", Traffic: "map", Transport: "vegas", Relative: "transport:newreno", AtLeast: bound(1.05)},
		},
		Because: "The shop's window is not below that of Vegas, and of four differences one is significant after Holm's correction. Transfers over HTTP/1.1 are too short: windows hardly leave slow start. Trials on a busy machine do not decide the throughput: Vegas takes delays of the host for those of the network. What made it the fastest in the paper is in E5.",
		See:     "webqoe.md#what-paper-e-found",
	},
	{
		ID: "E5", Title: "Fig. 5 and 6, throughput",
		Published: "Vegas by far the highest in environment 3; significant differences of LIA and the others in 2 and 4, of NewReno and Vegas in 4",
		Scenario:  "webqoe-controls", Backend: result.BackendSim,
		Cells: scenario.Selection{Cases: []string{"env2", "env3", "env4"}, Traffic: []string{"view", "heavy"}, Transports: thenAndNow},
		Values: slices.Concat(
			simulatedE(then, "env3", "view", result.Goodput, 1e6, 1), simulatedE(then, "env3", "heavy", result.Goodput, 1e6, 1),
			simulatedE(then, "env2", "heavy", result.Goodput, 1e6, 1), simulatedE(then, "env4", "heavy", result.Goodput, 1e6, 1),
			simulatedE("", "env3", "view", result.Goodput, 1e6, 1), simulatedE("", "env3", "heavy", result.Goodput, 1e6, 1),
		),
		Claims: slices.Concat(
			fastestVegas("view"), fastestVegas("heavy"),
			belowOthers("env2", "heavy", result.Goodput, "throughput"), belowOthers("env4", "heavy", result.Goodput, "throughput"),
			[]scenario.Expectation{{
				Name: "Vegas and NewReno differ in env4, heavy", Metric: result.Goodput, Case: "env4", Traffic: "heavy",
				Transport: controls[2] + then, Stat: mean, Relative: transportPrefix + controls[1] + then, AtMost: bound(0.95),
			}},
		),
		Because: "NewReno and Vegas are equal in environment 4. Vegas is the fastest with the MPTCP of the paper's hosts, which sends on the path with the lowest round-trip time first, and the receive buffer with which sockets begin: the others fill a queue with all that the receiver allows, and leave nothing for other paths. With Linux' scheduler of today it is not.",
		See:     "../scenarios/webqoe-controls",
	},
	{
		ID: "E6", Title: "Fig. 5 to 8, throughput, satisfaction and load",
		Published: "lower where links are congested",
		Scenario:  "webqoe-load", Backend: result.BackendLab, Kernel: "docs/measured/webqoe-load.json",
		Cells: scenario.Selection{Cases: loads, Transports: []string{"tcp", "lia"}},
		Values: []Value{
			{Text: "load 0, 0.5, 0.7, 0.8, 0.9, 0.95 of each link: TCP waits %s s", Cases: loads, Transport: "tcp", Metric: result.Waiting, Digits: 2},
			{Text: "LIA %s", Cases: loads, Transport: "lia", Metric: result.Waiting, Digits: 2},
			{Text: "satisfaction by a model: TCP %s", Cases: loads, Transport: "tcp", Metric: result.EstimatedMOS, Digits: 1},
			{Text: "LIA %s", Cases: loads, Transport: "lia", Metric: result.EstimatedMOS, Digits: 1},
		},
		Claims: []scenario.Expectation{
			{Name: "Load makes TCP wait", Metric: result.Waiting, Case: "e1-95", Traffic: "map", Transport: "tcp", Relative: "case:e1-0", AtLeast: bound(1.5)},
			{Name: "Load makes LIA wait", Metric: result.Waiting, Case: "e1-95", Traffic: "map", Transport: "lia", Relative: "case:e1-0", AtLeast: bound(1.5)},
			{Name: "Load leaves the path of TCP less", Metric: result.PathThroughput, Case: "e1-95", Traffic: "map", Transport: "tcp", Relative: "case:e1-0", AtMost: bound(0.7)},
			{Name: "Load leaves the paths of LIA less", Metric: result.PathThroughput, Case: "e1-95", Traffic: "map", Transport: "lia", Relative: "case:e1-0", AtMost: bound(0.7)},
		},
		Because: "Satisfaction takes people; ours is that of a model.",
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
