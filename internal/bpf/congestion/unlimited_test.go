package congestion

import (
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/mptcp/mptcptest"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
)

// BenchmarkUnlimited compares what one connection of MPTCP carries over a link without limits, with bounded
// unsent data and with the kernel's Cubic. Both take turns, and in each iteration another one begins.
func BenchmarkUnlimited(b *testing.B) {
	o := testOptions(b)
	o.Lowat, o.Pace = true, Defaults(Cubic).Pace
	const with, without = 0, 1
	var carried [2]func() float64
	for i := range carried {
		p := mptcptest.New(b, netnstest.New(b), netnstest.New(b), 1)
		if i == with {
			use(b, Cubic, o, p.Server)
		} else {
			netnstest.Do(b, p.Server, func() error { return netns.Sysctl("net.ipv4.tcp_congestion_control", Cubic) })
		}
		l := p.Listen(b)
		carried[i] = func() float64 {
			server, client := p.Connect(b, l)
			stop := make(chan struct{})
			done := mptcptest.Pump(server, client, stop)
			time.Sleep(300 * time.Millisecond) // slow start
			begun, before := time.Now(), sending(b, p.Server).Acked
			time.Sleep(700 * time.Millisecond)
			after, lasted := sending(b, p.Server).Acked, time.Since(begun)
			close(stop)
			<-done
			_, _ = server.Close(), client.Close()
			return 8 * float64(after-before) / lasted.Seconds()
		}
	}
	var ratios, rates []float64
	for i := 0; b.Loop(); i++ {
		var rate [2]float64
		for _, turn := range [2]int{i % 2, 1 - i%2} {
			rate[turn] = carried[turn]()
		}
		ratios, rates = append(ratios, rate[with]/rate[without]), append(rates, rate[without]/1e9)
	}
	b.ReportMetric(0, "ns/op")
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2], "Gbit/s-without")
	for name, at := range map[string]int{"q1": len(ratios) / 4, "median": len(ratios) / 2, "q3": len(ratios) * 3 / 4} {
		b.ReportMetric(ratios[at], name+"-ratio")
	}
}
