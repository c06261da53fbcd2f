package congestion

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/mptcp/mptcptest"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
)

// BenchmarkUnlimited compares what one connection of MPTCP carries over links without limits, with bounded
// unsent data and with the kernel's Cubic. Both take turns, and in each iteration another one begins. The
// sender and the receiver run on a processor each or on the same one, which decides how often the
// connection stands still: see docs/congestion-control.md.
func BenchmarkUnlimited(b *testing.B) {
	for _, run := range []struct{ links, processors int }{{1, 2}, {2, 2}, {1, 1}} {
		b.Run(fmt.Sprintf("subflows=%d/processors=%d", run.links, run.processors), func(b *testing.B) {
			if runtime.NumCPU() < run.processors {
				b.Skip("needs a processor each for the sender and the receiver")
			}
			unlimited(b, run.links, run.processors-1)
		})
	}
}

func unlimited(b *testing.B, links, receiver int) {
	o := testOptions(b)
	o.Lowat, o.Pace = true, Defaults(Cubic).Pace
	const with, without = 0, 1
	var turns [2]func() carried
	for i := range turns {
		p := mptcptest.New(b, netnstest.New(b), netnstest.New(b), links)
		if i == with {
			use(b, Cubic, o, p.Server)
		} else {
			netnstest.Do(b, p.Server, func() error { return netns.Sysctl("net.ipv4.tcp_congestion_control", Cubic) })
		}
		l := p.Listen(b)
		turns[i] = func() carried {
			server, client := p.Connect(b, l)
			return carry(b, server, client, 0, receiver)
		}
	}
	var all [2][]carried
	for i := 0; b.Loop(); i++ {
		for _, side := range [2]int{i % 2, 1 - i%2} {
			all[side] = append(all[side], turns[side]())
		}
	}
	b.ReportMetric(0, "ns/op")
	var medians [2]float64
	for side, name := range []string{"with", "without"} {
		var rates []float64
		var still time.Duration
		for _, c := range all[side] {
			rates = append(rates, 8*float64(c.bytes)/turn.Seconds()/1e9)
			still += c.still
		}
		slices.Sort(rates)
		medians[side] = rates[len(rates)/2]
		b.ReportMetric(medians[side], "median-Gbit/s-"+name)
		b.ReportMetric(still.Seconds()/turn.Seconds()/float64(len(rates)), "still-"+name)
	}
	b.ReportMetric(medians[with]/medians[without], "ratio-of-medians")
}

const (
	// slowStart is how long a connection of BenchmarkUnlimited sends before its turn.
	slowStart = 300 * time.Millisecond
	turn      = 700 * time.Millisecond
	// standstill is the least time without an arrival that counts as one.
	standstill = 50 * time.Millisecond
)

// carried is what arrives in a turn, and the time in standstills.
type carried struct {
	bytes int
	still time.Duration
}

// carry sends from one end to the other for a turn, on these processors, and closes both.
func carry(b *testing.B, from, to net.Conn, sender, receiver int) (c carried) {
	begin := time.Now().Add(slowStart)
	if err := to.SetReadDeadline(begin.Add(turn)); err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		pin(b, sender)
		data := make([]byte, 256<<10)
		for {
			if _, err := from.Write(data); err != nil {
				return
			}
		}
	})
	wg.Go(func() {
		pin(b, receiver)
		data := make([]byte, 16<<10)
		var err error
		for last := begin; err == nil; {
			var n int
			n, err = to.Read(data)
			now := time.Now()
			if now.Before(begin) {
				continue
			}
			if gap := now.Sub(last); gap >= standstill {
				c.still += gap
			}
			c.bytes += n
			last = now
		}
		_, _ = to.Close(), from.Close()
	})
	wg.Wait()
	return c
}

// pin keeps the calling goroutine, whose thread ends with it, on a processor.
func pin(b *testing.B, processor int) {
	runtime.LockOSThread()
	var only unix.CPUSet
	only.Set(processor)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		b.Error(err)
	}
}
