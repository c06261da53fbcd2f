package choice

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func addresses(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func TestInterleave(t *testing.T) {
	for _, tt := range []struct{ in, want []netip.Addr }{
		{nil, nil},
		{addresses("2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2", "192.0.2.3"), addresses("2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2", "192.0.2.3")},
		{addresses("192.0.2.1", "192.0.2.2", "2001:db8::1"), addresses("192.0.2.1", "2001:db8::1", "192.0.2.2")},
	} {
		if got := Interleave(tt.in); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestOrder(t *testing.T) {
	now := time.Unix(1000, 0)
	list := []Upstream{{Active: 3}, {Active: 1}, {Active: 1}, {}}
	if got, want := Order(list, now), []int{3, 1, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if list[3].Failed(now) || list[3].Down() {
		t.Error("one failure is enough")
	}
	if !list[3].Failed(now) || !list[3].Down() || list[3].Failed(now) {
		t.Error("the second failure in a row does not take it down, once")
	}
	if got, want := Order(list, now), []int{1, 2, 0, 3}; !slices.Equal(got, want) {
		t.Errorf("order %v with the last one down, want %v", got, want)
	}
	if got := Order(list, now.Add(downFor)); got[0] != 3 {
		t.Errorf("order %v after a while: the last one is not tried again", got)
	}
	list[3].Succeeded()
	if list[3].Down() {
		t.Error("it is down after a success")
	}
}

func TestMemory(t *testing.T) {
	now := time.Unix(1000, 0)
	var m Memory
	d := netip.MustParseAddrPort("192.0.2.1:80")
	if m.Has(d, now) || !m.Remember(d, now, Remembered) || m.Remember(d, now, Remembered) || !m.Has(d, now.Add(Remembered-1)) {
		t.Error("a destination is not remembered, or is new twice")
	}
	if m.Has(d, now.Add(Remembered)) {
		t.Error("a destination is remembered for too long")
	}
	m.Remember(d, now, Late)
	if m.Forget(d); m.Has(d, now) {
		t.Error("a destination is not forgotten")
	}
	for i := range maxRemembered + 10 {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
		m.Remember(a, now.Add(time.Duration(i)), Remembered)
		if !m.Has(a, now) {
			t.Fatalf("destination %d is not remembered", i)
		}
	}
	n := 0
	m.Each(now, func(netip.AddrPort, time.Duration) { n++ })
	if n != maxRemembered {
		t.Errorf("%d destinations are remembered, want %d", n, maxRemembered)
	}
}
