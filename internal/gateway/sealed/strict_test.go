package sealed

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// TestStrictRate: however much there is to send, and to however many peers, no more is sent on a
// line than its strict rate, and no peer sends more towards it. The links carry far more.
func TestStrictRate(t *testing.T) {
	const strict = 8 * unit.MbitPerSecond
	for _, tt := range []struct {
		name  string
		peers int // that are sent to
		set   func(hub *dataplane.State, spokes []*gateway)
	}{
		{"of the sender's line", 2, func(hub *dataplane.State, _ []*gateway) {
			hub.Paths[0].Strict, hub.Paths[0].Up.Bandwidth = true, strict
		}},
		{"of the receiver's line", 1, func(_ *dataplane.State, spokes []*gateway) {
			c := &spokes[0].state.Paths[0]
			c.Strict, c.Down.Bandwidth = true, strict
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			floodStrict(t, tt.peers, strict, tt.set)
		})
	}
}

// floodStrict has a gateway send far more than a rate to its peers, on a line that set has made
// strict.
func floodStrict(t *testing.T, peers int, strict unit.Bandwidth, set func(hub *dataplane.State, spokes []*gateway)) {
	t.Helper()
	hub, at := pair(t, 1)
	hub.state.Peers = nil
	spokes := hub.spokes(at, peers)
	policy := dataplane.Policy{{Discipline: dataplane.Discipline{Name: dataplane.Auto}}}
	hub.state.Policy = policy
	set(&hub.state, spokes)
	hub.open("tun0", hub.state)
	ip(t, hub.namespace, "ip link set tun0 up")
	ip(t, hub.namespace, "ip -4 addr add 10.0.1.1/32 dev tun0")
	var out []*net.UDPConn
	for i, o := range spokes {
		o.state.Policy = policy
		o.open(fmt.Sprint("tun", i+1), o.state)
		o.up(1)
		ip(t, hub.namespace, "ip -4 route add 10.1.%d.0/24 dev tun0 src 10.0.1.1", i+1)
		if err := netns.Do(hub.namespace, func() error {
			c, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 1, byte(i+1), 1), Port: 9})
			out = append(out, c)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer out[i].Close()
	}
	eventually(t, "the strict rate", func() bool {
		for _, p := range hub.plane.Status().Peers {
			if len(p.Links) != 1 || p.Links[0].State != "up" || p.Links[0].Rate > strict {
				return false
			}
		}
		return true
	})
	begin, before := time.Now(), hub.plane.Status()
	for end := begin.Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		for _, c := range out {
			for range 6 { // more than 20 Mbit/s
				if _, err := c.Write(make([]byte, 1000)); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Fatal(err)
				}
			}
		}
	}
	after, took := hub.plane.Status(), time.Since(begin)
	sum := after.Paths[0].Sent.Bytes - before.Paths[0].Sent.Bytes + inet.UDP4Len*(after.Paths[0].Sent.Packets-before.Paths[0].Sent.Packets)
	// Control messages are sent at once, and packets wait for them.
	if most := uint64(strict.SizeIn(took)) + 12_000; sum > most {
		t.Errorf("%d bytes were sent in %v, more than %d", sum, took, most)
	}
	for i, p := range after.Peers {
		if n := p.Links[0].Sent.Bytes - before.Peers[i].Links[0].Sent.Bytes; n < sum/10 {
			t.Errorf("%d of %d bytes were sent to %s", n, sum, p.Name)
		}
	}
}
