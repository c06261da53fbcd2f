package papers

import (
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// environments are the cases of webqoe as in the paper.
var environments = []string{"env1", "env2", "env3", "env4"}

// ofE returns a metric of a service over a transport in all environments.
func ofE(text, service, transport, metric string, divide float64) Value {
	return Value{Text: text, Cases: environments, Traffic: service, Transport: transport, Metric: metric, Divide: divide, Digits: 2}
}

var paperE = []Figure{
	{
		ID: "E3", Title: "Fig. 3 and 4, congestion window",
		Published: "LIA smallest in environments 2 and 4",
		Scenario:  "webqoe", Backend: result.BackendLab, Kernel: "docs/measured/webqoe.json",
		Cells: scenario.Selection{Cases: environments, Transports: []string{"lia", "newreno", "vegas"}},
		Values: []Value{
			ofE("map, environments 1 to 4: LIA %s segments", "map", "lia", result.PathWindow, 0),
			ofE("NewReno %s", "map", "newreno", result.PathWindow, 0),
			ofE("Vegas %s", "map", "vegas", result.PathWindow, 0),
		},
		Claims: []scenario.Expectation{
			{Name: "Env. 2: LIA is below NewReno", Metric: result.PathWindow, Case: "env2", Transport: "lia", Relative: "transport:newreno", AtMost: bound(1)},
			{Name: "Env. 2: LIA is below Vegas", Metric: result.PathWindow, Case: "env2", Transport: "lia", Relative: "transport:vegas", AtMost: bound(1)},
			{Name: "Env. 4: LIA is below NewReno", Metric: result.PathWindow, Case: "env4", Transport: "lia", Relative: "transport:newreno", AtMost: bound(1)},
			{Name: "Env. 4: LIA is below Vegas", Metric: result.PathWindow, Case: "env4", Transport: "lia", Relative: "transport:vegas", AtMost: bound(1)},
		},
		Because: "Transfers of these pages over HTTP/1.1 are short: windows hardly leave slow start.",
		See:     "webqoe.md",
	},
	{
		ID: "E5", Title: "Fig. 5 and 6, throughput",
		Published: "Vegas by far the highest in environment 3",
		Scenario:  "webqoe", Backend: result.BackendLab, Kernel: "docs/measured/webqoe.json",
		Cells: scenario.Selection{Cases: environments, Transports: []string{"lia", "newreno", "vegas"}},
		Values: []Value{
			ofE("map, environments 1 to 4: LIA %s Mbit/s", "map", "lia", result.PathThroughput, 1e6),
			ofE("NewReno %s", "map", "newreno", result.PathThroughput, 1e6),
			ofE("Vegas %s", "map", "vegas", result.PathThroughput, 1e6),
		},
		Claims: []scenario.Expectation{
			{Name: "Env. 3: Vegas is above LIA", Metric: result.PathThroughput, Case: "env3", Transport: "vegas", Relative: "transport:lia", AtLeast: bound(1.05)},
			{Name: "Env. 3: Vegas is above NewReno", Metric: result.PathThroughput, Case: "env3", Transport: "vegas", Relative: "transport:newreno", AtLeast: bound(1.05)},
		},
		Because: "Transfers of these pages over HTTP/1.1 are short; over HTTP/2 (env3-h2) Vegas is highest.",
		See:     "webqoe.md",
	},
	{
		ID: "E7", Title: "Fig. 7 and 8, satisfaction",
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
