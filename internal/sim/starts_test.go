package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// startsRun is for how long BenchmarkStarts counts what arrives, from the first byte on.
const startsRun = 10 * time.Second

// BenchmarkStarts has a connection begin over drawn pairs of lines, of 5 to 100 Mbit/s and 1 to 30
// ms each, through gateways that begin without rates, and over a single line of the sum of both
// rates and the delay of the longer one. It reports the shares of what such a line carries, after
// all headers, and of what the connection has over it.
func BenchmarkStarts(b *testing.B) {
	for b.Loop() {
		r := rand.New(rand.NewPCG(7, 7))
		var shares, beside []float64
		for range 60 {
			var lines []linkmodel.Profile
			single := linkmodel.Profile{}
			for range 2 {
				p := linkmodel.Profile{
					Rate: unit.Bandwidth(5+r.IntN(96)) * unit.MbitPerSecond, Delay: time.Duration(1+r.IntN(30)) * ms,
					Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: time.Duration(30+r.IntN(120)) * ms}},
				}
				lines = append(lines, p)
				single.Rate, single.Delay, single.Queue = single.Rate+p.Rate, max(single.Delay, p.Delay), lines[0].Queue
			}
			both := started(b, 1376, &Gateway{Discipline: "auto", Hold: reseq.Auto, Overhead: tunnelOverhead, Estimated: true}, lines...)
			shares = append(shares, both)
			beside = append(beside, both/started(b, 1448, nil, single))
		}
		for name, list := range map[string][]float64{"share": shares, "of-single": beside} {
			slices.Sort(list)
			b.ReportMetric(list[len(list)/2], name+"-median")
			b.ReportMetric(list[len(list)/10], name+"-p10")
			b.ReportMetric(list[0], name+"-least")
		}
	}
}

// started returns the share of what lines carry that a connection with segments of that size has
// from its first byte on.
func started(t testing.TB, segment int, g *Gateway, lines ...linkmodel.Profile) float64 {
	c := Config{Seed: 1, Duration: startsRun + 3*time.Second, Series: 100 * ms}
	k := Connection{Start: 2 * time.Second, Congestion: "cubic", Segment: segment, Header: 66, RACK: true, HyStart: true, Handshake: true, DelayedACK: true, Gateway: g}
	var rate unit.Bandwidth
	for _, p := range lines {
		n := len(c.Links)
		c.Links = append(c.Links, Link{Profile: p}, Link{Profile: p})
		k.Paths = append(k.Paths, Path{Out: []int{n}, Back: []int{n + 1}})
		rate += p.Rate
	}
	frame := segment + 66
	if g != nil {
		frame += g.Overhead
	}
	c.Connections = []Connection{k}
	series := run(t, c).Connections[0].Series
	begin := slices.IndexFunc(series, func(n unit.Size) bool { return n > 0 })
	sum := unit.Size(0)
	for _, n := range series[begin:min(begin+int(startsRun/c.Series), len(series))] {
		sum += n
	}
	return float64(sum) / (float64(rate.SizeIn(startsRun)) * float64(segment) / float64(frame))
}

// TestEstimatedRates: where no rate is configured, a connection begins over both of two lines, also
// of different rates and delays.
func TestEstimatedRates(t *testing.T) {
	line := func(mbit unit.Bandwidth, delay time.Duration) linkmodel.Profile {
		return linkmodel.Profile{Rate: mbit * unit.MbitPerSecond, Delay: delay, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: 50 * ms}}}
	}
	for _, lines := range [][]linkmodel.Profile{
		{line(20, ms), line(20, ms)}, {line(20, 10*ms), line(20, 10*ms)}, {line(30, 5*ms), line(10, 15*ms)},
	} {
		g := &Gateway{Discipline: "auto", Hold: reseq.Auto, Overhead: tunnelOverhead, Estimated: true}
		if share := started(t, 1376, g, lines...); share < 0.92 {
			t.Errorf("%.3f of what %v carry in the first 10 s", share, lines)
		}
	}
}
