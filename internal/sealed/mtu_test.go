package sealed

import (
	"testing"
	"time"
)

// The search finds what a path carries, within seconds, also after that has become less or more.
func TestMTUSearch(t *testing.T) {
	const interval = 250 * time.Millisecond
	var s mtuSearch
	now := time.Duration(0)
	run := func(carries, interfaceMTU int, length time.Duration) (probes int) {
		for end := now + length; now < end; now += interval {
			size := s.next(now, searchConfirm, interfaceMTU, true)
			if size == 0 {
				continue
			}
			probes++
			if size <= carries {
				s.carried(size)
			} else {
				s.lost(size)
			}
			if s.mtu > carries && s.times == 0 {
				t.Fatalf("at %v: MTU %d, the path carries %d", now, s.mtu, carries)
			}
		}
		return probes
	}
	for _, tt := range []struct {
		carries, interfaceMTU, least int
		within                       time.Duration
	}{
		{1428, 1500, 1428, interval},            // as the interface has it
		{1380, 1500, 1372, 20 * time.Second},    // a tunnel on the way from now on
		{1250, 1500, 1242, 20 * time.Second},    // and another one
		{1250, 1500, 1242, searchRaise / 2},     // it stays so
		{1428, 1500, 1428, 2 * searchRaise},     // the way is as before
		{8928, 9000, 8928, searchConfirm},       // another interface
		{1200, 9000, 1192 - 8, 2 * time.Minute}, // below the base of an earlier search
	} {
		run(tt.carries, tt.interfaceMTU, tt.within)
		if s.mtu < min(tt.least, tt.carries) || s.mtu > tt.carries {
			t.Errorf("at %v: MTU %d, the path carries %d", now, s.mtu, tt.carries)
		}
	}
	if got := s.limit(9000, true); got != s.mtu {
		t.Errorf("packets of %d bytes are sent, the path is known to carry %d", got, s.mtu)
	}
	// In the end few probes are sent.
	if n := run(1200, 9000, time.Minute); n > 20 {
		t.Errorf("%d probes in a minute", n)
	}
}

// Packets as long as the interface allows are sent until it is known that they do not arrive, and not again when
// larger ones are tried: a sender to whom a smaller size is reported keeps to it for minutes.
func TestMTUUntilKnown(t *testing.T) {
	var s mtuSearch
	const v4, most = true, 1428
	want := func(limit int) {
		t.Helper()
		if got := s.limit(1500, v4); got != limit {
			t.Errorf("packets of %d bytes are sent, want %d", got, limit)
		}
	}
	want(most)
	for range searchTimes {
		want(most)
		s.lost(s.next(0, searchConfirm, 1500, v4))
	}
	want(baseMTU)
	s.carried(1380)
	want(1380)
	s.bad, s.since = most, 1
	for range 40 { // until a larger size is tried
		s.next(2*searchRaise, searchConfirm, 1500, v4)
		want(1380)
	}
}
