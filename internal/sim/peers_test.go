package sim

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// processor returns the CPU time of a process on all cores, including garbage collection.
func processor(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		panic("BUG: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBesideNS2 runs the paper's topology here and in ns-2 alternately, and prints the
// medians. Figures are by CPU time, which reduces the effect of other load on the machine; make
// bench-sim pins both to one core. ns-2 makes one long run with two independent TCP connections and
// no measures; here each 30 s are a separate run, with MPTCP and all measures.
func BenchmarkBesideNS2(b *testing.B) {
	ns := programs.Need(b, "ns")
	const runs = 40
	var ours, theirs, ratios []float64
	for range b.N {
		segments, start := uint64(0), processor(syscall.RUSAGE_SELF)
		for seed := range uint64(runs) {
			c := paper(first, second)
			c.Seed, c.Series, c.Bursts = seed, 100*ms, true
			r := run(b, c)
			segments += r.Connections[0].Reseq.Released.Segments
		}
		mine := float64(segments) / (processor(syscall.RUSAGE_SELF) - start).Seconds()

		start = processor(syscall.RUSAGE_CHILDREN)
		out, err := exec.Command(ns, "testdata/paper.tcl", strconv.Itoa(runs*30)).Output()
		if err != nil {
			b.Fatal(err)
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err != nil {
			b.Fatalf("ns-2 says %q", bytes.TrimSpace(out))
		}
		other := n / (processor(syscall.RUSAGE_CHILDREN) - start).Seconds()
		ours, theirs, ratios = append(ours, mine), append(theirs, other), append(ratios, mine/other)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "seg/s")
	b.ReportMetric(median(theirs), "ns2-seg/s")
	b.ReportMetric(median(ratios), "ratio")
	if b.N == 1 {
		return // the trial run of package testing
	}
	var t strings.Builder
	fmt.Fprintf(&t, "\n%-34s %12s %7s\n", fmt.Sprintf("median of %d, in turn", b.N), "seg/s", "ratio")
	fmt.Fprintf(&t, "%-34s %12.0f %7s\n", "tabane, MPTCP, all measures", median(ours), "1")
	fmt.Fprintf(&t, "%-34s %12.0f %7.1f\n", "ns-2, two TCPs, no measures", median(theirs), median(ratios))
	if _, err := os.Stat("/usr/include/ns3"); err == nil {
		fmt.Fprintf(&t, "ns-3 is installed, but not measured here: it carries whole headers and checks them\n")
	} else {
		fmt.Fprintf(&t, "ns-3 is not installed\n")
	}
	b.Log(t.String())
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// BenchmarkSweep runs the paper's grid: 180 cells of 12 runs of 30 s, on all cores.
func BenchmarkSweep(b *testing.B) {
	for b.Loop() {
		jobs := make(chan Config)
		var workers sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			workers.Go(func() {
				for c := range jobs {
					if s, err := New(c); err != nil {
						b.Error(err)
					} else if _, err := s.Run(context.Background()); err != nil {
						b.Error(err)
					}
				}
			})
		}
		runs := 0
		for _, rate := range []unit.Bandwidth{2e6, 5e6, 10e6} {
			for _, delay := range []time.Duration{20 * ms, 50 * ms, 100 * ms} {
				for _, loss := range []float64{0, 1e-4, 1e-3, 1e-2} {
					for _, rbuf := range []unit.Size{0, 65 * unit.KB, 130 * unit.KB, 260 * unit.KB, 1000 * unit.KB} {
						for seed := range uint64(12) {
							c := paper(first, road{rate: rate, delay: delay, loss: loss, queue: linkmodel.Limit{Packets: 50}})
							c.Seed, c.Connections[0].RBuf = seed, rbuf
							jobs <- c
							runs++
						}
					}
				}
			}
		}
		close(jobs)
		workers.Wait()
		b.ReportMetric(float64(runs), "runs/op")
	}
}
