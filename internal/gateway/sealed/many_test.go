package sealed

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// TestManyPeers: all 1,008 paths to 63 peers that start at once come up, although their
// initiations, over each path to each address, keep the gateway busy.
func TestManyPeers(t *testing.T) {
	hub, at := pair(t, dataplane.MaxPaths)
	hub.state.Peers = nil
	spokes := hub.spokes(at, 63)
	hub.open("tun0", hub.state)
	for i, o := range spokes {
		o.open(fmt.Sprint("tun", i+1), o.state)
	}
	start := time.Now()
	for i, o := range spokes {
		for !o.ready(dataplane.MaxPaths) {
			if time.Since(start) > 2*time.Minute {
				t.Fatalf("peer %d is not up: %+v", i, o.plane.Status())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	t.Logf("up %s after the last has started, %d messages dropped while busy", time.Since(start).Round(time.Millisecond), hub.plane.Status().Dropped[reasonNames[dropBusy]])
}

// TestDefaultPeer: a peer with a default route gets what belongs to no other peer, and may send
// only from there: not from a longer prefix of another one.
func TestDefaultPeer(t *testing.T) {
	site, hub := pair(t, 1)
	branch := site.spokes(hub, 1)[0]
	site.state.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	branch.open("tun1", branch.state)
	ip(t, branch.namespace, "ip link set tun1 up")
	hub.run()
	site.run()
	ip(t, site.namespace, "ip -4 route add 10.0.0.0/8 dev tun0 src 10.0.1.1")
	hub.up(1)
	branch.up(1)
	eventually(t, "the paths of the site", func() bool {
		for _, p := range site.plane.Status().Peers {
			if len(p.Links) != 1 || p.Links[0].State != "up" {
				return false
			}
		}
		return true
	})
	delivered := func() [2]uint64 {
		return [2]uint64{hub.plane.Status().Delivered.Packets, branch.plane.Status().Delivered.Packets}
	}
	before := delivered()
	for _, to := range []string{"10.1.1.5:9", "10.77.0.1:9", "10.1.1.6:9", "10.1.2.5:9", "10.0.2.1:9"} {
		if _, err := dialFrom(t, site, to).Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "each peer has got its packets", 5*time.Second, func() bool {
		now := delivered()
		return now[0] == before[0]+3 && now[1] == before[1]+2
	})

	// The hub speaks for the branch.
	ip(t, hub.namespace, "ip -4 addr add 10.1.1.5/32 dev lo")
	ip(t, hub.namespace, "ip -4 addr add 10.77.0.1/32 dev lo")
	at := site.plane.Status()
	for _, from := range []string{"10.1.1.5:9", "10.77.0.1:9", "10.77.0.1:9"} {
		if err := netns.Do(hub.namespace, func() error {
			// Not connected: nobody listens, and the error of one packet would be that of the next.
			c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)))
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.WriteToUDPAddrPort(make([]byte, 100), netip.MustParseAddrPort("10.0.1.1:9"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "what the hub sends from its own prefix is delivered", 5*time.Second, func() bool {
		return site.plane.Status().Delivered.Packets >= at.Delivered.Packets+2
	})
	if s := site.plane.Status(); s.Delivered.Packets != at.Delivered.Packets+2 || s.Dropped[reasonNames[dropSource]] != at.Dropped[reasonNames[dropSource]]+1 {
		t.Errorf("delivered %d, dropped %v", s.Delivered.Packets-at.Delivered.Packets, s.Dropped)
	}
}
