package validate

import (
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/sim"
)

// responsiveness measures the time until a path is used again after its cross traffic has ended:
// the two-link case of Peng et al.
func responsiveness(b *bench, o Options) func() Part {
	const (
		others = 5
		until  = 60 * time.Second // the TCPs leave
		end    = 120 * time.Second
	)
	runs, warm, _ := length(o)
	rate := 10 * unit.MbitPerSecond
	full := megabits(float64(rate)/8*payload/(payload+header), time.Second)
	got := map[string][]*sample{}
	for _, c := range everything {
		busy := arrived(0, 1, warm, until)
		soon := func(r *sim.Result) float64 {
			series := r.Connections[0].Paths[1].Series
			from := int(until / time.Second)
			for i, bytes := range series[min(from, len(series)):] {
				if megabits(float64(bytes), time.Second) >= 0.8*full {
					return float64(i + 1)
				}
			}
			return (end - until).Seconds()
		}
		got[c] = b.repeat(runs, func(seed uint64) sim.Config {
			n := newNetwork(seed, end)
			half := 20 * time.Millisecond
			first, second := n.link(early(rate, half)), n.link(early(rate, half))
			n.mptcp(c, n.path(half, first), n.path(half, second))
			for range others {
				i := n.tcp("newreno", n.path(half, second))
				n.config.Connections[i].Stop = until
			}
			return n.config
		}, busy, soon)
	}
	return func() Part {
		t := Table{Caption: fmt.Sprintf("A second path with %d TCPs until %v; of %s Mbit/s", others, until, digits(full)),
			Head: []string{"control", "n", "on that path before ± sd, Mbit/s", "until 80 % of it is used ± sd, s", "fair", "responsive"}}
		slow := map[string]float64{}
		fair := full / (others + 1)
		friendly := true
		for _, c := range everything {
			busy, soon := got[c][0], got[c][1]
			slow[c] = soon.mean()
			kind := busy.mean() <= 1.25*fair
			friendly = friendly && (kind || !slices.Contains(coupled, c))
			t.Rows = append(t.Rows, []string{label(c), fmt.Sprint(runs), busy.String(), soon.String(), verdict(kind), verdict(soon.mean() <= 20)})
		}
		return Part{
			Title:    "Friendliness and responsiveness",
			Question: "A control that leaves a congested path to others: how soon does it return when they are gone?",
			Method: fmt.Sprintf(`An MPTCP connection has two paths of 10 Mbit/s with 40 ms. On the second there are %d TCPs that stop after %v. Peng et al. (Multipath TCP:
Analysis, Design, and Implementation, 2016) show that friendliness and responsiveness exclude each other, and that OLIA lacks the second and
BALIA lies between. Measured is the rate on the second path while the TCPs are there (fair: at most 1.25 of an even share, %s Mbit/s), and the first second
in which it has 80 %% of the link.`, others, until, digits(fair)),
			Tables: []Table{t},
			Claims: []Claim{
				{Text: "the coupled controls are fair on the congested path", Got: verdictWord(friendly), Holds: friendly},
				{Text: "BALIA takes a free path no later than OLIA", Got: fmt.Sprintf("%s and %s s", digits(slow["balia"]), digits(slow["olia"])), Holds: slow["balia"] <= slow["olia"]},
			},
		}
	}
}

func verdictWord(holds bool) string {
	if holds {
		return "all"
	}
	return "not all"
}
