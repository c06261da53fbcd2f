package papers

import (
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// bound returns a bound of a claim.
func bound(v float64) *float64 { return &v }

// mean is the statistic of paper B.
const mean = "mean"

// ofB returns a value of paper B: the mean over 12 seeds.
func ofB(text, transport, metric string, divide float64, digits int, cases ...string) Value {
	return Value{Text: text, Cases: cases, Transport: transport, Metric: metric, Stat: mean, Divide: divide, Digits: digits}
}

// kernelB returns a value of paper B on the kernel, whose scheduler is another one.
func kernelB(text, transport, metric string, divide float64, digits int, cases ...string) Value {
	v := ofB(text, transport, metric, divide, digits, cases...)
	v.Kernel = true
	return v
}

// simB returns a figure of paper B that the simulator reproduces with these transports, beside the
// kernel's.
func simB(f Figure, name string, transports ...string) Figure {
	f.Scenario, f.Backend, f.See = name, result.BackendSim, "../scenarios/"+name
	f.Kernel = "docs/measured/" + name + ".json"
	f.InLab = map[string]string{"ns2": "mptcp", "program": "mptcp", "program-260": "mptcp-260", "ahead": "mptcp", "ahead-260": "mptcp-260"}
	f.Cells.Transports = transports
	return f
}

var paperB = []Figure{
	{
		ID: "B2", Title: "Fig. 2, proxies that speak MPTCP between sites",
		Published: "proposed, not measured",
		Command:   "tabane lab run proxy-sites",
		Ours:      "`tabane proxy`; what it carries is in its page", Verdict: NotTested,
		Because: "The paper has no value to compare with.",
		See:     "proxy.md",
	},
	simB(Figure{
		ID: "B9", Title: "Fig. 9, throughput and the delay of path 2",
		Published: "near the sum of the rates, less the more the delays differ; the same before and after resequencing",
		Values: []Value{
			ofB("%s of the sum at 20, 50, 100 ms", "ns2", result.ThroughputAfter, 0, 3, "d20", "d50", "d100"),
			kernelB("on the kernel %s", "mptcp", result.ThroughputAfter, 0, 3, "d20", "d50", "d100"),
		},
		Claims: []scenario.Expectation{
			{Name: "Equal paths come near the sum", Metric: result.ThroughputAfter, Case: "d20", Transport: "ns2", Stat: mean, AtLeast: bound(0.9)},
			{Name: "A path that is 30 ms longer costs some of it", Metric: result.ThroughputAfter, Case: "d50", Transport: "ns2", Stat: mean, Relative: "case:d20", AtLeast: bound(0.8), AtMost: bound(0.99)},
			{Name: "One that is 80 ms longer costs more", Metric: result.ThroughputAfter, Case: "d100", Transport: "ns2", Stat: mean, Relative: "case:d50", AtMost: bound(0.99)},
			{Name: "Resequencing itself costs nothing", Metric: result.ThroughputAfter, Transport: "ns2", Stat: mean, Relative: result.ThroughputBefore, AtLeast: bound(0.99)},
		},
		Because: "At 100 ms a window of 53.6 kB carries at most 1.95 Mbit/s of path 2's 5 in a round trip of 220 ms, so no more than 0.7 of the sum; the paper, too, names the window as the cause.",
	}, "reseq-delay", "ns2", "mptcp"),
	simB(Figure{
		ID: "B10", Title: "Fig. 10, throughput and the rate of path 2",
		Published: "near the sum of the rates, less the more the rates differ; the same before and after resequencing",
		Values: []Value{
			ofB("%s of the sum at 2, 5, 10 Mbit/s", "ns2", result.ThroughputAfter, 0, 3, "r2", "r5", "r10"),
			kernelB("on the kernel %s", "mptcp", result.ThroughputAfter, 0, 3, "r2", "r5", "r10"),
		},
		Claims: []scenario.Expectation{
			{Name: "Equal paths come near the sum", Metric: result.ThroughputAfter, Case: "r5", Transport: "ns2", Stat: mean, AtLeast: bound(0.9)},
			{Name: "A slower path brings no more of it", Metric: result.ThroughputAfter, Case: "r2", Transport: "ns2", Stat: mean, Relative: "case:r5", AtLeast: bound(0.9), AtMost: bound(1)},
			{Name: "A faster path brings less of it", Metric: result.ThroughputAfter, Case: "r10", Transport: "ns2", Stat: mean, Relative: "case:r5", AtMost: bound(0.99)},
			{Name: "Resequencing itself costs nothing", Metric: result.ThroughputAfter, Transport: "ns2", Stat: mean, Relative: result.ThroughputBefore, AtLeast: bound(0.99)},
		},
	}, "reseq-rate", "ns2", "mptcp"),
	simB(Figure{
		ID: "B11", Title: "Fig. 11, the longest burst and the delay of path 2",
		Published: "grows with the difference of the delays; nearly 90 segments at 100 ms (Fig. 13)",
		Values: []Value{
			ofB("%s segments at 20, 50, 100 ms", "ns2", result.BurstMax, 0, 0, "d20", "d50", "d100"),
			kernelB("on the kernel %s", "mptcp", result.BurstMax, 0, 0, "d20", "d50", "d100"),
		},
		Claims: []scenario.Expectation{
			{Name: "30 ms more make longer bursts", Metric: result.BurstMax, Case: "d50", Transport: "ns2", Stat: mean, Relative: "case:d20", AtLeast: bound(1.01)},
			{Name: "80 ms more make even longer ones", Metric: result.BurstMax, Case: "d100", Transport: "ns2", Stat: mean, Relative: "case:d50", AtLeast: bound(1.01)},
			{Name: "The longest has nearly 90 segments", Metric: result.BurstMax, Case: "d100", Transport: "ns2", Stat: mean, AtLeast: bound(85), AtMost: bound(90.5)},
		},
	}, "reseq-delay", "ns2", "mptcp"),
	simB(Figure{
		ID: "B12", Title: "Fig. 12, the longest burst and the rate of path 2",
		Published: "grows with the difference of the rates",
		Values: []Value{
			ofB("%s segments at 2, 5, 10 Mbit/s", "ns2", result.BurstMax, 0, 0, "r2", "r5", "r10"),
			kernelB("on the kernel %s", "mptcp", result.BurstMax, 0, 0, "r2", "r5", "r10"),
		},
		Claims: []scenario.Expectation{
			{Name: "A slower path makes longer bursts", Metric: result.BurstMax, Case: "r2", Transport: "ns2", Stat: mean, Relative: "case:r5", AtLeast: bound(1.01)},
			{Name: "A faster path makes longer bursts", Metric: result.BurstMax, Case: "r10", Transport: "ns2", Stat: mean, Relative: "case:r5", AtLeast: bound(1.01)},
		},
	}, "reseq-rate", "ns2", "mptcp"),
	simB(Figure{
		ID: "B13", Title: "Fig. 13 and 14, bursts over time",
		Published: "a first burst of nearly 90 segments; after 3 s about 50 about every 0.2 s, otherwise at most 2",
		Values: []Value{
			ofB("%s segments", "ns2", result.BurstFirst, 0, 0, "d100"),
			ofB("then %s", "ns2", result.BurstLarge, 0, 0, "d100"),
			ofB("every %s s", "ns2", result.BurstPeriod, 0, 3, "d100"),
			ofB("otherwise %s", "ns2", result.BurstSmall, 0, 0, "d100"),
			kernelB("on the kernel %s", "mptcp", result.BurstFirst, 0, 0, "d100"),
			kernelB("then %s", "mptcp", result.BurstLarge, 0, 0, "d100"),
			kernelB("every %s s", "mptcp", result.BurstPeriod, 0, 3, "d100"),
		},
		Claims: []scenario.Expectation{
			{Name: "The first burst has nearly 90 segments", Metric: result.BurstFirst, Transport: "ns2", AtLeast: bound(85), AtMost: bound(90.5)},
			{Name: "Later ones have about 50", Metric: result.BurstLarge, Transport: "ns2", AtLeast: bound(45), AtMost: bound(55)},
			{Name: "They come about every 0.2 s", Metric: result.BurstPeriod, Transport: "ns2", AtLeast: bound(0.175), AtMost: bound(0.225)},
			{Name: "Others have at most 2", Metric: result.BurstSmall, Transport: "ns2", AtMost: bound(2)},
		},
	}, "reseq-burst", "ns2", "mptcp").in("d100"),
	simB(Figure{
		ID: "B15", Title: "Fig. 15, throughput and the buffer, no loss",
		Published: "65 kB are too small; above, the throughput is constant",
		Values: []Value{
			ofB("%s of the sum with 65, 130, 260, 1000 kB and no limit", "program", result.ThroughputAfter, 0, 3, "p0-65", "p0-130", "p0-260", "p0-1000", "p0-unlimited"),
			kernelB("on the kernel %s", "mptcp", result.ThroughputAfter, 0, 3, "p0-65", "p0-130", "p0-260", "p0-1000", "p0-unlimited"),
		},
		Claims: []scenario.Expectation{
			{Name: "65 kB are too small", Metric: result.ThroughputAfter, Case: "p0-65", Transport: "program", Stat: mean, Relative: "case:p0-unlimited", AtMost: bound(0.9)},
			{Name: "From 130 kB on the throughput is constant", Metric: result.ThroughputAfter, Case: "p0-*0*", Transport: "program", Stat: mean, Relative: "case:p0-unlimited", AtLeast: bound(0.99), AtMost: bound(1.01)},
		},
	}, "reseq-buffer", "program", "mptcp").in("p0-*"),
	simB(Figure{
		ID: "B16", Title: "Fig. 16, delay and the buffer, no loss",
		Published: "65 kB delay more; above, the delay is constant",
		Values: []Value{
			ofB("%s ms with 65, 130, 260, 1000 kB and no limit", "program", result.ReseqDelayMean, 0.001, 2, "p0-65", "p0-130", "p0-260", "p0-1000", "p0-unlimited"),
			kernelB("on the kernel %s", "mptcp", result.ReseqDelayMean, 0.001, 2, "p0-65", "p0-130", "p0-260", "p0-1000", "p0-unlimited"),
		},
		Claims: []scenario.Expectation{
			{Name: "65 kB delay more than 130", Metric: result.ReseqDelayMean, Case: "p0-65", Transport: "program", Stat: mean, Relative: "case:p0-130", AtLeast: bound(2)},
			{Name: "From 130 kB on the delay is below 0.1 ms", Metric: result.ReseqDelayMean, Case: "p0-*0*", Transport: "program", Stat: mean, AtMost: bound(0.0001)},
		},
	}, "reseq-buffer", "program", "mptcp").in("p0-*"),
	simB(Figure{
		ID: "B17", Title: "Fig. 17, throughput and the buffer, loss 1e-4",
		Published: "the throughput is there from 130 kB on",
		Values: []Value{
			ofB("%s of the sum with 65, 130, 260, 1000 kB and no limit", "program", result.ThroughputAfter, 0, 3, "p1e-4-65", "p1e-4-130", "p1e-4-260", "p1e-4-1000", "p1e-4-unlimited"),
			kernelB("on the kernel %s", "mptcp", result.ThroughputAfter, 0, 3, "p1e-4-65", "p1e-4-130", "p1e-4-260", "p1e-4-1000", "p1e-4-unlimited"),
		},
		Claims: []scenario.Expectation{
			{Name: "65 kB are too small", Metric: result.ThroughputAfter, Case: "p1e-4-65", Transport: "program", Stat: mean, Relative: "case:p1e-4-unlimited", AtMost: bound(0.9)},
			{Name: "From 130 kB on the throughput is there", Metric: result.ThroughputAfter, Case: "p1e-4-*0*", Transport: "program", Stat: mean, Relative: "case:p1e-4-unlimited", AtLeast: bound(0.97)},
		},
	}, "reseq-buffer", "program", "mptcp").in("p1e-4-*"),
	simB(Figure{
		ID: "B18", Title: "Fig. 18, delay and the buffer, loss 1e-4",
		Published: "the delay grows beyond 1000 kB",
		Values: []Value{
			ofB("%s ms with 130, 260, 520, 1000, 2000, 4000 kB", "program", result.ReseqDelayMean, 0.001, 1, "p1e-4-130", "p1e-4-260", "p1e-4-520", "p1e-4-1000", "p1e-4-2000", "p1e-4-4000"),
			kernelB("on the kernel %s", "mptcp", result.ReseqDelayMean, 0.001, 1, "p1e-4-130", "p1e-4-260", "p1e-4-520", "p1e-4-1000", "p1e-4-2000", "p1e-4-4000"),
		},
		Claims: []scenario.Expectation{
			{Name: "The delay grows beyond 1000 kB", Metric: result.ReseqDelayMean, Case: "p1e-4-2000", Transport: "program", Stat: mean, Relative: "case:p1e-4-1000", AtLeast: bound(1.2)},
			{Name: "Some hundred kB delay far less", Metric: result.ReseqDelayMean, Case: "p1e-4-260", Transport: "program", Stat: mean, Relative: "case:p1e-4-2000", AtMost: bound(0.5)},
		},
	}, "reseq-buffer", "program", "mptcp").in("p1e-4-*"),
	simB(Figure{
		ID: "B19", Title: "Fig. 19, throughput and the loss of path 2",
		Published: "no limit and 260 kB are equal below 2e-4; above 5e-4 no limit carries more",
		Values: []Value{
			ofB("assigned by the paper's program, no limit: %s of the sum at 1e-4, 2e-4, 1e-3, 1e-2", "program", result.ThroughputAfter, 0, 3, "p1e-4", "p2e-4", "p1e-3", "p1e-2"),
			ofB("260 kB: %s", "program-260", result.ThroughputAfter, 0, 3, "p1e-4", "p2e-4", "p1e-3", "p1e-2"),
			ofB("assigned ahead as by Linux, at 1e-2: %s", "ahead", result.ThroughputAfter, 0, 3, "p1e-2"),
			ofB("260 kB: %s", "ahead-260", result.ThroughputAfter, 0, 3, "p1e-2"),
			kernelB("on the kernel, no limit: %s", "mptcp", result.ThroughputAfter, 0, 3, "p1e-4", "p2e-4", "p1e-3", "p1e-2"),
			kernelB("260 kB: %s", "mptcp-260", result.ThroughputAfter, 0, 3, "p1e-4", "p2e-4", "p1e-3", "p1e-2"),
		},
		Claims: []scenario.Expectation{
			{Name: "Equal at 1e-4", Metric: result.ThroughputAfter, Case: "p1e-4", Transport: "program-260", Stat: mean, Relative: "transport:program", AtLeast: bound(0.97), AtMost: bound(1.03)},
			{Name: "Equal at 2e-4", Metric: result.ThroughputAfter, Case: "p2e-4", Transport: "program-260", Stat: mean, Relative: "transport:program", AtLeast: bound(0.97), AtMost: bound(1.03)},
			{Name: "At 1e-3 no limit carries more", Metric: result.ThroughputAfter, Case: "p1e-3", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(1.02)},
			{Name: "At 1e-2 no limit carries more", Metric: result.ThroughputAfter, Case: "p1e-2", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(1.02)},
			{Name: "Assigned ahead, no limit carries more at 1e-2", Metric: result.ThroughputAfter, Case: "p1e-2", Transport: "ahead", Stat: mean, Relative: "transport:ahead-260", AtLeast: bound(1.02)},
		},
		Because: "At high losses a large buffer helps only a scheduler that assigns data to the lossy path long before it is sent, as Linux' does; the paper's program as it was published does not, in recovery, on the other path.",
	}, "reseq-loss", "program", "program-260", "ahead", "ahead-260", "mptcp", "mptcp-260"),
	simB(Figure{
		ID: "B20", Title: "Fig. 20, the longest burst and the loss of path 2",
		Published: "far longer without a limit",
		Values: []Value{
			ofB("no limit: %s segments at 1e-4, 5e-4, 1e-3, 1e-2", "program", result.BurstMax, 0, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			ofB("260 kB: %s", "program-260", result.BurstMax, 0, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			ofB("assigned ahead as by Linux, no limit: %s", "ahead", result.BurstMax, 0, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			ofB("260 kB: %s", "ahead-260", result.BurstMax, 0, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			kernelB("on the kernel, no limit: %s", "mptcp", result.BurstMax, 0, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			kernelB("260 kB: %s", "mptcp-260", result.BurstMax, 0, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
		},
		Claims: []scenario.Expectation{
			{Name: "At 5e-4 bursts are far longer without a limit", Metric: result.BurstMax, Case: "p5e-4", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(3)},
			{Name: "And at 1e-3", Metric: result.BurstMax, Case: "p1e-3", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(3)},
			{Name: "And at 1e-2", Metric: result.BurstMax, Case: "p1e-2", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(3)},
		},
		Because: "On the kernel as in the simulator with its scheduler: data that is assigned to a path ahead waits there with a buffer of 260 kB, too.",
	}, "reseq-loss", "program", "program-260", "ahead", "ahead-260", "mptcp", "mptcp-260"),
	simB(Figure{
		ID: "B21", Title: "Fig. 21, mean delay and the loss of path 2",
		Published: "far longer without a limit",
		Values: []Value{
			ofB("no limit: %s ms at 1e-4, 5e-4, 1e-3, 1e-2", "program", result.ReseqDelayMean, 0.001, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			ofB("260 kB: %s", "program-260", result.ReseqDelayMean, 0.001, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			ofB("assigned ahead as by Linux, no limit: %s", "ahead", result.ReseqDelayMean, 0.001, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			ofB("260 kB: %s", "ahead-260", result.ReseqDelayMean, 0.001, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			kernelB("on the kernel, no limit: %s", "mptcp", result.ReseqDelayMean, 0.001, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
			kernelB("260 kB: %s", "mptcp-260", result.ReseqDelayMean, 0.001, 0, "p1e-4", "p5e-4", "p1e-3", "p1e-2"),
		},
		Claims: []scenario.Expectation{
			{Name: "At 5e-4 the delay is far longer without a limit", Metric: result.ReseqDelayMean, Case: "p5e-4", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(3)},
			{Name: "And at 1e-3", Metric: result.ReseqDelayMean, Case: "p1e-3", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(3)},
			{Name: "And at 1e-2", Metric: result.ReseqDelayMean, Case: "p1e-2", Transport: "program", Stat: mean, Relative: "transport:program-260", AtLeast: bound(3)},
		},
		Because: "On the kernel as in the simulator with its scheduler: data that is assigned to a path ahead waits there with a buffer of 260 kB, too.",
	}, "reseq-loss", "program", "program-260", "ahead", "ahead-260", "mptcp", "mptcp-260"),
	{
		ID: "Bs5", Title: "section 5, a more exact simulator, and Linux",
		Published: "left for later",
		Command:   "tabane sim validate",
		Ours:      "the simulator beside theory, another simulator and the kernel", Verdict: NotTested,
		Because: "The paper has no value to compare with.",
		See:     "validation.md",
	},
}

// in returns the figure with these cases alone.
func (f Figure) in(cases ...string) Figure {
	f.Cells.Cases = cases
	return f
}
