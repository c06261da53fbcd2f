package bfd

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestPanicCostsTheSession: a session whose loop panics goes down and comes up again; the other one
// of the same process stays up. Packets that panic are dropped.
func TestPanicCostsTheSession(t *testing.T) {
	netnstest.NeedIsolation(t)
	addresses := []netip.Addr{netip.MustParseAddr("127.0.1.1"), netip.MustParseAddr("127.0.1.2"), netip.MustParseAddr("127.0.1.3")}
	transitions := map[string]chan transition{"a": make(chan transition, 8), "b": make(chan transition, 8)}
	var faults atomic.Int32
	e := newEngine(func(name string, t transition) { transitions[name] <- t }, func(error) { faults.Add(1) })
	defer e.die()
	far := newEngine(func(string, transition) {}, func(err error) { panic(err) })
	defer far.die()
	for i, name := range []string{"a", "b"} {
		if err := e.add(Neighbor{Name: name, Local: addresses[0], Remote: addresses[i+1], Config: slow}); err != nil {
			t.Fatal(err)
		}
		if err := far.add(Neighbor{Name: name, Local: addresses[i+1], Remote: addresses[0], Config: slow}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name string, want transition) {
		t.Helper()
		select {
		case got := <-transitions[name]:
			if got != want {
				t.Fatalf("session %s: transition %d, want %d", name, got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("session %s: no transition %d", name, want)
		}
	}
	want("a", cameUp)
	want("b", cameUp)
	var armed atomic.Bool
	armed.Store(true)
	t.Cleanup(contain.Inject(func(b contain.Boundary, text []byte) {
		if b == contain.BFD && string(text) == addresses[1].String() && armed.CompareAndSwap(true, false) {
			panic("BUG: injected")
		}
	}))
	want("a", wentDown)
	want("a", cameUp)
	if n := faults.Load(); n != 1 {
		t.Errorf("%d panics reported, want 1", n)
	}
	select {
	case got := <-transitions["b"]:
		t.Errorf("the other session: transition %d", got)
	default:
	}
}
