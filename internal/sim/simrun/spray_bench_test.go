package simrun

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/worlds"
)

// BenchmarkSpray simulates downloads of 8 s over a path of 30 Mbit/s with a round trip of 10 ms and
// another one: what the sprayed ones bring of the first path alone, in the mean of four seeds.
func BenchmarkSpray(b *testing.B) {
	path := func(rate unit.Bandwidth, delay time.Duration) linkmodel.Profile {
		return linkmodel.Profile{Rate: rate, Delay: delay, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: 50 * time.Millisecond}}}
	}
	const ms = time.Millisecond
	home := path(30*unit.MbitPerSecond, 5*ms)
	lossy, jittery := home, path(30*unit.MbitPerSecond, 15*ms)
	lossy.Loss = linkmodel.Loss{Kind: linkmodel.Random, P: 0.01}
	jittery.Jitter = linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: 10 * ms}
	for _, c := range []struct {
		name  string
		other linkmodel.Profile
	}{
		{"equal", home},
		{"half", path(15*unit.MbitPerSecond, 5*ms)},
		{"tenth", path(3*unit.MbitPerSecond, 5*ms)},
		{"threefold", path(90*unit.MbitPerSecond, 5*ms)},
		{"3ms-shorter", path(30*unit.MbitPerSecond, 2*ms)},
		{"5ms-longer", path(30*unit.MbitPerSecond, 10*ms)},
		{"10ms-longer", path(30*unit.MbitPerSecond, 15*ms)},
		{"15ms-longer", path(30*unit.MbitPerSecond, 20*ms)},
		{"30ms-longer", path(30*unit.MbitPerSecond, 35*ms)},
		{"100ms-longer", path(30*unit.MbitPerSecond, 105*ms)},
		{"1%-loss", lossy},
		{"10ms-jitter", jittery},
	} {
		b.Run(c.name, func(b *testing.B) {
			var alone, next, last, first, again, datagrams, nextDatagrams float64
			for b.Loop() {
				for seed := range uint64(4) {
					w := worlds.World{Options: worlds.Options{Kind: worlds.EPE, Seed: seed + 1}, Paths: []worlds.Path{{Forward: home, Backward: home}, {Forward: c.other, Backward: home}}, Lasts: 8 * time.Second}
					s, err := sprayWorld(b.Context(), w)
					if err != nil {
						b.Fatal(err)
					}
					alone += s.Alone[0]
					next += s.AloneNext
					last += s.AloneLast
					first += s.First
					again += s.Next
					datagrams += s.Datagrams
					nextDatagrams += s.NextDatagrams
				}
			}
			b.ReportMetric(first/alone, "first")
			b.ReportMetric(again/next, "next")
			b.ReportMetric(datagrams/next, "datagrams")
			b.ReportMetric(nextDatagrams/last, "next-datagrams")
		})
	}
}
