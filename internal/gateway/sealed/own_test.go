package sealed

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestSecondAddress: a gateway whose line has several addresses answers from the one that a peer
// sends to. The peer is behind firewalls that know no other.
func TestSecondAddress(t *testing.T) {
	t.Parallel()
	nft := programs.Need(t, "nft")
	for _, tt := range []struct{ name, first, second, own string }{
		{"IPv4", "-4 addr add 192.168.%d.2/24", "-4 addr add 192.168.%d.9/24", "192.168.%d.9"},
		{"IPv6", "-6 addr add fd01:%d::2/64", "-6 addr add fd01:%d::9/64", "fd01:%d::9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := pair(t, 2)
			a.state.Peers[0].Endpoints = nil
			for i := range 2 {
				if tt.name == "IPv6" {
					ip(t, a.namespace, "ip -6 addr add fd01:%d::1/64 dev p%d nodad", i, i)
					ip(t, b.namespace, "ip "+tt.second+" dev p%d nodad", i, i)
					ip(t, b.namespace, "ip "+tt.first+" dev p%d nodad", i, i) // the latest one is preferred
				} else {
					ip(t, b.namespace, "ip "+tt.second+" dev p%d", i, i)
				}
				own := netip.MustParseAddr(fmt.Sprintf(tt.own, i))
				a.state.Peers[0].Endpoints = append(a.state.Peers[0].Endpoints, netip.AddrPortFrom(own, 4790))
			}
			netnstest.Do(t, a.namespace, func() error {
				return exec.Command(nft, `add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in udp dport 4790 ct state new drop`).Run()
			})
			for _, g := range []*gateway{a, b} {
				g.run()
			}
			a.up(2)
			b.up(2)
			for _, l := range a.plane.Status().Peers[0].Links {
				if l.Endpoint.Port() != 4790 || l.Endpoint != a.state.Peers[0].Endpoints[0] && l.Endpoint != a.state.Peers[0].Endpoints[1] {
					t.Errorf("path %q has %v", l.Path, l.Endpoint)
				}
			}
			// The peer's messages may later come to another one.
			if tt.name == "IPv4" {
				a.state.Peers[0].Endpoints = []netip.AddrPort{netip.MustParseAddrPort("192.168.0.2:4790"), netip.MustParseAddrPort("192.168.1.2:4790")}
				if err := a.plane.Apply(a.state); err != nil {
					t.Fatal(err)
				}
				for i := range 2 {
					ip(t, b.namespace, "ip -4 addr del 192.168.%d.9/24 dev p%d", i, i)
				}
				a.lose(0)
				eventually(t, "the first path is dead", func() bool { return a.ready(1) })
				a.deliver(0)
				a.up(2)
			}
		})
	}
}

// TestFormerPrefix: a line whose former prefix of IPv6 is preferred by the kernel, and is not routed
// to it any more, is used from its other address.
func TestFormerPrefix(t *testing.T) {
	t.Parallel()
	nft := programs.Need(t, "nft")
	a, b := pair(t, 2)
	a.state.Peers[0].Endpoints = nil
	for i := range 2 {
		for _, g := range []*gateway{b, a} {
			ip(t, g.namespace, "ip -6 addr add fd01:%d::%d/64 dev p%d nodad", i, g.number, i)
		}
		ip(t, a.namespace, "ip -6 addr add 2001:db8:%d::1/64 dev p%d nodad", i, i)
		ip(t, b.namespace, "ip -6 route add 2001:db8:%d::/64 dev p%d", i, i)
		a.state.Peers[0].Endpoints = append(a.state.Peers[0].Endpoints, netip.MustParseAddrPort(fmt.Sprintf("[fd01:%d::2]:4790", i)))
	}
	for _, g := range []*gateway{a, b} {
		g.run()
	}
	a.up(2)
	// Only from here on, and not so soon that a busy machine has the other line seem dead.
	a.plane.mu.Lock()
	a.plane.turnAfter = 2 * time.Second * sourceShare
	a.plane.mu.Unlock()
	netnstest.Do(t, b.namespace, func() error {
		return exec.Command(nft, `add table inet f; add chain inet f in { type filter hook prerouting priority 0; }; add rule inet f in ip6 saddr fd01:0::1 udp dport 4790 drop`).Run()
	})
	eventually(t, "the line is dead", func() bool { return a.ready(1) })
	a.up(2)
	want := netip.MustParseAddr("2001:db8::1")
	if got := a.plane.lines[0].source.Load(); got == nil || *got != want {
		t.Errorf("the line is used from %v, want %v", got, want)
	}
	if got := a.plane.lines[1].source.Load(); got != nil {
		t.Errorf("the other line sends from %v", got)
	}
	// Without that address, it is the kernel's choice again.
	netnstest.Do(t, b.namespace, func() error { return exec.Command(nft, `flush ruleset`).Run() })
	ip(t, a.namespace, "ip -6 addr del 2001:db8:0::1/64 dev p0")
	eventually(t, "the kernel selects the source", func() bool { return a.plane.lines[0].source.Load() == nil })
	a.up(2)
}

// TestKernelUsesOwnAddress: open data have the same source as the messages of the session.
func TestKernelUsesOwnAddress(t *testing.T) {
	for _, begins := range []bool{false, true} {
		s := newSpoofed(t, dataplane.Alliance{})
		r, kernel, own, want := s.r, &followed{}, netip.MustParseAddr("127.0.0.9"), netip.Addr{}
		at := newSomebody(t).at
		r.plane.opened, r.conf.Mode, r.conf.Endpoints = kernel, dataplane.Unsealed, nil
		if begins {
			r.conf.Endpoints = []netip.AddrPort{at}
		} else {
			want = own
		}
		r.links[0].address.remote = at
		r.learn(s.k, 0, s.line, at, own)
		r.mu.Lock()
		r.scheduling.reportMeasured()
		r.mu.Unlock()
		if got := kernel.paths[0].Local; got != want {
			t.Errorf("sessions begin here: %v: the kernel sends from %v, want %v", begins, got, want)
		}
	}
}
