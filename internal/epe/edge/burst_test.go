package edge

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/daemon"
)

// announceBoth has both peers announce many networks.
func (s *spreading) announceBoth() {
	for i := range manyNetworks {
		s.announce("1", many(i), true)
		s.announce("2", many(i), true)
	}
	s.settle(100)
}

// TestBurst: a peer that withdraws most of its routes one by one is left by all networks before
// each of them is brought up to date, and used again for those that it still announces, and never
// for others, once that has ended.
func TestBurst(t *testing.T) {
	for _, test := range []struct {
		name string
		mode Mode
		// with is where the networks are delivered to with b, without where they are without it.
		with, without []string
	}{
		{"spread", Mode{Spread: map[string]uint32{"a": 2, "b": 1}}, []string{sidA, sidB}, []string{sidA}},
		{"single", Mode{Single: "b"}, []string{sidB}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSpreadingIn(t, test.mode)
			now := time.Unix(1000, 0)
			s.now = func() time.Time { return now }
			var later []func()
			s.after = func(d time.Duration, f func()) {
				if d != burstFor {
					t.Errorf("after %v, want %v", d, burstFor)
				}
				later = append(later, f)
			}
			s.announceBoth()
			through := func(i int) []string { return s.kernel.through(netip.MustParsePrefix(many(i))) }
			check := func(withdrawn int, with []string) {
				t.Helper()
				for i := range manyNetworks {
					want := with
					if i < withdrawn {
						want = test.without
					}
					if got := through(i); !slices.Equal(got, want) {
						t.Fatalf("%d of %d are withdrawn: network %d through %q, want %q", withdrawn, manyNetworks, i, got, want)
					}
				}
			}
			gone := 0
			withdraw := func(most int) {
				for ; most > 0; most-- {
					s.announce("2", many(gone), false)
					gone++
				}
			}
			withdraw(2 * fewInBurst)
			now = now.Add(burstFor)
			withdraw(1)
			s.settle(20)
			if len(later) > 0 {
				t.Fatal("a few routes in a time are a burst")
			}
			check(gone, test.with)

			for i := range gone {
				s.announce("2", many(i), true)
			}
			s.settle(100)
			gone = 0
			withdraw(2*fewInBurst + 1)
			if len(later) == 0 {
				t.Fatal("no burst")
			}
			if got := through(manyNetworks - 1); !slices.Equal(got, test.without) {
				t.Errorf("a network that is not withdrawn is through %q at once, want %q", got, test.without)
			}
			s.settle(20)
			check(gone, test.without)
			later[0]()
			if s.settle(20); len(later) != 2 {
				t.Fatalf("%d callbacks, want one more", len(later))
			}
			check(gone, test.without)
			later[1]()
			s.settle(20)
			check(gone, test.with)
			if n := s.flushes.Pending(); n > 0 || s.delivery.suspended.active || s.delivery.suspended.peers != 0 {
				t.Errorf("%d pending, %+v", n, s.delivery.suspended)
			}
		})
	}
}

// TestBurstLostSID: what a burst suspended does not return while its SID is unreachable.
func TestBurstLostSID(t *testing.T) {
	s := newSpreadingIn(t, Mode{Single: "b"})
	var later []func()
	s.after = func(_ time.Duration, f func()) { later = append(later, f) }
	s.egress.locator(locator("fc00:2::/32", true))
	s.announceBoth()
	for i := range daemon.Step + 1 {
		s.announce("2", many(i), false)
	}
	s.egress.locator(locator("fc00:2::/32", false))
	for s.step(daemon.Step) {
	}
	for len(later) > 0 {
		f := later[0]
		later = later[1:]
		f()
	}
	if s.settle(20); len(s.kernel.routes) > 0 {
		t.Errorf("%d routes through an unreachable SID", len(s.kernel.routes))
	}
	s.egress.locator(locator("fc00:2::/32", true))
	if s.settle(20); len(s.kernel.routes) != manyNetworks-daemon.Step-1 {
		t.Errorf("%d routes after it is reachable again, want %d", len(s.kernel.routes), manyNetworks-daemon.Step-1)
	}
}

// TestCoveringRoute: a peer that withdraws a route to many networks is left by all of them at once,
// also where there is no other, and used again for others once they are up to date.
func TestCoveringRoute(t *testing.T) {
	s := newSpreadingIn(t, Mode{Single: "b"})
	var later []func()
	s.after = func(_ time.Duration, f func()) { later = append(later, f) }
	s.announceMany()
	if n := len(s.kernel.routes); n != manyNetworks+2 {
		t.Fatalf("%d routes, want %d", n, manyNetworks+2)
	}
	s.announce("2", "2a00::/12", false)
	left := func(want int) {
		t.Helper()
		if n := len(s.kernel.routes); n != want {
			t.Errorf("%d routes, want %d", n, want)
		}
	}
	left(0)
	if len(later) != 1 {
		t.Fatalf("%d callbacks", len(later))
	}
	later[0]() // before the networks are up to date
	if len(s.delivery.due) == 0 || len(later) != 2 {
		t.Fatalf("%d networks are due, %d callbacks", len(s.delivery.due), len(later))
	}
	s.settle(20)
	left(0)
	later[1]()
	s.settle(20)
	left(1)
	if got := s.kernel.through(netip.MustParsePrefix(networkOfBoth)); !slices.Equal(got, []string{sidB}) {
		t.Errorf("through %q", got)
	}

	// It has no other route.
	s.announce("2", networkOfBoth, false)
	s.announce("2", "2a00::/12", true)
	s.settle(20)
	left(manyNetworks + 1)
	s.announce("2", "2a00::/12", false)
	left(0)
}
