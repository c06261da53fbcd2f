package validate

import (
	"fmt"
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/sim"
)

// Khalili's scenario B: fifteen users of each color, and the capacities of the providers X and T.
const (
	usersPerColor = 15
	capacityX     = 27 * unit.MbitPerSecond
	capacityT     = 36 * unit.MbitPerSecond
)

// upgraded is the throughput of each color, and of all, before and after the red ones get a second
// path.
type upgraded struct{ blue, red, all *sample }

// upgrade compares scenario B of Khalili et al. with the fixed points of LIA.
func upgrade(b *bench, o Options) func() (Table, []Claim) {
	runs, warm, duration := length(o)
	var own, others []measure
	for i := range usersPerColor {
		own = append(own, arrived(i, 0, warm, duration), arrived(i, 1, warm, duration))
	}
	got := map[string][2]upgraded{}
	for _, c := range coupled {
		var both [2]upgraded
		for after := range both {
			others = nil
			for i := range usersPerColor {
				others = append(others, arrived(usersPerColor+i, 0, warm, duration))
				if after == 1 {
					others = append(others, arrived(usersPerColor+i, 1, warm, duration))
				}
			}
			blue, red := sum(own...), sum(others...)
			each := func(m measure) measure { return func(r *sim.Result) float64 { return m(r) / usersPerColor } }
			s := b.repeat(runs, func(seed uint64) sim.Config { return scenarioB(seed, c, duration, after == 1) }, each(blue), each(red), sum(blue, red))
			both[after] = upgraded{s[0], s[1], s[2]}
		}
		got[c] = both
	}
	return func() (Table, []Claim) {
		const payloadShare = float64(payload) / (payload + header)
		var theory [2][2]float64
		for after := range theory {
			blue, red := fixedPointB(after == 1)
			theory[after] = [2]float64{blue * payloadShare, red * payloadShare}
		}
		t := Table{
			Caption: "Scenario B, red users upgrade from TCP to MPTCP; Mbit/s of a user",
			Head:    []string{"control", "n", "blue before ± sd", "blue after", "red before", "red after", "all users ± standard error, %", "LIA's fixed point: blue, red"},
		}
		lost := map[string]*sample{}
		for _, c := range coupled {
			before, after := got[c][0], got[c][1]
			lost[c] = scaled(change(after.all, before.all), 100)
			fixed := ""
			if c == "lia" {
				fixed = fmt.Sprintf("%s to %s, %s to %s", digits(theory[0][0]), digits(theory[1][0]), digits(theory[0][1]), digits(theory[1][1]))
			}
			t.Rows = append(t.Rows, []string{
				label(c), fmt.Sprint(runs), before.blue.String(), after.blue.String(), before.red.String(), after.red.String(),
				fmt.Sprintf("%s ± %s", digits(lost[c].mean()), digits(lost[c].standardError())), fixed,
			})
		}
		lia, olia := got["lia"], got["olia"]
		worst := 0.0
		for i := range theory {
			worst = max(worst, math.Abs(lia[i].blue.mean()/theory[i][0]-1), math.Abs(lia[i].red.mean()/theory[i][1]-1))
		}
		blue, red := scaled(change(lia[1].blue, lia[0].blue), 100), scaled(change(lia[1].red, lia[0].red), 100)
		percent := func(s *sample) string { return fmt.Sprintf("%s ± %s %%", digits(s.mean()), digits(s.standardError())) }
		return t, []Claim{
			{Text: fmt.Sprintf("scenario B: with LIA blue and red users are within %.0f %% of the fixed points, before and after", 100*margin),
				Got: fmt.Sprintf("largest difference %.1f %%", 100*worst), Holds: worst <= margin},
			{Text: "scenario B: with LIA the upgrade takes from blue users and from red ones, by more than 2 standard errors",
				Got: "blue " + percent(blue) + ", red " + percent(red), Holds: below(blue, 0) && below(red, 0)},
			{Text: "scenario B: with LIA all users together lose at least 10 %", Got: percent(lost["lia"]), Holds: below(lost["lia"], -10)},
			{Text: "scenario B: with OLIA they lose less than 0.6 of that, and with BALIA less than with LIA, by more than 2 standard errors",
				Got: "OLIA " + percent(lost["olia"]) + ", BALIA " + percent(lost["balia"]),
				Holds: below(scaled(lost["lia"], 0.6), lost["olia"].mean()-2*lost["olia"].standardError()) &&
					below(lost["lia"], lost["balia"].mean()-2*lost["balia"].standardError())},
			{Text: "scenario B: after the upgrade, blue and red users have more with OLIA than with LIA, by more than 2 standard errors",
				Got:   fmt.Sprintf("blue %s and %s, red %s and %s", digits(olia[1].blue.mean()), digits(lia[1].blue.mean()), digits(olia[1].red.mean()), digits(lia[1].red.mean())),
				Holds: more(olia[1].blue, lia[1].blue) && more(olia[1].red, lia[1].red)},
		}
	}
}

// below reports whether the mean is below a bound by more than two standard errors.
func below(s *sample, bound float64) bool { return s.mean()+2*s.standardError() < bound }

// more reports whether the difference of two means exceeds two of its standard errors.
func more(a, b *sample) bool {
	return a.mean()-b.mean() > 2*math.Hypot(a.standardError(), b.standardError())
}

// change returns the relative change of a figure, run by run.
func change(after, before *sample) *sample {
	s := ratio(after, before)
	for i := range s.values {
		s.values[i]--
	}
	return s
}

// scenarioB is Khalili's scenario B: blue users have a path through X and one through T. Red users
// have one through T, and after the upgrade another through X and T.
func scenarioB(seed uint64, congestion string, duration time.Duration, after bool) sim.Config {
	n := newNetwork(seed, duration)
	half := 40 * time.Millisecond
	x, t := n.link(early(capacityX, half/2)), n.link(early(capacityT, half/2))
	wire := n.link(lossy(0, half/2))
	for range usersPerColor {
		n.mptcp(congestion, n.path(half, x, wire), n.path(half, t, wire))
	}
	for range usersPerColor {
		if after {
			n.mptcp(congestion, n.path(half, t, wire), n.path(half, x, t))
		} else {
			n.tcp("newreno", n.path(half, t, wire))
		}
	}
	return n.config
}

// fixedPointB returns the throughput of a blue and a red user of LIA in scenario B, in Mbit/s: on
// paths with one round-trip time, its total rate is that of a TCP on the best one, and that on each
// is in proportion to 1/p (RFC 6356, section 5). With z = √(pX/pT), and b what a blue user gets, a
// red one gets zb.
func fixedPointB(after bool) (blue, red float64) {
	use := func(z float64) (x, t float64) { // of X and T, for b = 1 and as many of each color
		x, t = 1/(1+z*z), z*z/(1+z*z)+z
		if after {
			x += z / (2 + z*z)
		}
		return x, t
	}
	z := root(func(z float64) float64 {
		x, t := use(z)
		return t / x * float64(capacityX) / float64(capacityT)
	})
	x, _ := use(z)
	blue = megabits(float64(capacityX)/8, time.Second) / usersPerColor / x
	return blue, z * blue
}
