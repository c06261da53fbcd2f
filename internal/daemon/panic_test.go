package daemon

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/route"
)

// injectOnce has the next entry of a boundary panic.
func injectOnce(t *testing.T, at contain.Boundary) {
	t.Helper()
	armed := true
	t.Cleanup(contain.Inject(func(b contain.Boundary, _ []byte) {
		if b == at && armed {
			armed = false
			panic("BUG: injected")
		}
	}))
}

// TestPanicInTheLoop: wherever the loop panics, it goes on, reads the kernel again and has the
// desired state applied.
func TestPanicInTheLoop(t *testing.T) {
	run(t, func(r *rig) {
		r.learn(path(onLink))
		r.want("at first", true)
		// A reconciliation that panics: what another program removed is restored by the next one.
		r.in(func() { r.kernel.Remove(clientKey) })
		injectOnce(t, contain.Reconcile)
		r.events <- route.Overrun{}
		time.Sleep(retryMost + time.Second)
		r.want("after a panic of the reconciliation", true)
		// An event that panics: the links are read again.
		r.in(func() { clear(r.links) })
		injectOnce(t, contain.KernelEvent)
		r.events <- route.LinkChange{Link: route.Link{Index: 2, Name: "lan", Admin: true, Up: true}}
		time.Sleep(retryMost + time.Second)
		r.in(func() {
			if !r.links["lan"] {
				t.Error("the links were not read again after a panic of an event")
			}
		})
	})
}

// TestPanicOfRequest: a request that panics is a panic of who asked; the loop goes on.
func TestPanicOfRequest(t *testing.T) {
	run(t, func(r *rig) {
		err := contain.Do(contain.Request, nil, nil, func() { r.Do(context.Background(), func() { panic("BUG: asked") }) })
		var fault *contain.Error
		if !errors.As(err, &fault) || err.Error() != "BUG: asked" {
			t.Errorf("error %v", err)
		}
		r.learn(path(onLink))
		r.want("after the request", true)
	})
}

// poisoned is a machine that panics at a prefix.
type poisoned struct {
	*rig
	prefix  netip.Prefix
	applied map[netip.Prefix]bool
}

func (p *poisoned) BGP(events []bgp.Event) {
	for _, e := range events {
		if u, ok := e.(bgp.UnicastPath); ok {
			if p.applied[u.Prefix] = !u.Withdrawn; !u.Withdrawn && u.Prefix == p.prefix {
				panic("BUG: poison")
			}
		}
	}
}

// TestPanicCostsTheRoute: of a batch with an event that panics, that route is withdrawn and all
// others are applied. If the withdrawal panics too, the loop must not go on.
func TestPanicCostsTheRoute(t *testing.T) {
	run(t, func(r *rig) {
		prefixes := []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("2001:db8:2::/48"), netip.MustParsePrefix("2001:db8:3::/48")}
		p := &poisoned{rig: r, prefix: prefixes[1], applied: map[netip.Prefix]bool{}}
		var events []bgp.Event
		for i, prefix := range prefixes {
			events = append(events, bgp.UnicastPath{Prefix: prefix, Number: uint32(i + 7), NextHop: onLink})
		}
		r.in(func() { r.learner(p)(events) })
		for i, prefix := range prefixes {
			if p.applied[prefix] != (i != 1) {
				t.Errorf("%s is applied: %t", prefix, p.applied[prefix])
			}
		}
		t.Cleanup(contain.Inject(func(b contain.Boundary, _ []byte) {
			if b == contain.BGPRoute {
				panic("BUG: any event")
			}
		}))
		err := contain.Do(contain.Request, nil, nil, func() { r.Do(context.Background(), func() { r.learner(p)(events) }) })
		if err == nil || err.Error() != "BUG: any event" {
			t.Errorf("a withdrawal that panics is contained: %v", err)
		}
	})
}
