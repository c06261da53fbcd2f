package forward

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/tunnel"
)

// TestSessionTable: sessions that begin, change and end at random are those of a map, more are deleted than are waited for at
// once, and packets find them.
func TestSessionTable(t *testing.T) {
	s := newSites(t, netip.MustParseAddr("192.0.2.9"))
	r := rand.New(rand.NewPCG(12, 21))
	want := map[tunnel.Flow]bool{} // open
	for range 100_000 {
		f := tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(from4, uint16(1+r.IntN(20_000))), Destination: netip.AddrPortFrom(to4, 2000)}
		if r.IntN(2) == 0 {
			if err := s.far.DeleteSession(3, f); err != nil {
				t.Fatal(err)
			}
			delete(want, f)
			continue
		}
		open := r.IntN(4) > 0
		if err := s.far.SetSession(3, f, open); err != nil {
			t.Fatal(err)
		}
		want[f] = open
	}
	list, err := s.far.Sessions()
	if err != nil {
		t.Fatal(err)
	}
	got := map[tunnel.Flow]bool{}
	for i := range list {
		got[list[i].Flow] = list[i].Open
	}
	if len(list) != len(got) || !maps.Equal(got, want) {
		t.Fatalf("%d sessions, want %d", len(list), len(want))
	}
	for port := range uint16(1000) {
		f := tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(from4, 1+port), Destination: netip.AddrPortFrom(to4, 2000)}
		m := message{hops: 9}
		m.Src, m.Dst, m.Protocol, m.SrcPort, m.DstPort = s.paths[0], to4, 17, 1+port, 2000
		verdict, _ := s.far.restored(t, m.frame())
		if expected := map[bool]uint32{true: next, false: drop}[want[f]]; verdict != expected {
			t.Fatalf("a packet of %v: verdict %d, want %d", f, int32(verdict), int32(expected))
		}
	}
}
