package bgp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/session"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// AddNeighbor adds a neighbor and starts its session. It returns before the session is up. It
// replaces a member of a group with the same address.
func (s *Speaker) AddNeighbor(conf Neighbor) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	if err := s.addNeighbor(conf, ""); err != nil {
		return fmt.Errorf("add neighbor %q: %w", conf.Name, err)
	}
	return nil
}

// DeleteNeighbor closes the session and deletes the neighbor. Its withdrawals and its Down are
// still reported. A member of a group cannot be deleted: it would connect again.
func (s *Speaker) DeleteNeighbor(name string) error {
	return s.change("delete", name, func(n *neighbor) error {
		s.remove(n)
		return nil
	})
}

// SetExport replaces the export policy of a neighbor while the session stays up (soft reset out):
// routes that are now rejected are withdrawn, all others are advertised again. The policy applies
// when SetExport returns; the UPDATEs follow. Setting the same policy has no effect.
func (s *Speaker) SetExport(name string, policy ExportPolicy) error {
	return s.change("set export policy of", name, func(n *neighbor) error {
		if err := policy.check(); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if n.conf.Export.equal(policy) {
			return nil
		}
		n.conf.Export = policy.clone()
		if n.exporter != nil {
			x := *n.exporter
			x.Export = n.conf.Export
			n.exporter = &x
		}
		for _, c := range n.feed.consumers {
			if c != nil {
				c.MarkAll()
			}
		}
		return nil
	})
}

// SetImport replaces the import policy of a neighbor while the session stays up (soft reset in):
// best paths are selected again, and an Update is reported for each route of the Adj-RIB-In that
// the policy changes. The policy applies when SetImport returns. Setting the same policy has no
// effect.
func (s *Speaker) SetImport(name string, policy ImportPolicy) error {
	return s.change("set import policy of", name, func(n *neighbor) error {
		if err := policy.check(); err != nil {
			return err
		}
		s.mu.Lock()
		same := n.conf.Import.equal(policy)
		limit := n.conf.Import.MaxPrefixes != policy.MaxPrefixes
		if !same {
			n.conf.Import = policy.clone()
			n.importer = s.newImporter(n)
		}
		held := limit && n.limit.held
		if limit {
			n.limit.exceeded = 0
		}
		s.mu.Unlock()
		if !same {
			n.reimport()
		}
		if held && n.limit.timer.Stop() {
			go n.unhold() // with another limit it may stay up
		}
		return nil
	})
}

// reimport applies the current import policy to the routes that were received before.
func (n *neighbor) reimport() {
	var at uint32
	var last struct {
		attributes *message.Attributes
		class
	}
	n.speaker.inSlices(func(f Family) bool {
		if n.source == rib.Local {
			return true
		}
		m := n.importer
		at = n.speaker.rib.Reimport(f, n.source, at, slice, func(k message.Key, p rib.Path) (accepted rib.ID, reason uint16) {
			defer func() {
				if value := recover(); value != nil {
					_ = n.speaker.contained(value, k) // it is logged, and the route rejected
					accepted, reason = 0, n.rejected(k, errPanic)
				}
			}()
			contain.PointAt(contain.BGPRoute, k)
			if a := n.speaker.rib.Attributes(p.Received); a != last.attributes || at == 0 {
				last.attributes, last.class = a, m.classify(f, a)
			}
			return m.accept(n, last.class, k, p.Label, p.Received)
		})
		return at == 0
	})
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	n.checkLimit()
}

// Reset closes the session, withdraws its routes before it returns, and restarts the session at
// once.
func (s *Speaker) Reset(name string) error {
	return s.call("reset", name, func(n *neighbor) error {
		if n.disabled.Load() {
			return errors.New("it is disabled")
		}
		n.release(func() {
			n.session.Reset(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeReset}, "reset")
		})
		return nil
	})
}

// Disable closes the session, withdraws its routes before it returns, and keeps the session down
// until Enable (as `neighbor X shutdown` does). It has no effect on a disabled session.
func (s *Speaker) Disable(name string) error {
	return s.change("disable", name, func(n *neighbor) error {
		if n.disabled.Load() {
			return nil
		}
		n.disabled.Store(true)
		s.bfd.Remove(name)
		n.release(func() {
			n.session.Disable(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeShutdown}, "disabled")
		})
		return nil
	})
}

// Enable reverts Disable. It has no effect on an enabled session.
func (s *Speaker) Enable(name string) error {
	return s.change("enable", name, func(n *neighbor) error {
		if !n.disabled.Load() {
			return nil
		}
		n.disabled.Store(false)
		n.speaker.mu.Lock()
		held := n.limit.held
		n.speaker.mu.Unlock()
		if !held {
			n.session.Enable()
		}
		return n.monitor()
	})
}

// Connect connects at once to the neighbors whose sessions are not up, instead of after
// Neighbor.ConnectRetry: a link has come up.
func (s *Speaker) Connect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.neighbors {
		n.session.Connect()
	}
}

// change calls f with a neighbor, which must not be a member of a group: its configuration is that
// of the group.
func (s *Speaker) change(verb, name string, f func(*neighbor) error) error {
	return s.call(verb, name, func(n *neighbor) error {
		if n.group != "" {
			return fmt.Errorf("it is a member of group %q, which changes as a whole", n.group)
		}
		return f(n)
	})
}

// call calls f with a neighbor.
func (s *Speaker) call(verb, name string, f func(*neighbor) error) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	err := s.usable()
	if err == nil {
		s.mu.Lock()
		n := s.neighbors[name]
		s.mu.Unlock()
		if n == nil {
			err = errors.New("unknown neighbor")
		} else {
			err = f(n)
		}
	}
	if err != nil {
		return fmt.Errorf("%s neighbor %q: %w", verb, name, err)
	}
	return nil
}

// Notification is the content of a NOTIFICATION message (RFC 4271 section 4.5).
type Notification = message.Notification

// NeighborState is the state of a session.
type NeighborState struct {
	Name     string
	Up       bool
	Disabled bool
	Reason   string // why it last went down; empty if it never did
	Down     string // why it is not up; empty if it is up
	Uptime   time.Duration
	Flaps    uint64       // how often it went down
	Sent     Notification // the last one; Code is 0 if there is none
	Received Notification // likewise
	Routes   int          // accepted unicast routes; -1 without ReportAdjIn and for internal neighbors
	Prefixes int          // unicast routes that the neighbor advertises, accepted or not
	// Counts are the routes of each family of Families, by their order.
	Families []Family
	Counts   []Count
	Beyond   uint64 // routes that were discarded because of MaxPrefixes
	BFD      bool   // BFD is configured
	BFDUp    bool   // its BFD session is up
	Retained int    // stale paths that are kept after the session ended
	// RetainedFor is for how long they are kept at most, and RetainedUntil what ends it sooner.
	RetainedFor   time.Duration
	RetainedUntil string
	// MessagesSent and MessagesReceived count messages by type.
	MessagesSent, MessagesReceived map[message.Type]uint64
	// Faults count the errors in UPDATEs that did not end the session, LastFault is the worst one
	// of the last such UPDATE.
	Faults    [message.Actions]uint64
	LastFault string
}

// Neighbors returns the state of all sessions, sorted by name. It does not wait for a change of
// neighbors, which takes a while with a full table.
func (s *Speaker) Neighbors() []NeighborState {
	all := s.all()
	states := make([]NeighborState, 0, len(all))
	for _, n := range all {
		states = append(states, n.state())
	}
	slices.SortFunc(states, func(a, b NeighborState) int { return strings.Compare(a.Name, b.Name) })
	return states
}

// state returns the state of a session.
func (n *neighbor) state() NeighborState {
	st := n.session.Status()
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	out := NeighborState{
		Name: n.conf.Name, Up: st.State == session.StateEstablished, Disabled: n.disabled.Load(), Reason: st.LastReset, Down: st.Down,
		Flaps: st.Flaps, Sent: st.Sent, Received: st.Received, Routes: -1,
		Prefixes: n.prefixes(IPv4Unicast) + n.prefixes(IPv6Unicast), Beyond: n.limit.count,
		BFD: n.conf.BFD.Enabled(), BFDUp: n.speaker.bfd.Up(n.conf.Name),
		MessagesSent: st.MessagesSent, MessagesReceived: st.MessagesReceived,
		Faults: n.faults.count, LastFault: n.faults.last,
	}
	if out.Up {
		out.Uptime = time.Since(st.Since)
	}
	if n.speaker.opt.Report&ReportAdjIn != 0 && !n.internal {
		out.Routes = n.accepted()
	}
	for f := range n.stale.families.All() {
		out.Families, out.Counts = append(out.Families, f), append(out.Counts, n.count(f))
	}
	if n.source != rib.Local {
		out.Retained = n.speaker.rib.Stale(n.source)
	}
	if out.Retained > 0 && n.stale.timer != nil {
		out.RetainedFor, out.RetainedUntil = time.Until(n.stale.due), n.stale.waiting(n)
	}
	return out
}
