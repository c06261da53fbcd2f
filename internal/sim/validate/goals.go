package validate

import (
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/sim"
)

// coupled are the controls that meet RFC 6356's goals; everything has a counterexample, too.
var (
	coupled    = []string{"lia", "olia", "balia"}
	everything = []string{"lia", "olia", "balia", "newreno"}
)

// expected returns the verdict, for a comparison in which the counterexample has to fail.
func expected(holds bool, congestion string) string {
	if congestion == "newreno" && !holds {
		return "no, as expected"
	}
	return verdict(holds)
}

// label names a control in a table.
func label(congestion string) string {
	if congestion == "newreno" {
		return "newreno (not coupled)"
	}
	return congestion
}

// length returns the number of runs of a comparison between connections, their warm-up and
// duration.
func length(o Options) (runs int, warm, duration time.Duration) {
	if o.Quick {
		return 4, 15 * time.Second, 60 * time.Second
	}
	return 8, 30 * time.Second, 180 * time.Second
}

// goals measures the three goals of RFC 6356, section 2.
func goals(b *bench, o Options) func() Part {
	first, second, third := improve(b, o), doNoHarm(b, o), balance(b, o)
	return func() Part {
		p := Part{
			Title: "The three goals of coupled congestion control",
			Question: `RFC 6356 asks three things of a connection with several subflows. Goal 1: it gets at least what a TCP would get on the best of its
paths. Goal 2: it takes no more from a link than a TCP would. Goal 3: it moves its traffic off its most congested paths. Do the coupled
controls keep them, and does the simulator show that uncoupled ones do not?`,
			Method: `Bottlenecks of 10 Mbit/s with a round trip time of 80 ms without queues, and early detection as in Khalili et al. (CoNEXT 2012):
they share losses evenly among connections. Other traffic is TCPs with NewReno. Rates are payload that arrived, after a warm-up. In the third
table there are no other connections, and losses are given: 0.1 % on one path, 0.4 % on the other. What comes out is then a fixed point that
can be computed. Windows are in proportion to 1/√p without coupling, and to 1/p for LIA (RFC 6356, section 5). For BALIA
(1 + α)(4 + α) / (10 min(α, 3/2)) = p/p_best (Peng et al. 2016, from its increase and decrease). OLIA keeps only probing on the worse.`,
		}
		for _, f := range []func() (Table, []Claim){first, second, third} {
			t, claims := f()
			p.Tables = append(p.Tables, t)
			p.Claims = append(p.Claims, claims...)
		}
		return p
	}
}

// improve is goal 1: two paths, with two TCPs on one and six on the other. The throughput of the
// best path is measured with a TCP in place of the connection.
func improve(b *bench, o Options) func() (Table, []Claim) {
	runs, warm, duration := length(o)
	build := func(seed uint64, congestion string) sim.Config {
		n := newNetwork(seed, duration)
		half := 40 * time.Millisecond
		good, bad := n.link(early(10*unit.MbitPerSecond, half)), n.link(early(10*unit.MbitPerSecond, half))
		if congestion == "" {
			n.tcp("newreno", n.path(half, good))
		} else {
			n.mptcp(congestion, n.path(half, good), n.path(half, bad))
		}
		for range 2 {
			n.tcp("newreno", n.path(half, good))
		}
		for range 6 {
			n.tcp("newreno", n.path(half, bad))
		}
		return n.config
	}
	single := b.repeat(runs, func(seed uint64) sim.Config { return build(seed, "") }, arrived(0, 0, warm, duration))[0]
	got := map[string][]*sample{}
	for _, c := range everything {
		a, z := arrived(0, 0, warm, duration), arrived(0, 1, warm, duration)
		got[c] = b.repeat(runs, func(seed uint64) sim.Config { return build(seed, c) }, sum(a, z), a, z)
	}
	return func() (Table, []Claim) {
		t := Table{Caption: "Goal 1, improve throughput: a path with two TCPs and one with six; Mbit/s",
			Head: []string{"control", "n", "together ± sd", "good path", "bad path", "TCP on the good path", "ratio ± sd", "at least 0.9"}}
		var claims []Claim
		for _, c := range everything {
			r := ratio(got[c][0], single)
			holds := r.mean() >= 0.9
			t.Rows = append(t.Rows, []string{label(c), fmt.Sprint(runs), got[c][0].String(), got[c][1].String(), got[c][2].String(), single.String(),
				r.String(), verdict(holds)})
			if c != "newreno" {
				claims = append(claims, Claim{Text: "goal 1: " + c + " gets at least 0.9 of what a TCP gets on the better path", Got: digits(r.mean()), Holds: holds})
			}
		}
		return t, claims
	}
}

// doNoHarm is goal 2: both subflows share a bottleneck with four TCPs.
func doNoHarm(b *bench, o Options) func() (Table, []Claim) {
	const others = 4
	runs, warm, duration := length(o)
	got := map[string][]*sample{}
	for _, c := range everything {
		own := sum(arrived(0, 0, warm, duration), arrived(0, 1, warm, duration))
		var tcps []measure
		for i := range others {
			tcps = append(tcps, arrived(1+i, 0, warm, duration))
		}
		got[c] = b.repeat(runs, func(seed uint64) sim.Config {
			n := newNetwork(seed, duration)
			half := 40 * time.Millisecond
			shared := n.link(early(10*unit.MbitPerSecond, half))
			n.mptcp(c, n.path(half, shared), n.path(half, shared))
			for range others {
				n.tcp("newreno", n.path(half, shared))
			}
			return n.config
		}, own, mean(tcps...))
	}
	return func() (Table, []Claim) {
		t := Table{Caption: "Goal 2, do no harm: two subflows and four TCPs share a bottleneck; Mbit/s",
			Head: []string{"control", "n", "MPTCP ± sd", "a TCP ± sd", "ratio ± sd", "at most 1.25"}}
		var claims []Claim
		for _, c := range everything {
			r := ratio(got[c][0], got[c][1])
			holds := r.mean() <= 1.25
			t.Rows = append(t.Rows, []string{label(c), fmt.Sprint(runs), got[c][0].String(), got[c][1].String(), r.String(), expected(holds, c)})
			if c == "newreno" {
				claims = append(claims, Claim{Text: "goal 2: without coupling it is broken: at least 1.6 times a TCP", Got: digits(r.mean()), Holds: r.mean() >= 1.6})
				continue
			}
			claims = append(claims, Claim{Text: "goal 2: " + c + " takes at most 1.25 of what a TCP takes", Got: digits(r.mean()), Holds: holds})
		}
		return t, claims
	}
}

// balance is goal 3, on paths with given loss rates.
func balance(b *bench, o Options) func() (Table, []Claim) {
	const good, bad = 0.001, 0.004
	runs, warm, duration := length(o)
	half := 50 * time.Millisecond
	// From the fixed points in the method: without coupling √(p/p') = 1/2, LIA p/p' = 1/4, BALIA (1
	// + a)(4 + a) = 15 * 4 at a = 5.39.
	theory := map[string]float64{"newreno": 1. / 3, "lia": 1. / 5, "balia": 1 / 6.39}
	got := map[string][]*sample{}
	tcp := b.repeat(runs, func(seed uint64) sim.Config {
		n := newNetwork(seed, duration)
		n.tcp("newreno", n.path(half, n.link(lossy(good, half))))
		return n.config
	}, arrived(0, 0, warm, duration))[0]
	for _, c := range everything {
		a, z := arrived(0, 0, warm, duration), arrived(0, 1, warm, duration)
		share := func(r *sim.Result) float64 { return z(r) / (a(r) + z(r)) }
		got[c] = b.repeat(runs, func(seed uint64) sim.Config {
			n := newNetwork(seed, duration)
			n.mptcp(c, n.path(half, n.link(lossy(good, half))), n.path(half, n.link(lossy(bad, half))))
			return n.config
		}, share, sum(a, z))
	}
	return func() (Table, []Claim) {
		t := Table{Caption: "Goal 3, balance congestion: losses of 0.1 % and 0.4 %",
			Head: []string{"control", "n", "share of the worse path ± sd", "theory", "together ± sd, Mbit/s", "TCP on the better path", "as in theory"}}
		var claims []Claim
		for _, c := range everything {
			s := got[c][0]
			want, known := theory[c]
			holds, text := s.mean() < theory["balia"], "only probing"
			if known {
				holds, text = s.mean() > want*0.75 && s.mean() < want*1.25, digits(want)
			}
			t.Rows = append(t.Rows, []string{label(c), fmt.Sprint(runs), s.String(), text, got[c][1].String(), tcp.String(), verdict(holds)})
			if known {
				claims = append(claims, Claim{Text: fmt.Sprintf("goal 3: the share of %s on the worse path is within a quarter of %s", label(c), digits(want)), Got: digits(s.mean()), Holds: holds})
			} else {
				claims = append(claims, Claim{Text: "goal 3: " + c + " has less on the worse path than BALIA's theory", Got: digits(s.mean()), Holds: holds})
			}
		}
		return t, claims
	}
}
