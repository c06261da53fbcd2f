package openbpf

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestSessionTable: sessions that begin, change and end at random are those of a map, more are
// deleted than are waited for at once, and packets find them.
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
	got, read := map[tunnel.Flow]bool{}, 0
	s.far.Sessions(func(s Session) { got[s.Flow] = s.Open; read++ })
	if read != len(got) || !maps.Equal(got, want) {
		t.Fatalf("%d sessions, want %d", read, len(want))
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

// TestSessionSeed: flows to destinations that who knows the seed of a table has chosen all begin at
// one slot, and of those only as many get a session as are searched. In a table of another seed all
// do, and packets find them.
func TestSessionSeed(t *testing.T) {
	known, other := load(t, Options{}), load(t, Options{})
	if known.table.seed == other.table.seed {
		t.Fatalf("two tables have the seed %x", known.table.seed)
	}
	// The last word of an address whose sum with the seed is 0: the word before has no effect.
	last := -known.table.seed[3]
	var flows [2 * sessionProbes]tunnel.Flow
	for i := range flows {
		to := to6.As16()
		binary.NativeEndian.PutUint32(to[8:], uint32(i))
		binary.NativeEndian.PutUint32(to[12:], last)
		flows[i] = tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(from6, 1000), Destination: netip.AddrPortFrom(netip.AddrFrom16(to), 2000)}
	}
	for p, most := range map[*Program]int{known: sessionProbes, other: len(flows)} {
		p.routes4and6(t)
		planNAT(t, p, []netip.Addr{local6.Addr()})
		have, begin := 0, map[uint32]bool{}
		for _, f := range flows {
			key := sessionKey(This, &f)
			at, _ := probe(&p.table.seed, &key)
			begin[at%sessionSlots] = true
			refused := p.SetSession(This, f, true)
			m := message{hops: 9, Packet: dataplane.Packet{Src: from6, Dst: f.Destination.Addr(), Protocol: 17, SrcPort: 1000, DstPort: 2000}}
			verdict, _ := p.run(t, m.frame())
			if want := map[bool]uint32{true: redirect, false: next}[refused == nil]; verdict != want {
				t.Fatalf("a packet of %v: verdict %d, want %d: %v", f, int32(verdict), int32(want), refused)
			}
			if refused == nil {
				have++
			}
		}
		if have != most {
			t.Errorf("%d flows have sessions, want %d", have, most)
		}
		if chosen := p == known; chosen != (len(begin) == 1) {
			t.Errorf("seed known %v: the flows begin at %d slots", chosen, len(begin))
		}
	}
}

// TestSeedIsTakenOver: packets find the sessions of an instance that was taken over, and those that
// the next one adds.
func TestSeedIsTakenOver(t *testing.T) {
	gate := netnstest.New(t)
	pins := filepath.Join(bpftest.Mount(t), "gateway-1")
	if _, err := netnstest.TryIP(t, gate, "ip link add lan type veth peer name host"); err != nil {
		t.Fatal(err)
	}
	const each = 1000
	for instance := range uint16(2) {
		p := load(t, Options{Pins: pins})
		netnstest.Do(t, gate, func() error {
			a, err := p.Attach("lan")
			if err == nil {
				t.Cleanup(func() {
					if err := errors.Join(a.Detach(), p.Unpin()); err != nil {
						t.Error(err)
					}
				})
			}
			return err
		})
		p.routes4and6(t)
		planNAT(t, p, []netip.Addr{netip.MustParseAddr("192.0.2.9")})
		for port := range (instance + 1) * each {
			f := tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(from4, 1+port), Destination: netip.AddrPortFrom(to4, 2000)}
			if port >= instance*each {
				if err := p.SetSession(This, f, true); err != nil {
					t.Fatal(err)
				}
			}
			m := message{hops: 9, Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1 + port, DstPort: 2000}}
			if verdict, _ := p.run(t, m.frame()); verdict != redirect {
				t.Fatalf("instance %d: a packet of %v: verdict %d", instance, f, int32(verdict))
			}
		}
	}
}
