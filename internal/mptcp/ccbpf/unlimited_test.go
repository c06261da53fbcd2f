package ccbpf

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/mptcp/mptcptest"
)

// BenchmarkUnlimited compares what one connection of MPTCP carries over links without limits, with
// bounded unsent data and with the kernel's Cubic. Both take turns, and in each iteration another
// one begins. The sender and the receiver run on a processor each, because a connection whose ends
// share one stands still more often. The time of standstills is reported on its own, and the ratio
// is that of the rates outside of it: see docs/congestion-control.md.
func BenchmarkUnlimited(b *testing.B) {
	if runtime.NumCPU() < 2 {
		b.Skip("needs a processor each for the sender and the receiver")
	}
	for _, links := range []int{1, 2} {
		b.Run(fmt.Sprintf("subflows=%d", links), func(b *testing.B) { unlimited(b, links) })
	}
}

func unlimited(b *testing.B, links int) {
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
			return carry(b, server, client)
		}
	}
	var all [2]carried
	took := 0.
	for i := 0; b.Loop(); i++ {
		for _, side := range [2]int{i % 2, 1 - i%2} {
			c := turns[side]()
			all[side].bytes += c.bytes
			all[side].still += c.still
		}
		took += turn.Seconds()
	}
	b.ReportMetric(0, "ns/op")
	var running [2]float64
	for side, name := range []string{"with", "without"} {
		bits, still := 8*float64(all[side].bytes), all[side].still.Seconds()
		running[side] = bits / (took - still)
		b.ReportMetric(bits/took/1e9, "Gbit/s-"+name)
		b.ReportMetric(still/took, "still-"+name)
	}
	b.ReportMetric(running[with]/running[without], "running-ratio")
}

const (
	// slowStart is how long a connection of BenchmarkUnlimited sends before its turn.
	slowStart = 300 * time.Millisecond
	turn      = 700 * time.Millisecond
	// standstill is the least time without an arrival that counts as one.
	standstill = 50 * time.Millisecond
)

// carried is what arrives in turns, and the time of standstills.
type carried struct {
	bytes int
	still time.Duration
}

// carry sends from one end to the other for a turn and closes both.
func carry(b *testing.B, from, to net.Conn) (c carried) {
	begin := time.Now().Add(slowStart)
	if err := to.SetReadDeadline(begin.Add(turn)); err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		pin(b, 0)
		data := make([]byte, 256<<10)
		for {
			if _, err := from.Write(data); err != nil {
				return
			}
		}
	})
	wg.Go(func() {
		pin(b, 1)
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
