package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/epe/spray"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/route"
)

// A measurement borrows the delivery to one client address for the time of a trial. What is
// borrowed is in no file: it ends by itself unless it is renewed, and the next instance removes its
// route as any other that it does not want.

const (
	// BorrowedFor is how long a delivery is borrowed unless it is renewed: what a server that was
	// killed has borrowed ends then.
	BorrowedFor = 10 * time.Second
	// mostBorrowed bounds the addresses.
	mostBorrowed = 64
	// borrowedRule is the name of the rule, which status shows.
	borrowedRule = "measurement"
	// throughPrefix and a peer's name are the name of the mode that is single through that peer.
	throughPrefix = "through."
)

// borrowed is the delivery to a client address for a trial.
type borrowed struct {
	rule  *deliveryRule
	until time.Time
}

// BorrowedModes returns the names of the modes that Borrow takes.
func (e *Edge) BorrowedModes(ctx context.Context) (names []string, err error) {
	if !e.daemon.Do(ctx, func() { names = e.egress.borrowedModes() }) {
		return nil, errors.New("not running")
	}
	return names, nil
}

// Borrow delivers to a client address by a mode for BorrowedFor. Another call renews or replaces
// it. An error says why the mode is not possible, and nothing has changed then.
func (e *Edge) Borrow(ctx context.Context, client netip.Addr, mode string) (err error) {
	marks := e.addMarks(ctx)
	if !e.daemon.Change(ctx, func() {
		marks()
		err = e.egress.borrow(client, mode)
	}) {
		return errors.New("not running")
	}
	if err == nil {
		time.AfterFunc(BorrowedFor, func() {
			// The delivery of a daemon that has ended has ended as well; a panic is logged.
			_ = contain.Do(contain.Reconcile, e.log, nil, func() { e.daemon.Change(context.Background(), e.egress.returnDue) })
		})
	}
	return err
}

// Return ends what Borrow does for a client address.
func (e *Edge) Return(ctx context.Context, client netip.Addr) error {
	if !e.daemon.Change(ctx, func() { e.egress.returnBorrowed(host(client)) }) {
		return errors.New("not running")
	}
	return nil
}

func (e *egress) borrowedModes() (names []string) {
	if e.config.Routes == KernelRoutes || e.delivery.rules.dry {
		return nil
	}
	if e.delivery.rules.learns {
		names = append(names, modeAuto)
	}
	if len(e.peers) > 1 {
		if e.config.Delivery.spreads() {
			names = append(names, modeSpread)
		}
		if e.sprayer != nil {
			names = append(names, modeSpray)
		}
	}
	for i, p := range e.peers {
		// A neighbor of both IP versions has one name.
		if !slices.ContainsFunc(e.peers[:i], func(other *peer) bool { return other.RT == p.RT }) {
			names = append(names, throughPrefix+p.Name)
		}
	}
	return names
}

// borrow replaces the delivery to a client address.
func (e *egress) borrow(client netip.Addr, name string) error {
	prefix := host(client)
	var faults fault.List
	switch {
	case !slices.Contains(e.borrowedModes(), name):
		return fmt.Errorf("edge cannot deliver by %q; it has %s", name, strings.Join(e.borrowedModes(), ", "))
	case !e.config.checkNetwork(&faults, "client", prefix):
		return faults.Err()
	case e.delivery.borrowed[prefix] == nil && len(e.delivery.borrowed) >= mostBorrowed:
		return fmt.Errorf("%d clients are measured already", len(e.delivery.borrowed))
	}
	if name == modeAuto {
		// What is chosen for the network of the client is what applies without a rule of its own.
		e.returnBorrowed(prefix)
		if !e.isAuto(prefix) {
			return fmt.Errorf("the delivery to %s is not auto", client)
		}
		return nil
	}
	var names []string
	for _, p := range e.peers {
		if bgp.IPOf(p.Address) == bgp.IPOf(client) {
			names = append(names, p.Name)
		}
	}
	mode, least := Mode{}, 2
	switch peer, through := strings.CutPrefix(name, throughPrefix); {
	case through:
		mode.Single, least = peer, 1
	case name == modeSpread:
		mode.Spread = map[string]uint32{}
		for _, n := range names[:min(len(names), route.MaxMembers)] {
			mode.Spread[n] = 1
		}
	default:
		mode.Spray = names[:min(len(names), spray.MaxPaths)]
	}
	rule := newDeliveryRule(borrowedRule, mode)
	if members, _ := e.members(rule, prefix); len(members) < least {
		return fmt.Errorf("%d of the peers of %q have a route to %s, and it needs %d", len(members), name, client, least)
	}
	e.delivery.borrowed[prefix] = &borrowed{rule, e.now().Add(BorrowedFor)}
	e.deliver(prefix)
	return nil
}

// isAuto reports whether packets to an address are delivered by what was measured best.
func (e *egress) isAuto(prefix netip.Prefix) bool {
	_, n, ok := e.delivery.networks.LookupPrefixLPM(prefix)
	return ok && n.rule != nil && n.rule.auto
}

// returnBorrowed ends the delivery to a client address by a mode of its own.
func (e *egress) returnBorrowed(prefix netip.Prefix) {
	if e.delivery.borrowed[prefix] != nil {
		delete(e.delivery.borrowed, prefix)
		e.deliver(prefix)
	}
}

// returnDue ends the deliveries that were not renewed.
func (e *egress) returnDue() {
	for prefix, b := range e.delivery.borrowed {
		if !e.now().Before(b.until) {
			e.returnBorrowed(prefix)
		}
	}
}
