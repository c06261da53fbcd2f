package sealed

import (
	"context"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
	cable "github.com/tabane/tabane/internal/lab/emulator"
)

var slower = 4 * unit.MbitPerSecond

// changes are those of a path of 20 Mbit/s and 40 ms under traffic of 11 Mbit/s. A gateway acts on
// one when its schedulers have other values of the path.
var changes = []struct {
	name  string
	to    linkmodel.Change
	acted func(dataplane.LinkStatus) bool
}{
	{"jitter of 20 ms", linkmodel.Change{Jitter: &linkmodel.Jitter{Kind: linkmodel.Normal, Amount: 20 * time.Millisecond, Reorder: true}},
		func(l dataplane.LinkStatus) bool { return l.Jitter > 10*time.Millisecond }},
	{"less than half of the rate", linkmodel.Change{Rate: &slower},
		func(l dataplane.LinkStatus) bool { return l.Rate < 15*unit.MbitPerSecond }},
}

// emulate replaces link 0 of a pair by an emulated one.
func emulate(t testing.TB, a, b *gateway, p linkmodel.Profile) *cable.Link {
	t.Helper()
	wire := netnstest.New(t)
	ip(t, a.namespace, "ip link del p0")
	for _, g := range []*gateway{a, b} {
		ip(t, wire, "ip link add w%d type veth peer name p0 netns %s", g.number, g.namespace)
		if err := netns.Do(g.namespace, func() error { return offload.Prepare("p0") }); err != nil {
			t.Fatal(err)
		}
		ip(t, g.namespace, "ip link set p0 up")
		ip(t, g.namespace, "ip -4 addr add 192.168.0.%d/24 dev p0", g.number)
	}
	var l *cable.Link
	if err := netns.Do(wire, func() (err error) {
		l, err = cable.New(cable.Options{Config: cable.Config{A: "w1", B: "w2", Forward: p, Backward: p, Seed: 1}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// change returns how long a gateway takes to act on a change of its path.
func change(t testing.TB, to linkmodel.Change, acted func(dataplane.LinkStatus) bool) time.Duration {
	a, b := pair(t, 1)
	const rate = 20 * unit.MbitPerSecond
	l := emulate(t, a, b, linkmodel.Profile{Rate: rate, Delay: 40 * time.Millisecond})
	for _, g := range []*gateway{a, b} {
		g.state.Paths[0].Up.Bandwidth, g.state.Paths[0].Down.Bandwidth = rate, rate
		g.run()
	}
	a.up(1)
	b.up(1)
	a.stream(b, 1300)
	time.Sleep(2 * time.Second)
	if s := a.plane.Status().Peers[0].Links[0]; acted(s) {
		t.Fatalf("before the change: %+v", s)
	}
	if err := l.Play(linkmodel.Schedule{{Change: to}}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for !acted(a.plane.Status().Peers[0].Links[0]) {
		if time.Since(start) > 5*time.Second {
			t.Fatalf("nothing was done: %+v", a.plane.Status().Peers[0].Links[0])
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}

// TestChanges: the sender acts on a change of jitter or rate of a path under traffic.
// BenchmarkChange measures how soon.
func TestChanges(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			t.Logf("after %v", change(t, c.to, c.acted))
		})
	}
}

// BenchmarkChange measures the time until a change of a path is acted on. A second run in one
// process would be beside the traffic of the first: use -count.
func BenchmarkChange(b *testing.B) {
	for _, c := range changes {
		b.Run(c.name, func(b *testing.B) {
			b.ReportMetric(milliseconds(change(b, c.to, c.acted)), "ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}
