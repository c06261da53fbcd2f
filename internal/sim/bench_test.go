package sim

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// many returns n connections over the paths of the paper, with link rates scaled by n, so that each
// connection has the same share.
func many(n int) Config {
	one := paper(first, second)
	c := Config{Seed: 1, Duration: one.Duration, Links: one.Links}
	for i := range c.Links {
		p := &c.Links[i].Profile
		p.Rate *= unit.Bandwidth(n)
		p.Queue.Limit = linkmodel.Limit{Packets: p.Queue.Packets * n}
	}
	for i := range n {
		k := one.Connections[0]
		// Staggered starts avoid synchronized connections.
		k.Start = time.Duration(i) * 97 * time.Microsecond
		c.Connections = append(c.Connections, k)
	}
	return c
}

// BenchmarkPaper runs 30 s on the paper's topology with all measures enabled; seg/s counts data
// segments delivered in order.
func BenchmarkPaper(b *testing.B) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
	}{
		{"measures", func(c *Config) { c.Series, c.Bursts = 100*ms, true }},
		{"plain", func(*Config) {}},
		{"lia", func(c *Config) { c.Connections[0].Congestion = "lia" }},
		{"delayed-ack", func(c *Config) { c.Connections[0].DelayedACK = true }},
		{"rack", func(c *Config) { c.Connections[0].RACK = true }},
		{"receive-buffer", func(c *Config) { c.Connections[0].ReceiveBuffer = 260 * unit.KB }},
	} {
		b.Run(tt.name, func(b *testing.B) {
			c := paper(first, second)
			tt.change(&c)
			benchmark(b, c)
		})
	}
}

// BenchmarkConnections is BenchmarkPaper with many concurrent connections, measured after all have
// started and memory is allocated.
func BenchmarkConnections(b *testing.B) {
	for _, n := range []int{2, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := many(n)
			c.Duration = MaxDuration
			s, err := New(c)
			if err != nil {
				b.Fatal(err)
			}
			for s.now < 2*time.Second {
				s.step()
			}
			released := func() (sum uint64) {
				for i := range s.connections {
					sum += s.connections[i].buffer.Measures().Released.Segments
				}
				return sum
			}
			before := released()
			b.ReportAllocs()
			start := processor(syscall.RUSAGE_SELF)
			for b.Loop() {
				for range 1000 {
					s.step()
				}
			}
			b.ReportMetric(float64(released()-before)/(processor(syscall.RUSAGE_SELF)-start).Seconds(), "seg/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// benchmark reports segments by CPU time, which reduces the effect of other load on the machine.
func benchmark(b *testing.B, c Config) {
	segments, events := uint64(0), uint64(0)
	start := processor(syscall.RUSAGE_SELF)
	b.ReportAllocs()
	for b.Loop() {
		s, err := New(c)
		if err != nil {
			b.Fatal(err)
		}
		r, err := s.Run(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		events += r.Events
		for i := range r.Connections {
			segments += r.Connections[i].Reseq.Released.Segments
		}
	}
	b.ReportMetric(float64(segments)/(processor(syscall.RUSAGE_SELF)-start).Seconds(), "seg/s")
	b.ReportMetric(float64(events)/float64(segments), "events/seg")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkEvent measures one event in steady state.
func BenchmarkEvent(b *testing.B) {
	c := paper(first, second)
	c.Duration = MaxDuration
	s, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	for range 100_000 {
		s.step()
	}
	b.ReportAllocs()
	for b.Loop() {
		s.step()
	}
}
