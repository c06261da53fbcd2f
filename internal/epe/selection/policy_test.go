package selection

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPolicyNames(t *testing.T) {
	for i, name := range PolicyNames() {
		if p, ok := PolicyNamed(name); !ok || int(p) != i || p.String() != name {
			t.Errorf("policy %d, %q: %v, %v", i, name, p, ok)
		}
	}
	if p, ok := PolicyNamed("fast"); ok {
		t.Errorf("fast is %s", p)
	}
}

// shared returns terms with shares, in the order of the paths.
func shared(shares ...float64) func(int) Terms {
	return func(i int) Terms { return Terms{Listed: true, Share: shares[i]} }
}

// ordered returns terms in which path i has rank ranks[i] and a budget, unless that is 0.
func ordered(ranks []int, budgets ...float64) func(int) Terms {
	all := make([]*Budget, len(ranks))
	for i, rate := range budgets {
		if rate > 0 {
			all[i] = NewBudget(rate)
		}
	}
	return func(i int) Terms { return Terms{Listed: true, Rank: ranks[i], Budget: all[i]} }
}

// TestPropertyPolicies looks at random paths: with each policy one of them is open, and all are
// when an open one is silent.
func TestPropertyPolicies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Connection[int]{Policy: Policy(rapid.IntRange(0, len(byPolicy)-1).Draw(t, "policy"))}
		terms := make([]Terms, 4)
		for i := range terms {
			terms[i] = Terms{Listed: rapid.Bool().Draw(t, "listed"), Rank: i, Share: rapid.Float64Range(0, 5).Draw(t, "share")}
			if rapid.Bool().Draw(t, "budget") {
				terms[i].Budget = NewBudget(1e6)
			}
		}
		c.Terms = func(i int) Terms { return terms[i] }
		c.Recall = func(int) Past {
			return Past{Verdict: Stalled, Rest: time.Duration(rapid.IntRange(0, 5).Draw(t, "rest")) * time.Second}
		}
		delivered := make([]uint32, len(terms))
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			now += time.Duration(rapid.IntRange(1, 1000).Draw(t, "ms")) * time.Millisecond
			var samples []Sample[int]
			for i := range delivered {
				if rapid.IntRange(0, 3).Draw(t, "absent") == 0 {
					continue
				}
				delivered[i] += uint32(rapid.IntRange(0, 1000).Draw(t, "delivered"))
				samples = append(samples, Sample[int]{
					Path: i, Delivered: delivered[i], Segment: 1400, Cwnd: 10, InFlight: rapid.IntRange(0, 10).Draw(t, "flight"),
					SRTT: 10 * time.Millisecond, MinRTT: 10 * time.Millisecond, Silence: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 200}).Draw(t, "silence")) * time.Millisecond,
				})
			}
			c.Update(now, samples)
			open := func(s Sample[int]) bool { return c.Reason(s.Path).Open() }
			if len(samples) > 0 && !slices.ContainsFunc(samples, open) {
				t.Fatalf("%s: none of %d paths is open", c.Policy, len(samples))
			}
			silent := func(s Sample[int]) bool { return s.Silence > 0 && c.Reason(s.Path) != Failover && open(s) }
			if byPolicy[c.Policy].algorithm != bySaturation && slices.ContainsFunc(samples, silent) && slices.ContainsFunc(samples, func(s Sample[int]) bool { return !open(s) }) {
				t.Fatalf("%s: an open path is silent, and another one rests", c.Policy)
			}
		}
	})
}

// part is the share of a path in what all carried since some time.
func (m *model) part(i int, since []float64) float64 {
	sum := 0.0
	for j, d := range m.delivered {
		sum += d - since[j]
	}
	return (m.delivered[i] - since[i]) / sum
}

// TestRatio: the shares are those of the policy for a bulk load, where the path with the least rate
// for its share bounds the sum, and for a stream, also when they follow other shares, and a path
// comes back.
func TestRatio(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		load        float64
		shares      []float64
		want, least float64 // share of the first, rate
	}{
		"bulk 80:20":       {1e12, []float64{80, 20}, 0.8, 59 * mbit},
		"bulk 20:80":       {1e12, []float64{1, 4}, 0.2, 59 * mbit},
		"stream 80:20":     {20 * mbit, []float64{80, 20}, 0.8, 19.9 * mbit},
		"stream 50:50":     {20 * mbit, []float64{1, 1}, 0.5, 19.9 * mbit},
		"stream over one":  {20 * mbit, []float64{1, 0}, 1, 19.9 * mbit},
		"bulk, second one": {1e12, []float64{0, 1}, 0, 49 * mbit},
	} {
		m := newModel(16e6, road{50 * mbit, 10 * ms}, road{50 * mbit, 10 * ms})
		m.c.Policy, m.c.Terms = Ratio, shared(tt.shares...)
		m.run(tt.load, time.Second)
		since := slices.Clone(m.delivered)
		rate := m.run(tt.load, 10*time.Second)
		if got := m.part(0, since); math.Abs(got-tt.want) > 0.01 || rate < tt.least {
			t.Errorf("%s: share %.3f, want %.2f; %.1f Mbit/s", name, got, tt.want, rate/mbit)
		}
	}
	// A path that was not there does not make up for it.
	m := newModel(16e6, road{50 * mbit, 10 * ms}, road{50 * mbit, 10 * ms})
	m.c.Policy, m.c.Terms = Ratio, shared(1, 1)
	m.run(20*mbit, time.Second)
	gone := []Sample[int]{{Path: 0, Segment: 1400, Cwnd: 100, InFlight: 1}}
	for range 50 {
		m.now += Interval
		m.delivered[0] += 20 * mbit * Interval.Seconds()
		gone[0].Delivered = uint32(m.delivered[0] / 1400)
		m.c.Update(m.now, gone)
	}
	since := slices.Clone(m.delivered)
	m.run(20*mbit, 2*time.Second)
	if got := m.part(0, since); math.Abs(got-0.5) > 0.05 {
		t.Errorf("after a path came back the share of the other is %.3f", got)
	}
}

// TestCost: the cheap path carries all up to its commit rate and no more than that, whatever it
// could, and the next one the rest. Two connections share a budget.
func TestCost(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		load, commit, rate float64 // rate of the cheap path
		carried, cheap     float64
	}{
		// The model's scheduler gives all to the expensive path while that is open.
		"below the commit rate":            {8 * mbit, 10 * mbit, 50 * mbit, 8 * mbit, 8 * mbit},
		"above it":                         {30 * mbit, 10 * mbit, 50 * mbit, 30 * mbit, 10 * mbit},
		"bulk":                             {1e12, 10 * mbit, 50 * mbit, 52 * mbit, 10 * mbit},
		"cheap path slower than it":        {15 * mbit, 30 * mbit, 10 * mbit, 11.2 * mbit, 7.5 * mbit},
		"bulk, cheap path slower than it":  {1e12, 30 * mbit, 10 * mbit, 60 * mbit, 10 * mbit},
		"less than a slow cheap path":      {8 * mbit, 30 * mbit, 10 * mbit, 8 * mbit, 8 * mbit},
		"no commit rate: only what it can": {20 * mbit, 0, 50 * mbit, 20 * mbit, 20 * mbit},
	} {
		// The expensive path is BGP's best.
		m := newModel(16e6, road{50 * mbit, 10 * ms}, road{tt.rate, 40 * ms})
		m.c.Policy, m.c.Terms = Cost, ordered([]int{1, 0}, 0, tt.commit)
		m.run(tt.load, 3*time.Second)
		since := slices.Clone(m.delivered)
		carried := m.run(tt.load, 20*time.Second)
		cheap := (m.delivered[1] - since[1]) / 20
		if math.Abs(carried/tt.carried-1) > 0.05 || math.Abs(cheap/tt.cheap-1) > 0.06 {
			t.Errorf("%s: carried %.2f Mbit/s, want %.1f; the cheap path %.2f, want %.1f", name, carried/mbit, tt.carried/mbit, cheap/mbit, tt.cheap/mbit)
		}
	}
	budget := NewBudget(10 * mbit)
	terms := func(i int) Terms {
		if i == 1 {
			return Terms{Listed: true, Budget: budget}
		}
		return Terms{Listed: true, Rank: 1}
	}
	var both [2]*model
	for i := range both {
		both[i] = newModel(16e6, road{50 * mbit, 10 * ms}, road{50 * mbit, 40 * ms})
		both[i].c.Policy, both[i].c.Terms, both[i].c.Start = Cost, terms, time.Duration(i)*Interval/2
	}
	for range 500 {
		both[0].run(10*mbit, Interval)
		both[1].run(10*mbit, Interval)
	}
	if got := (both[0].delivered[1] + both[1].delivered[1]) / 20; math.Abs(got/(10*mbit)-1) > 0.1 {
		t.Errorf("two connections have %.2f Mbit/s of a budget of 10", got/mbit)
	}
}

// TestStalledCost: a cheap path that stalled in an earlier connection is not the first, and is used
// when its rest is over.
func TestStalledCost(t *testing.T) {
	m := newModel(16e6, road{50 * mbit, 10 * time.Millisecond}, road{50 * mbit, 40 * time.Millisecond})
	m.c.Policy, m.c.Terms = Cost, ordered([]int{1, 0})
	m.c.Recall = func(i int) Past {
		if i == 0 {
			return Past{}
		}
		return Past{Verdict: Stalled, Rests: 1, Rest: restFirst, Left: rememberFor}
	}
	m.run(5*mbit, restFirst-Interval)
	if r := m.c.Reason(1); r != Stalled || m.delivered[1] > 0 {
		t.Errorf("the cheap path is %s", r)
	}
	m.run(5*mbit, time.Second)
	if r := m.c.Reason(1); r != First {
		t.Errorf("after its rest the cheap path is %s", r)
	}
}

// TestSteady: a stream stays on the first path, spills over soon after that is too slow, and does
// not come back at once when it could.
func TestSteady(t *testing.T) {
	const ms = time.Millisecond
	m := newModel(16e6, road{50 * mbit, 20 * ms}, road{20 * mbit, 80 * ms}, road{5 * mbit, 300 * ms})
	m.c.Policy = Steady
	m.run(25*mbit, 10*time.Second)
	if m.open[1] > 0 || m.open[2] > 0 {
		t.Errorf("the others were open for %s and %s", m.open[1], m.open[2])
	}
	m.roads[0].rate = 15 * mbit
	m.run(25*mbit, 200*ms)
	if r := m.c.Reason(1); r != Overflow {
		t.Errorf("the second path is %s", r)
	}
	m.run(25*mbit, 5*time.Second)
	if m.open[2] > 0 {
		t.Errorf("the third was open for %s", m.open[2])
	}
	m.roads[0].rate = 50 * mbit
	m.run(25*mbit, steadyIdle-time.Second)
	if r := m.c.Reason(1); r != Overflow {
		t.Errorf("the second path is %s soon after", r)
	}
	m.run(25*mbit, 3*time.Second)
	if r := m.c.Reason(1); r != Unused {
		t.Errorf("the second path is %s later", r)
	}
}

// TestLatency: a further path opens in a transfer that lasts for longer than its delay, and rests
// when that is over. It never does for shorter ones.
func TestLatency(t *testing.T) {
	const ms = time.Millisecond
	m := newModel(16e6, road{20 * mbit, 20 * ms}, road{20 * mbit, 80 * ms}, road{5 * mbit, 300 * ms})
	m.c.Policy = Latency
	for range 20 {
		m.run(1e12, 80*ms)
		m.run(0, 80*ms)
	}
	if m.open[1] > 0 {
		t.Errorf("the second path was open for %s in short transfers", m.open[1])
	}
	for range 20 {
		m.run(1e12, 600*ms)
		m.run(0, 120*ms)
		if r := m.c.Reason(1); r.Open() {
			t.Fatalf("the second path is %s after a transfer", r)
		}
	}
	if m.open[1] < 3*time.Second || m.open[2] > 0 {
		t.Errorf("in longer transfers the others were open for %s and %s", m.open[1], m.open[2])
	}
}

// TestReasonsAreDocumented: docs/policies.md explains each reason.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range reasons {
		if !strings.Contains(string(text), "\n| `"+name+"` |") {
			t.Errorf("docs/policies.md does not explain %q", name)
		}
	}
}
