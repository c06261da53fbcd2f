package papers

import (
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// The cases of shake-static and shake-unequal: packets of a path in order, overtaking each other,
// and with the jitter as a standard deviation.
var (
	jitters    = []string{"j0", "j50", "j100", "j150", "j200"}
	overtaking = []string{"r0", "r50", "r100", "r150", "r200"}
	deviations = []string{"n0", "n50", "n100", "n150", "n200"}
)

// ofD returns the goodput of a transport of paper D in kbit/s.
func ofD(text, transport string, cases ...string) Value {
	return Value{Text: text, Cases: cases, Transport: transport, Metric: result.Goodput, Divide: 1e3}
}

var paperD = []Figure{
	{
		ID: "D8", Title: "Fig. 8, throughput and the jitter of path 3",
		Published: "three paths have nearly three times one; DQ and DQJ equal up to ±100 ms; from ±150 ms DQ collapses, DQJ holds about 700 kbit/s, as with two paths",
		Scenario:  "shake-static", Backend: result.BackendSim,
		Cells: scenario.Selection{
			Cases:      []string{"j*", "r*"},
			Transports: []string{"path1-2006", "two-2006", "dq-2006", "dqj-2006", "dq-rfc", "dqj-rfc", "dq-plain", "dqj-plain"},
		},
		Values: []Value{
			ofD("±0 to ±200 ms, packets of a path overtake each other: DQ %s kbit/s", "dq-2006", overtaking...),
			ofD("DQJ %s", "dqj-2006", overtaking...),
			ofD("two paths %s", "two-2006", "r200"),
			ofD("in order: DQ %s", "dq-2006", jitters...),
			ofD("DQJ %s", "dqj-2006", jitters...),
			ofD("without a threshold that adapts: DQ %s", "dq-rfc", jitters...),
			ofD("DQJ %s", "dqj-rfc", jitters...),
			ofD("today's TCP: DQ %s", "dq-plain", jitters...),
			ofD("DQJ %s", "dqj-plain", jitters...),
		},
		Claims: []scenario.Expectation{
			{Name: "At ±50 ms DQ has nearly three times one path", Metric: result.Goodput, Case: "j50", Transport: "dq-2006", Relative: "transport:path1-2006", AtLeast: bound(2.5)},
			{Name: "DQ and DQJ are equal at ±50 ms", Metric: result.Goodput, Case: "r50", Transport: "dqj-2006", Relative: "transport:dq-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
			{Name: "DQ and DQJ are equal at ±100 ms", Metric: result.Goodput, Case: "r100", Transport: "dqj-2006", Relative: "transport:dq-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
			{Name: "At ±150 ms DQ has less than two paths", Metric: result.Goodput, Case: "r150", Transport: "dq-2006", Relative: "transport:two-2006", AtMost: bound(0.95)},
			{Name: "At ±200 ms DQJ has far more than DQ", Metric: result.Goodput, Case: "r200", Transport: "dqj-2006", Relative: "transport:dq-2006", AtLeast: bound(1.5)},
			{Name: "At ±150 ms DQJ has what two paths have", Metric: result.Goodput, Case: "r150", Transport: "dqj-2006", Relative: "transport:two-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
			{Name: "At ±200 ms DQJ has what two paths have", Metric: result.Goodput, Case: "r200", Transport: "dqj-2006", Relative: "transport:two-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
			{Name: "At ±200 ms DQJ has about 700 kbit/s", Metric: result.Goodput, Case: "r200", Transport: "dqj-2006", AtLeast: bound(6e5), AtMost: bound(8e5)},
		},
		Because: "Three paths have 2.3 times one, because a window of 64 kB hardly fills them; DQ falls by a fifth and not below one path, because no run has a timeout. A TCP that does not adapt has less over three paths than over one.",
		See:     "shake.md",
	},
	{
		ID: "D9", Title: "Fig. 9 and 10, duplicate acknowledgments at ±200 ms",
		Published: "three or more: DQ 10.71 %, DQJ 0.02 %",
		Scenario:  "shake-static", Backend: result.BackendSim,
		Cells: scenario.Selection{Cases: []string{"j200"}, Transports: []string{"two-2006", "dq-2006", "dqj-2006"}},
		Values: []Value{
			{Text: "events of three: DQ %s %%", Cases: []string{"j200"}, Transport: "dq-2006", Metric: result.TripleDuplicates, Stat: mean, Divide: 0.01, Digits: 2},
			{Text: "DQJ %s %%", Cases: []string{"j200"}, Transport: "dqj-2006", Metric: result.TripleDuplicates, Stat: mean, Divide: 0.01, Digits: 2},
			{Text: "two paths %s %%", Cases: []string{"j200"}, Transport: "two-2006", Metric: result.TripleDuplicates, Stat: mean, Divide: 0.01, Digits: 2},
		},
		Claims: []scenario.Expectation{
			{Name: "DQ has far more than DQJ", Metric: result.TripleDuplicates, Transport: "dq-2006", Stat: mean, Relative: "transport:dqj-2006", AtLeast: bound(2)},
			{Name: "DQ has about a tenth", Metric: result.TripleDuplicates, Transport: "dq-2006", Stat: mean, AtLeast: bound(0.06), AtMost: bound(0.14)},
			{Name: "DQJ has next to none", Metric: result.TripleDuplicates, Transport: "dqj-2006", Stat: mean, AtMost: bound(0.0005)},
		},
		Because: "DQJ has as many as two paths with ±50 ms alone: their packets overtake each other as well.",
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
			{Name: "DQJ has no less than two paths", Metric: result.Goodput, Transport: "dqj-2006", Relative: "transport:two-2006", AtLeast: bound(1)},
			{Name: "DQ nearly stops", Metric: result.Goodput, Transport: "dq-2006", Relative: "transport:two-2006", AtMost: bound(0.4)},
		},
		Because: "A stop needs timeouts, and none of ten runs has one. The rule asks for a jitter below 62 ms, which RFC 3550's estimate reaches 20 s after the change.",
		See:     "../scenarios/shake-dynamic",
	},
	{
		ID: "D14", Title: "Fig. 14 to 16, unequal rates",
		Published: "near the sum (640 kbit/s) up to ±150 ms; at ±200 ms DQJ matches the 384 kbit/s path alone, DQ falls far below",
		Scenario:  "shake-unequal", Backend: result.BackendSim,
		Cells: scenario.Selection{Cases: []string{"j*", "n*"}, Transports: []string{"path3-2006", "dq-2006", "dqj-2006"}},
		Values: []Value{
			ofD("±0 to ±200 ms: DQ %s kbit/s", "dq-2006", jitters...), ofD("DQJ %s", "dqj-2006", jitters...),
			ofD("as a standard deviation: DQ %s", "dq-2006", deviations...), ofD("DQJ %s", "dqj-2006", deviations...), ofD("path 3 alone %s", "path3-2006", deviations...),
		},
		Claims: []scenario.Expectation{
			{Name: "Up to ±150 ms DQ is near the sum", Metric: result.Goodput, Case: "j150", Transport: "dq-2006", Relative: result.LimitRate, AtLeast: bound(0.85)},
			{Name: "Up to ±150 ms DQJ is near the sum", Metric: result.Goodput, Case: "j150", Transport: "dqj-2006", Relative: result.LimitRate, AtLeast: bound(0.85)},
			{Name: "At 200 ms DQ is far below path 3 alone", Metric: result.Goodput, Case: "n200", Transport: "dq-2006", Relative: "transport:path3-2006", AtMost: bound(0.7)},
			{Name: "At 200 ms DQJ matches path 3 alone", Metric: result.Goodput, Case: "n200", Transport: "dqj-2006", Relative: "transport:path3-2006", AtLeast: bound(0.9), AtMost: bound(1.1)},
		},
		Because: "The rule acts at 188 ms: RFC 3550's estimate of a uniform ±200 ms is 133 ms, that of a standard deviation of 200 ms, which NIST Net seems to have taken, is more. DQ undoes what it takes for losses wrongly, so it has more than path 3 alone.",
		See:     "../scenarios/shake-unequal",
	},
}
