package validate

import (
	"fmt"
	"math"
	"time"

	"github.com/tabane/tabane/internal/sim"
)

// mathis compares one TCP over a lossy link with the formulas.
func mathis(b *bench, o Options) func() Part {
	losses := []float64{1e-4, 3e-4, 1e-3, 3e-3, 1e-2}
	rtts := []time.Duration{20 * time.Millisecond, 60 * time.Millisecond, 200 * time.Millisecond}
	runs, cycles := 12, 100.0
	if o.Quick {
		losses, rtts, runs, cycles = []float64{1e-3, 1e-2}, rtts[:2], 6, 40
	}
	type cell struct {
		loss float64
		rtt  time.Duration
		got  *sample
	}
	var cells []cell
	for _, loss := range losses {
		for _, rtt := range rtts {
			// Long enough for about as many losses.
			duration := time.Duration(cycles / loss / rateOfMathis(randomLoss, loss, rtt) * 8 * payload / 1e6 * float64(time.Second)).Round(time.Second)
			warm := (duration / 10).Round(time.Second)
			duration += warm
			got := b.repeat(runs, func(seed uint64) sim.Config {
				n := newNetwork(seed, duration)
				n.tcp("newreno", n.path(rtt/2, n.link(lossy(loss, rtt/2))))
				return n.config
			}, arrived(0, 0, warm, duration))
			cells = append(cells, cell{loss, rtt, got[0]})
		}
	}
	return func() Part {
		t := Table{Caption: "One TCP (NewReno with SACK, an acknowledgement for each segment), Mbit/s of payload",
			Head: []string{"loss", "RTT", "n", "simulated ± sd", "periodic", "random", "with timeouts", "constant", "within"}}
		lowest, highest, off := math.Inf(1), 0.0, 0
		for _, c := range cells {
			constant := c.got.mean() / rateOfMathis(1, c.loss, c.rtt)
			low, high := rateOfPadhye(c.loss, c.rtt)*(1-margin), rateOfMathis(randomLoss, c.loss, c.rtt)*(1+margin)
			fits := c.got.mean() >= low && c.got.mean() <= high
			if !fits {
				off++
			}
			lowest, highest = min(lowest, constant), max(highest, constant)
			t.Rows = append(t.Rows, []string{fmt.Sprintf("%g", c.loss), c.rtt.String(), fmt.Sprint(c.got.n()), c.got.String(),
				digits(rateOfMathis(periodicLoss, c.loss, c.rtt)), digits(rateOfMathis(randomLoss, c.loss, c.rtt)), digits(rateOfPadhye(c.loss, c.rtt)),
				fmt.Sprintf("%.2f", constant), verdict(fits)})
		}
		return Part{
			Title:    "One TCP on a lossy path: Mathis' formula",
			Question: "Does a single TCP get out of a path with a given loss and round trip time what theory says?",
			Method: `A link of 1 Gbit/s loses packets at random, independently of each other. The rate of the TCP over it should be
C · segment / (RTT · √p). With losses at equal distances C is √(3/2) = 1.22; with random ones it is 1.31 (Mathis, Semke, Mahdavi, Ott: The
Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, 1997). Where windows are so small that timeouts matter, the formula
of Padhye et al. (Modeling TCP Throughput, 1998; "with timeouts" in the table) is lower; it has Reno fail on several losses in a window, which
SACK repairs. Each run is so
long that it has about ` + fmt.Sprintf("%g", cycles) + ` losses; slow start is left out.`,
			Answer: fmt.Sprintf(`The measured constant is %.2f to %.2f. The formula has a window that is halved at each loss and grows by a segment in each round trip, and nothing
else; a window that grows or shrinks otherwise shows here at once.`, lowest, highest),
			Tables: []Table{t},
			Claims: []Claim{{
				Text:  fmt.Sprintf("each rate is between Padhye's and Mathis' for random losses, with a margin of %.0f %%", 100*margin),
				Got:   fmt.Sprintf("%d of %d outside", off, len(cells)),
				Holds: off == 0,
			}},
		}
	}
}

// margin is the tolerance of simplified formulas.
const margin = 0.1

// The constants of Mathis et al. with an acknowledgement for each segment.
const (
	periodicLoss = 1.2247
	randomLoss   = 1.31
)

// rateOfMathis returns the rate in Mbit/s.
func rateOfMathis(c, p float64, rtt time.Duration) float64 {
	return c / math.Sqrt(p) * payload * 8 / 1e6 / rtt.Seconds()
}

// rateOfPadhye returns the rate by the approximate formula of Padhye, Firoiu, Towsley and Kurose
// (Modeling TCP Throughput, SIGCOMM 1998) with b = 1 and a timeout of RTT and 200 ms, in Mbit/s.
func rateOfPadhye(p float64, rtt time.Duration) float64 {
	timeout := rtt.Seconds() + 0.2
	perSecond := 1 / (rtt.Seconds()*math.Sqrt(2*p/3) + timeout*min(1, 3*math.Sqrt(3*p/8))*p*(1+32*p*p))
	return perSecond * payload * 8 / 1e6
}

func verdict(holds bool) string {
	if holds {
		return "yes"
	}
	return "**no**"
}
