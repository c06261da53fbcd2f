package belief

import (
	"net/netip"
	"testing"
	"time"
)

// TestSmallTogether: what small connections carry in a time is known also where many are reported
// at once, and count as one group.
func TestSmallTogether(t *testing.T) {
	table := New(Options{Start: Best, Explore: 0.1, Networks: 1})
	prefix, now := netip.MustParsePrefix("2001:db8::/48"), time.Unix(1_800_000_000, 0)
	var usual Small
	groups := 0
	const each, bytes = 30 * SmallGroup, 10_000
	for range 5 {
		for range each {
			if usual.Add(now, Best, bytes, bytes, 50*time.Millisecond, 50*time.Millisecond) {
				table.TrySmall(now, prefix, 64512, []Mode{Best}, &usual)
				groups++
			}
		}
		now = now.Add(time.Second)
	}
	if got := usual.Carried(time.Second); got < 0.9*each*bytes || got > 1.1*each*bytes {
		t.Errorf("%.0f bytes in a second, want %d", got, each*bytes)
	}
	if groups > 5 {
		t.Errorf("%d groups in 5 reports", groups)
	}
	// A group that ends in a moment of its own has another one begin with the next connection.
	usual = Small{}
	for i := range 2 * SmallGroup {
		complete := usual.Add(now, Best, bytes, bytes, 50*time.Millisecond, 50*time.Millisecond)
		if complete != (i%SmallGroup == SmallGroup-1) {
			t.Fatalf("connection %d: complete %t", i, complete)
		}
		if complete {
			table.TrySmall(now, prefix, 64512, []Mode{Best}, &usual)
		}
		now = now.Add(time.Second)
	}
	if got := usual.Carried(time.Second); got < bytes || got > 1.1*bytes {
		t.Errorf("%.0f bytes in a second, want %d", got, bytes)
	}
}
