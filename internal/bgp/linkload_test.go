package bgp

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// TestLoad: a server receives the load of a link through a reflector, and each change of it; an
// egress peer receives nothing.
func TestLoad(t *testing.T) {
	asbr, rr, server, peer := newRouter(t, 1, 65000), newRouter(t, 2, 65000), newRouter(t, 3, 65000), newRouter(t, 4, 65001)
	asbr.peer(rr, func(n *Neighbor) { n.NextHopSelf = true })
	rr.peer(asbr, client)
	rr.peer(server, client)
	target := LoadTarget(65000)
	server.peer(rr, func(n *Neighbor) {
		n.Import.Services = &Services{Targets: []Target{{target, IPv6}}, Locators: []netip.Prefix{prefix("fcbb::/16")}}
	})
	peer.peer(asbr, passive)
	asbr.peer(peer, func(n *Neighbor) { n.ExportLocalOnly = true })
	report := func(l Load) {
		asbr.must(asbr.OriginateVPN([]VPNRoute{{RD: target, Prefix: LoadPrefix(sidA), NextHop: address(1), RTs: []vpn.ID{target}, SID: sidA, Structure: structure, Behavior: 18, Load: l}}))
	}
	key := VPNKey{target, LoadPrefix(sidA)}
	for _, want := range []Load{{1, 1, 1.25e9, 1e9}, {1, 2, 1.25e9, 1e9}, {1, 3, 1.25e9, 0}, {65535, math.MaxUint32, math.MaxFloat32, math.SmallestNonzeroFloat32}} {
		report(want)
		server.wait("load", func() bool { return server.vpn[key].Load == want })
	}
	asbr.must(asbr.WithdrawVPN([]VPNKey{key}))
	server.wait("withdrawal", func() bool { _, there := server.vpn[key]; return !there })
	peer.mu.Lock()
	defer peer.mu.Unlock()
	if len(peer.adjIn["r1"]) > 0 {
		t.Errorf("the peer received %v", peer.adjIn["r1"])
	}
}

func TestLoadCommunities(t *testing.T) {
	want := Load{Link: 7, Sample: 9, Capacity: 1.25e9, Used: 1e9}
	got := want.communities(4200000000)
	if as := got[0] >> 32 & 0xffff; as != message.ASTrans {
		t.Errorf("AS %d", as)
	}
	if l := loadOf(append([]uint64{LoadTarget(65000).Target()}, got...)); l != want {
		t.Errorf("decoded %+v", l)
	}
	for i := range got {
		if l := loadOf(slices.Delete(slices.Clone(got), i, i+1)); l != (Load{}) {
			t.Errorf("without the community %d: %+v", i, l)
		}
		if l := loadOf(append(slices.Clone(got), got[i])); l != (Load{}) {
			t.Errorf("with the community %d twice: %+v", i, l)
		}
		if got[i]>>62&1 == 0 {
			t.Errorf("the community %d is transitive", i)
		}
	}
}
