package belief

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/tabane/tabane/internal/testkit/heap"
)

// BenchmarkRead reads a file of 100,000 networks, each with five modes, and reports how long a
// network takes and how much memory.
func BenchmarkRead(b *testing.B) {
	const networks = 100_000
	var file bytes.Buffer
	if err := Write(&file, func(yield func(*Record) bool) {
		for i := range networks {
			r := &Record{Prefix: prefix(i), Origin: uint32(origin + i/6), Mode: a, Why: "measured +35 % against best", Since: start, Seen: start, Noise: 0.05, Bulk: 1e9, Related: make([]float32, 15)}
			for _, m := range []Mode{Best, "multipath", a, "single b", "spread"} {
				r.Modes = append(r.Modes, ModeRecord{Mode: m, Trials: 1})
			}
			if !yield(r) {
				return
			}
		}
	}); err != nil {
		b.Fatal(err)
	}
	var memory uint64
	for b.Loop() {
		before := heap.InUse()
		t := New(Options{Networks: networks, Start: Best})
		if n, err := t.Read(start, bytes.NewReader(file.Bytes())); n != networks || err != nil {
			b.Fatal(n, err)
		}
		memory += heap.InUse() - before
		runtime.KeepAlive(t)
	}
	b.ReportMetric(float64(memory)/float64(b.N)/networks, "B/network")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/networks, "ns/network")
}
