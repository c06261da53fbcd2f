package papers

import (
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// jitters are the cases of shake-static and shake-unequal.
var jitters = []string{"j0", "j50", "j100", "j150", "j200"}

// ofD returns the goodput of a transport of paper D in kbit/s.
func ofD(text, transport string, cases ...string) Value {
	return Value{Text: text, Cases: cases, Transport: transport, Metric: result.Goodput, Divide: 1e3}
}

var paperD = []Figure{
	{
		ID: "D8", Title: "Fig. 8, throughput and the jitter of path 3",
		Published: "DQ and DQJ equal up to ±100 ms; from ±150 ms DQ collapses, DQJ holds about 700 kbit/s, as with two paths",
		Scenario:  "shake-static", Backend: result.BackendSim,
		Cells: scenario.Selection{Transports: []string{"path1-2006", "two-2006", "dq-2006", "dqj-2006", "dq", "dqj"}},
		Values: []Value{
			ofD("TCP of 2006, ±0 to ±200 ms: DQ %s kbit/s", "dq-2006", jitters...),
			ofD("DQJ %s", "dqj-2006", jitters...),
			ofD("today's TCP: DQ %s", "dq", jitters...),
			ofD("DQJ %s", "dqj", jitters...),
		},
		Claims: []scenario.Expectation{
			{Name: "At ±50 ms DQ has nearly three times one path", Metric: result.Goodput, Case: "j50", Transport: "dq-2006", Relative: "transport:path1-2006", AtLeast: bound(2.5)},
			{Name: "DQ and DQJ are equal at ±50 ms", Metric: result.Goodput, Case: "j50", Transport: "dqj-2006", Relative: "transport:dq-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
			{Name: "DQ and DQJ are equal at ±100 ms", Metric: result.Goodput, Case: "j100", Transport: "dqj-2006", Relative: "transport:dq-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
			{Name: "At ±200 ms DQJ has far more than DQ", Metric: result.Goodput, Case: "j200", Transport: "dqj-2006", Relative: "transport:dq-2006", AtLeast: bound(1.5)},
			{Name: "At ±200 ms DQJ has what two paths have", Metric: result.Goodput, Case: "j200", Transport: "dqj-2006", Relative: "transport:two-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
			{Name: "At ±200 ms DQJ has about 700 kbit/s", Metric: result.Goodput, Case: "j200", Transport: "dqj-2006", AtLeast: bound(6e5), AtMost: bound(8e5)},
		},
		Because: "Where packets of a path overtake each other, DQ = DQJ up to ±100 ms (638 and 642 kbit/s), then DQ falls to 575 and 557 and DQJ holds 642, two paths 648. In order DQ stays at 677. With RFC 6675, which does not adapt, three paths have less than one (199).",
		See:     "shake.md",
	},
	{
		ID: "D9", Title: "Fig. 9 and 10, duplicate acknowledgments at ±200 ms",
		Published: "three or more: DQ 10.71 %, DQJ 0.02 %",
		Scenario:  "shake-static", Backend: result.BackendSim,
		Cells: scenario.Selection{Cases: []string{"j200"}, Transports: []string{"dq-2006", "dqj-2006"}},
		Values: []Value{
			{Text: "events of three: DQ %s %%", Cases: []string{"j200"}, Transport: "dq-2006", Metric: result.TripleDuplicates, Stat: mean, Divide: 0.01, Digits: 2},
			{Text: "DQJ %s %%", Cases: []string{"j200"}, Transport: "dqj-2006", Metric: result.TripleDuplicates, Stat: mean, Divide: 0.01, Digits: 2},
		},
		Claims: []scenario.Expectation{
			{Name: "DQ has far more than DQJ", Metric: result.TripleDuplicates, Transport: "dq-2006", Stat: mean, Relative: "transport:dqj-2006", AtLeast: bound(2)},
			{Name: "DQJ has next to none", Metric: result.TripleDuplicates, Transport: "dqj-2006", Stat: mean, AtMost: bound(0.0005)},
		},
		Because: "Two paths with ±50 ms alone have 1.3 %. The advertised window shrinks as far as data is held, as published.",
		See:     "../scenarios/shake-static",
	},
	{
		ID: "D11", Title: "Fig. 11 to 13, changing jitter",
		Published: "DQ nearly stops, DQJ leaves path 3 at rest and uses it again; the estimate lags about 10 s",
		Scenario:  "shake-dynamic", Backend: result.BackendSim,
		Cells: scenario.Selection{Transports: []string{"two-2006", "dq-2006", "dqj-2006"}},
		Values: []Value{
			ofD("DQ %s kbit/s in all", "dq-2006", "table1"), ofD("DQJ %s", "dqj-2006", "table1"), ofD("two paths %s", "two-2006", "table1"),
		},
		Claims: []scenario.Expectation{
			{Name: "DQJ has more than DQ", Metric: result.Goodput, Transport: "dqj-2006", Relative: "transport:dq-2006", AtLeast: bound(1.2)},
			{Name: "DQ nearly stops", Metric: result.Goodput, Transport: "dq-2006", Relative: "transport:two-2006", AtMost: bound(0.4)},
		},
		Because: "DQ has 811 kbit/s at ±200 ms: a stop needs timeouts, and no run of ten has one. DQJ returns to path 3 after 20 s instead of 10; J is 2/3 of a uniform jitter, and 1.13 times a standard deviation.",
		See:     "../scenarios/shake-dynamic",
	},
	{
		ID: "D14", Title: "Fig. 14 to 16, unequal rates",
		Published: "at ±200 ms DQJ matches the 384 kbit/s path alone, DQ falls far below",
		Scenario:  "shake-unequal", Backend: result.BackendSim,
		Cells: scenario.Selection{Transports: []string{"path3-2006", "dq-2006", "dqj-2006"}},
		Values: []Value{
			ofD("±0 to ±200 ms: DQ %s kbit/s", "dq-2006", jitters...), ofD("DQJ %s", "dqj-2006", jitters...), ofD("path 3 alone %s", "path3-2006", jitters...),
		},
		Claims: []scenario.Expectation{
			{Name: "At ±200 ms DQ is far below path 3 alone", Metric: result.Goodput, Case: "j200", Transport: "dq-2006", Relative: "transport:path3-2006", AtMost: bound(0.7)},
			{Name: "At ±200 ms DQJ matches path 3 alone", Metric: result.Goodput, Case: "j200", Transport: "dqj-2006", Relative: "transport:path3-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
		},
		Because: "DQJ takes path 3 alone at ±200 ms (331, path 3 alone 315) if that is the standard deviation, as NIST Net has it: J is then what is set, above the rule's 188 ms; DQ has 492 there, more than path 3 alone.",
		See:     "../scenarios/shake-unequal",
	},
}
