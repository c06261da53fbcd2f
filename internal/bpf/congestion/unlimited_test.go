package congestion

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/mptcptest"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
)

// BenchmarkUnlimited compares what one connection of MPTCP carries over links without limits, with bounded
// unsent data and with the kernel's Cubic. Both take turns, and in each iteration another one begins. A turn
// stands still while nothing is acknowledged for 50 ms.
func BenchmarkUnlimited(b *testing.B) {
	for _, links := range []int{1, 2} {
		b.Run(fmt.Sprintf("subflows=%d", links), func(b *testing.B) { unlimited(b, links) })
	}
}

func unlimited(b *testing.B, links int) {
	o := testOptions(b)
	o.Lowat, o.Pace = true, Defaults(Cubic).Pace
	const with, without = 0, 1
	var carried [2]func() (bytes uint64, still time.Duration)
	for i := range carried {
		p := mptcptest.New(b, netnstest.New(b), netnstest.New(b), links)
		if i == with {
			use(b, Cubic, o, p.Server)
		} else {
			netnstest.Do(b, p.Server, func() error { return netns.Sysctl("net.ipv4.tcp_congestion_control", Cubic) })
		}
		l := p.Listen(b)
		carried[i] = func() (uint64, time.Duration) {
			server, client := p.Connect(b, l)
			stop := make(chan struct{})
			done := mptcptest.Pump(server, client, stop)
			time.Sleep(300 * time.Millisecond) // slow start
			begun, still := total(b, p.Server), time.Duration(0)
			for end, last, at := time.Now().Add(turn), begun, time.Now(); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if now := total(b, p.Server); now != last {
					if gap := time.Since(at); gap > 50*time.Millisecond {
						still += gap
					}
					last, at = now, time.Now()
				}
			}
			bytes := total(b, p.Server) - begun
			close(stop)
			<-done
			_, _ = server.Close(), client.Close()
			return bytes, still
		}
	}
	var bytes [2][]float64
	var still [2]time.Duration
	for i := 0; b.Loop(); i++ {
		for _, side := range [2]int{i % 2, 1 - i%2} {
			n, gaps := carried[side]()
			bytes[side] = append(bytes[side], float64(n))
			still[side] += gaps
		}
	}
	b.ReportMetric(0, "ns/op")
	for side, name := range []string{"with", "without"} {
		slices.Sort(bytes[side])
		b.ReportMetric(8*stat.Mean(bytes[side], nil)/turn.Seconds()/1e9, "Gbit/s-"+name)
		b.ReportMetric(still[side].Seconds()/float64(len(bytes[side]))/turn.Seconds(), "still-"+name)
	}
	middle := len(bytes[with]) / 2
	b.ReportMetric(bytes[with][middle]/bytes[without][middle], "ratio-of-medians")
}

// turn is how long each turn of BenchmarkUnlimited is measured.
const turn = 700 * time.Millisecond

// total returns the bytes that the subflows of a namespace have acknowledged.
func total(t testing.TB, namespace string) (bytes uint64) {
	t.Helper()
	netnstest.Do(t, namespace, func() error {
		d, err := mptcp.DialDiag()
		if err != nil {
			return err
		}
		err = d.Sockets(mptcp.IPv6, func(s *mptcp.Socket) { bytes += s.Acked })
		return errors.Join(err, d.Close())
	})
	return bytes
}
