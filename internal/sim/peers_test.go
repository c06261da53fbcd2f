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

// BenchmarkBesideNS2 simulates the paper's topology here and in ns-2 alternately, and prints the
// medians. Figures are by CPU time, which reduces the effect of other load on the machine; make
// bench-sim pins both to one core. ns-2 makes one long run with two independent TCP connections and
// no measures. Here that is simulated too, and MPTCP with all measures, with a run for each 30 s.
func BenchmarkBesideNS2(b *testing.B) {
	ns := programs.Need(b, "ns")
	const runs = 40
	rate := func(who int, segments func() uint64) float64 {
		start := processor(who)
		n := segments()
		return float64(n) / (processor(who) - start).Seconds()
	}
	var measured, alike, theirs, measuredRatios, alikeRatios []float64
	for range b.N {
		m := rate(syscall.RUSAGE_SELF, func() (n uint64) {
			for seed := range uint64(runs) {
				c := paper(first, second)
				c.Seed, c.Series, c.Bursts = seed, 100*ms, true
				n += run(b, c).Connections[0].Reseq.Released.Segments
			}
			return n
		})
		a := rate(syscall.RUSAGE_SELF, func() (n uint64) {
			for _, k := range run(b, independent(runs*30*time.Second, first, second)).Connections {
				n += k.Reseq.Released.Segments
			}
			return n
		})
		t := rate(syscall.RUSAGE_CHILDREN, func() uint64 {
			out, err := exec.Command(ns, "testdata/paper.tcl", strconv.Itoa(runs*30)).Output()
			if err != nil {
				b.Fatal(err)
			}
			n, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
			if err != nil {
				b.Fatalf("ns-2 says %q", bytes.TrimSpace(out))
			}
			return n
		})
		measured, alike, theirs = append(measured, m), append(alike, a), append(theirs, t)
		measuredRatios, alikeRatios = append(measuredRatios, m/t), append(alikeRatios, a/t)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(measured), "seg/s")
	b.ReportMetric(median(theirs), "ns2-seg/s")
	b.ReportMetric(median(measuredRatios), "ratio")
	b.ReportMetric(median(alikeRatios), "alike-ratio")
	if b.N == 1 {
		return // the trial run of package testing
	}
	var t strings.Builder
	fmt.Fprintf(&t, "\n%-34s %12s %13s\n", fmt.Sprintf("median of %d, in turn", b.N), "seg/s", "ratio to ns-2")
	fmt.Fprintf(&t, "%-34s %12.0f %13.1f\n", "tabane, MPTCP, all measures", median(measured), median(measuredRatios))
	fmt.Fprintf(&t, "%-34s %12.0f %13.1f\n", "tabane, two TCPs, no measures", median(alike), median(alikeRatios))
	fmt.Fprintf(&t, "%-34s %12.0f %13s\n", "ns-2, two TCPs, no measures", median(theirs), "1")
	if _, err := os.Stat("/usr/include/ns3"); err == nil {
		fmt.Fprintf(&t, "ns-3 is installed, but not measured here: it carries whole headers and checks them\n")
	} else {
		fmt.Fprintf(&t, "ns-3 is not installed\n")
	}
	b.Log(t.String())
}

// independent returns a TCP connection for each road.
func independent(duration time.Duration, roads ...road) Config {
	c := Config{Seed: 1, Duration: duration}
	for _, r := range roads {
		one := paper(r)
		k := one.Connections[0]
		k.Paths = []Path{lay(&c, r)}
		c.Connections = append(c.Connections, k)
	}
	return c
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
