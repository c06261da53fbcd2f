package sim

import (
	"math"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

func near(got, want, tolerance float64) bool { return math.Abs(got/want-1) <= tolerance }

// With a window smaller than the bandwidth-delay product, the goodput is one window per round trip.
func TestWindowLimited(t *testing.T) {
	c := paper(road{rate: 50 * unit.MbitPerSecond, delay: 50 * ms})
	r := run(t, c)
	// 60 ms each way; the segment and its acknowledgement are each serialized on two links.
	rtt := 120*ms + (50 * unit.MbitPerSecond).TimeFor(1380+40) + (100 * unit.MbitPerSecond).TimeFor(1380+40)
	want := float64(unit.Size(40 * 1340).Over(rtt))
	// Slow start takes five round trips of 250.
	if got := float64(r.Connections[0].After()); !near(got, want, 0.02) {
		t.Errorf("%v, want %v", unit.Bandwidth(got), unit.Bandwidth(want))
	}
	if p := r.Connections[0].Paths[0]; p.MinRTT != rtt || p.Retransmissions != 0 {
		t.Errorf("least round trip %s with %d retransmissions, want %s and none", p.MinRTT, p.Retransmissions, rtt)
	}
}

// With a larger window the goodput is the link rate less headers.
func TestLinkLimited(t *testing.T) {
	want := 5e6 * 1340 / 1380
	r := run(t, paper(first))
	if got := float64(r.Connections[0].After()); !near(got, want, 0.01) {
		t.Errorf("%v, want %v", unit.Bandwidth(got), unit.Bandwidth(want))
	}
	// The queue holds what exceeds the bandwidth-delay product: the RTT is the window over the
	// rate.
	if got, want := r.Connections[0].Paths[0].SRTT, (5 * unit.MbitPerSecond).TimeFor(40*1380); !near(float64(got), float64(want), 0.01) {
		t.Errorf("round trip %s, want %s", got, want)
	}
}

// The goodput of two paths is the sum of each alone, with any scheduler that does not wait.
func TestTwoPathsAreTheSum(t *testing.T) {
	lossless := second
	lossless.loss = 0
	one, two := run(t, paper(first)), run(t, paper(lossless))
	want := float64(one.Connections[0].After() + two.Connections[0].After())
	for _, scheduler := range []string{"lowest-rtt", "round-robin"} {
		c := paper(first, lossless)
		c.Connections[0].Scheduler = scheduler
		r := run(t, c)
		if got := float64(r.Connections[0].After()); !near(got, want, 0.01) {
			t.Errorf("%s: %v, want %v", scheduler, unit.Bandwidth(got), unit.Bandwidth(want))
		}
		if r.Connections[0].Reseq.Bursts.Max() < 10 {
			t.Errorf("%s: bursts of %d segments at most, although the delays differ", scheduler, r.Connections[0].Reseq.Bursts.Max())
		}
	}
}

// Slow start doubles the window each round trip: n segments are sent after log2(n/IW + 1) of them.
func TestSlowStart(t *testing.T) {
	for _, tt := range []struct{ initial, segments, rounds int }{
		{1, 1, 1}, {1, 3, 2}, {1, 7, 3}, {1, 127, 7}, {10, 10, 1}, {10, 30, 2}, {10, 31, 3}, {10, 70, 3}, {10, 310, 5},
	} {
		c := paper(road{rate: 10 * unit.GbitPerSecond, delay: 90 * ms, queue: linkmodel.Limit{Packets: 1000}})
		for i := range c.Links {
			c.Links[i].Rate = 10 * unit.GbitPerSecond
			c.Links[i].Queue.Limit = linkmodel.Limit{Packets: 10000}
		}
		k := &c.Connections[0]
		k.InitialWindow, k.Window, k.Bytes = tt.initial, 0, unit.Size(tt.segments*1340)
		// The last segment arrives half a round trip after it is sent.
		want := time.Duration(tt.rounds)*200*ms - 100*ms
		if got := run(t, c).Connections[0].Finish; got < want || got > want+ms {
			t.Errorf("%d segments from a window of %d after %s, want %s", tt.segments, tt.initial, got, want)
		}
	}
}

// Mathis et al., The macroscopic behavior of the TCP congestion avoidance algorithm, CCR 1997: with
// a loss rate p, delayed acknowledgements or not, rate = C MSS / (RTT sqrt(p)) with C = sqrt(3/2)
// when each segment is acknowledged.
func TestMathis(t *testing.T) {
	for _, loss := range []float64{1e-3, 5e-3} {
		var sum float64
		const seeds = 6
		c := paper(road{rate: 100 * unit.MbitPerSecond, delay: 40 * ms, loss: loss})
		c.Duration = 200 * time.Second
		c.Connections[0].Window = 0
		for seed := range uint64(seeds) {
			c.Seed = seed
			sum += float64(run(t, c).Connections[0].After()) / seeds
		}
		want := math.Sqrt(1.5) * 1340 * 8 / (0.1 * math.Sqrt(loss))
		if !near(sum, want, 0.15) {
			t.Errorf("loss %v: %v, want %v", loss, unit.Bandwidth(sum), unit.Bandwidth(want))
		}
	}
}

// ns-2, ns-3 and htsim yield 2.5 to 2.7 Mbit/s on the paper's second path at a loss rate of 1e-3,
// and 0.96 to 1.1 at 1e-2, with standard deviations of 0.2 and 0.1; these are means of twelve
// seeds.
func TestSecondPathOfThePaper(t *testing.T) {
	for _, tt := range []struct{ loss, low, high float64 }{{1e-3, 2.4e6, 2.85e6}, {1e-2, 0.9e6, 1.15e6}} {
		var sum float64
		timeouts := uint64(0)
		for seed := range uint64(12) {
			r := second
			r.loss = tt.loss
			c := paper(r)
			c.Seed = seed
			got := run(t, c)
			sum += float64(got.Connections[0].After()) / 12
			timeouts += got.Connections[0].Paths[0].Timeouts
		}
		if sum < tt.low || sum > tt.high {
			t.Errorf("loss %v: %v, want between %v and %v", tt.loss, unit.Bandwidth(sum), unit.Bandwidth(tt.low), unit.Bandwidth(tt.high))
		}
		// If a retransmission did not restart the timer, most runs would have a timeout.
		if timeouts > 12 {
			t.Errorf("loss %v: %d timeouts in twelve runs", tt.loss, timeouts)
		}
	}
}
