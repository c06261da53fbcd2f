package validate

import (
	"fmt"
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/sim"
)

// The connections of both of Khalili's scenarios: ten of each kind, a megabit for each.
const (
	users    = 10
	capacity = users * unit.MbitPerSecond
)

// fixedPoints compares scenarios A and C of Khalili et al. with their analysis.
func fixedPoints(b *bench, o Options) func() Part {
	runs, warm, duration := length(o)
	kinds := []struct {
		name, what string
		through    bool
		// theory is the share of its fair rate that a TCP gets beside LIA.
		theory float64
	}{
		{"A", "a second path that gains nothing", true, root(func(z float64) float64 { return z + z*z/(1+2*z*z) })},
		{"C", "a second path that others need", false, lingering(root(func(z float64) float64 { return z*z*z + z*z + z }))},
	}
	got := map[string][]*sample{}
	for _, k := range kinds {
		for _, c := range everything {
			var own, tcps []measure
			for i := range users {
				own = append(own, sum(arrived(i, 0, warm, duration), arrived(i, 1, warm, duration)))
				tcps = append(tcps, arrived(users+i, 0, warm, duration))
			}
			got[k.name+c] = b.repeat(runs, func(seed uint64) sim.Config { return khalili(seed, c, duration, k.through) }, mean(own...), mean(tcps...))
		}
	}
	third := upgrade(b, o)
	// The payload of one megabit.
	fair := megabits(float64(capacity)/8*payload/(payload+header), time.Second) / users
	return func() Part {
		p := Part{
			Title: "LIA, OLIA and BALIA where they are known to differ",
			Question: `Khalili et al. (MPTCP is not Pareto-Optimal, CoNEXT 2012) found three settings in which LIA takes from others what it gains nothing by. Does the
simulator show what their analysis and their testbed show?`,
			Method: `Ten MPTCP connections and ten TCPs (NewReno), a megabit per second for each, a round trip time of 80 ms without queues, the queues of their testbed.
Scenario A: all MPTCP connections come from a server with 10 Mbit/s; a second path of theirs leads from there over the link of the TCPs as well, so they
cannot gain by it. Scenario C: the first paths have a link of 10 Mbit/s of their own, the second ones share the TCPs' link. The balance of LIA's increases
and decreases gives its fixed point, with z = √(p₁/p₂). In A, z + z²/(1 + 2z²) = 1, and a TCP gets z of its share. In C, z³ + z² + z = 1, and it gets z(1 + z²). This
is their analysis, with as many connections and as much capacity on each side. An optimal
control would leave the TCPs everything but what probing costs.

Scenario B: 15 blue users with MPTCP have a path through the provider X, with 27 Mbit/s, and one through T, with 36. 15 red users have one through T, with
a TCP. They upgrade to MPTCP: their second path leads through X, and from there through T as well. So it only takes from X, and nobody can gain. The fixed
point of LIA: a user gets in all what a TCP would on the best path, and on each path in proportion to 1/p; of b for a blue user and zb for a red one,
z = √(pX/pT), X and T are full at z = 0.646 before and 0.813 after. Changes are of the same seed before and after.`,
		}
		for _, k := range kinds {
			t := Table{Caption: fmt.Sprintf("Scenario %s, %s; shares of %s Mbit/s of payload", k.name, k.what, digits(fair)),
				Head: []string{"control", "n", "MPTCP ± sd", "TCP ± sd", "theory for TCP", "within"}}
			share := map[string]float64{}
			for _, c := range everything {
				own, tcp := scaled(got[k.name+c][0], 1/fair), scaled(got[k.name+c][1], 1/fair)
				share[c] = tcp.mean()
				want, shown := "", "–"
				switch c {
				case "lia":
					want, shown = digits(k.theory), verdict(math.Abs(share[c]/k.theory-1) <= margin)
				case "olia":
					want, shown = "more than with LIA", verdict(share[c] > k.theory)
				case "balia":
					want = "between"
					shown = verdict(share[c] >= share["lia"] && share[c] <= share["olia"])
				}
				t.Rows = append(t.Rows, []string{label(c), fmt.Sprint(runs), own.String(), tcp.String(), want, shown})
			}
			p.Tables = append(p.Tables, t)
			p.Claims = append(p.Claims,
				Claim{Text: fmt.Sprintf("scenario %s: with LIA a TCP gets within %.0f %% of %s of its share", k.name, 100*margin, digits(k.theory)),
					Got: digits(share["lia"]), Holds: math.Abs(share["lia"]/k.theory-1) <= margin},
				Claim{Text: fmt.Sprintf("scenario %s: OLIA leaves TCPs more than LIA's fixed point, and BALIA is between the two", k.name),
					Got:   fmt.Sprintf("LIA %s, BALIA %s, OLIA %s", digits(share["lia"]), digits(share["balia"]), digits(share["olia"])),
					Holds: share["olia"] > k.theory && share["balia"] >= share["lia"] && share["balia"] <= share["olia"]},
				Claim{Text: fmt.Sprintf("scenario %s: without coupling TCPs get less than with LIA", k.name), Got: digits(share["newreno"]), Holds: share["newreno"] < share["lia"]},
			)
		}
		t, claims := third()
		p.Tables, p.Claims = append(p.Tables, t), append(p.Claims, claims...)
		return p
	}
}

// khalili is scenario A or C: MPTCP connections and then TCPs. Through: the second paths go through
// the first link as well.
func khalili(seed uint64, congestion string, duration time.Duration, through bool) sim.Config {
	n := newNetwork(seed, duration)
	half := 40 * time.Millisecond
	// The second link of a path has no delay, so that round-trip times are equal.
	own, shared := n.link(early(capacity, half)), n.link(early(capacity, half))
	if through {
		n.config.Links[own].Delay, n.config.Links[shared].Delay = half/2, half/2
	}
	for range users {
		first, second := n.path(half, own), n.path(half, shared)
		if through {
			wire := n.link(lossy(0, half/2))
			first, second = n.path(half, own, wire), n.path(half, own, shared)
		}
		n.mptcp(congestion, first, second)
	}
	for range users {
		out := []int{shared}
		if through {
			out = []int{n.link(lossy(0, half/2)), shared}
		}
		n.tcp("newreno", n.path(half, out...))
	}
	return n.config
}

// root returns x in [0, 1] with f(x) = 1; f is increasing.
func root(f func(float64) float64) float64 {
	low, high := 0.0, 1.0
	for range 60 {
		if middle := (low + high) / 2; f(middle) < 1 {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// lingering returns the throughput of a TCP in scenario C.
func lingering(z float64) float64 { return z * (1 + z*z) }

func scaled(s *sample, factor float64) *sample {
	r := &sample{values: make([]float64, s.n())}
	for i, v := range s.values {
		r.values[i] = v * factor
	}
	return r
}
