package simrun

import (
	"fmt"
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

// BenchmarkSpraySeveral simulates downloads of 9 s to several client networks at once over two paths
// that they share, with a round trip of 10 ms: what the sprayed ones bring of the sum of both, in the
// mean of four seeds.
func BenchmarkSpraySeveral(b *testing.B) {
	path := func(rate unit.Bandwidth, delay time.Duration) worlds.Path {
		p := linkmodel.Profile{Rate: rate * unit.MbitPerSecond, Delay: delay, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: 50 * time.Millisecond}}}
		return worlds.Path{Forward: p, Backward: p}
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		name          string
		first, second worlds.Path
	}{
		{"20+20", path(20, 5*ms), path(20, 5*ms)},
		{"30+10", path(30, 5*ms), path(10, 5*ms)},
		{"10+30", path(10, 5*ms), path(30, 5*ms)},
		{"50+50-15ms-longer", path(50, 5*ms), path(50, 20*ms)},
	} {
		for _, clients := range []int{1, 2, 5, 20} {
			b.Run(fmt.Sprint(c.name, "/", clients), func(b *testing.B) {
				all := map[string]float64{}
				const seeds = 4
				for b.Loop() {
					for seed := range uint64(seeds) {
						w := worlds.World{Options: worlds.Options{Kind: worlds.EPE, Seed: seed + 1}, Paths: []worlds.Path{c.first, c.second}, Lasts: 9 * time.Second}
						s, err := severalWorld(b.Context(), w, clients)
						if err != nil {
							b.Fatal(err)
						}
						for name, of := range map[string]struct {
							of    Together
							alone []Together
						}{
							"first": {s.First, s.Alone}, "next": {s.Next, s.Alone}, "datagrams": {s.Datagrams, s.Alone}, "staggered": {s.Staggered, s.StaggeredAlone},
							"turns-datagrams": {s.TurnsDatagrams, s.Alone}, "one-next": {s.OneNext, s.OneAlone}, "one-datagrams": {s.OneDatagrams, s.OneAlone},
							"access": {s.Access, s.AccessAlone}, "access-datagrams": {s.AccessDatagrams, s.AccessAlone},
						} {
							of2 := of.alone[0].Bytes
							if name[0] != 'a' {
								of2 += of.alone[1].Bytes
							}
							all[name] += of.of.Bytes / of2 / seeds
						}
						all["least"] += s.Next.Least / seeds
						all["least-alone"] += s.Alone[0].Least / seeds
						all["again%"] += 100 * s.Next.Retransmitted / seeds
						all["again%-alone"] += 100 * s.Alone[0].Retransmitted / seeds
						all["short"] += s.Short.Median / s.ShortAlone[0].Median / seeds
					}
				}
				for name, v := range all {
					b.ReportMetric(v, name)
				}
			})
		}
	}
}
