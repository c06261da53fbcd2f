package sealed

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// dropped returns how many packets were dropped for a reason.
func (g *gateway) dropped(r reason) uint64 { return g.plane.counts.dropped[r].Load() }

// TestCompatibleProbes: both gateways measure each path by open probes. A stranger, and a reply
// that belongs to no probe, change nothing.
func TestCompatibleProbes(t *testing.T) {
	a, b := pair(t, 2)
	for _, g := range []*gateway{a, b} {
		g.state.Probes = dataplane.Probes{Compatible: true, Idle: 20 * time.Millisecond, Busy: 20 * time.Millisecond}
		g.run()
	}
	a.up(2)
	b.up(2)
	measured := func(g *gateway) func() bool {
		return func() bool {
			r := g.plane.routing.Load().peers[0]
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := range 2 {
				c := &r.links[i].compatible
				if !c.answered || c.delay.Value <= 0 || c.number < 5 || r.scheduling.paths[i].Delay != c.delay.Value || r.scheduling.paths[i].Jitter != c.jitter || r.links[i].shaped {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "replies on both paths of both", measured(a))
	eventually(t, "replies on both paths of both", measured(b))

	forge := func(from string, payload []byte) (answered bool) {
		t.Helper()
		if err := netns.Do(b.namespace, func() error {
			conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.168.0.1:4790")))
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := conn.Write(payload); err != nil {
				return err
			}
			conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			_, err = conn.Read(make([]byte, 100))
			answered = err == nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return answered
	}
	before := a.dropped(dropStranger)
	if forge("192.168.0.2:0", tunnel.CompatibleProbe{Number: 1}.Append(nil)) || a.dropped(dropStranger) != before+1 {
		t.Errorf("a stranger's probe is answered, or not counted: %d of %d", a.dropped(dropStranger), before)
	}
	r := a.plane.routing.Load().peers[0]
	r.mu.Lock()
	to := r.links[0].address.remote
	at := r.links[0].line
	r.mu.Unlock()
	replayed, malformed := a.dropped(dropReplayed), a.dropped(dropMalformed)
	out := newBatch(a.plane, 1<<12)
	a.plane.takeCompatible(at, tunnel.CompatibleReply{Number: 1, Sent: 1, Jitter: 1e9}.Append(nil), to, out)
	a.plane.takeCompatible(at, tunnel.CompatibleProbe{Path: 1}.Append(nil), to, out)
	a.plane.takeCompatible(at, make([]byte, 33), to, out)
	if a.dropped(dropReplayed) != replayed+1 || a.dropped(dropMalformed) != malformed+2 {
		t.Errorf("%d replayed and %d malformed, want %d and %d", a.dropped(dropReplayed), a.dropped(dropMalformed), replayed+1, malformed+2)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links[0].compatible.jitter > time.Second {
		t.Errorf("a forged reply has set the jitter to %s", r.links[0].compatible.jitter)
	}
}

// TestProbesOfSlowPaths: on a slow path, probes take a hundredth of its rate, but there is one each
// second.
func TestProbesOfSlowPaths(t *testing.T) {
	a, b := pair(t, 1)
	for _, g := range []*gateway{a, b} {
		g.state.Paths[0].Up = dataplane.Rate{Bandwidth: 10 * unit.MbitPerSecond}
		g.state.Paths[0].Down = dataplane.Rate{Bandwidth: 10 * unit.MbitPerSecond}
	}
	a.run()
	b.run()
	a.up(1)
	r := a.plane.routing.Load().peers[0]
	for _, tt := range []struct {
		up, down unit.Bandwidth
		length   int
		busy     bool
		want     time.Duration
	}{
		{10 * unit.MbitPerSecond, 10 * unit.MbitPerSecond, 200, true, probeBusy},
		{10 * unit.MbitPerSecond, 10 * unit.MbitPerSecond, 200, false, probeIdle},
		{unit.MbitPerSecond, 10 * unit.MbitPerSecond, 200, true, 160 * time.Millisecond},
		{10 * unit.MbitPerSecond, unit.MbitPerSecond, 200, true, 160 * time.Millisecond},
		{64 * unit.KbitPerSecond, 384 * unit.KbitPerSecond, 200, true, probeIdle},
		{0, 0, 200, true, probeBusy},
	} {
		r.mu.Lock()
		l := &r.links[0]
		conf := *l.line.conf.Load()
		conf.Down.Bandwidth = tt.down
		l.line.conf.Store(&conf)
		l.rates.up, l.rates.known, l.probing.controlLen = dataplane.Rate{Bandwidth: tt.up}, false, tt.length
		now := a.plane.now()
		r.active.Store(int64(now))
		if !tt.busy {
			r.active.Store(int64(now - 2*busyWindow))
		}
		got := r.prober.interval(l, now)
		r.mu.Unlock()
		if got != tt.want {
			t.Errorf("up %s, down %s, busy %t: a probe each %s, want %s", tt.up, tt.down, tt.busy, got, tt.want)
		}
	}
}
