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
			size := s.next(now, interfaceMTU, true)
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
	// In the end few probes are sent.
	if n := run(1200, 9000, time.Minute); n > 20 {
		t.Errorf("%d probes in a minute", n)
	}
}
