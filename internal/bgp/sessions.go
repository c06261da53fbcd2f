package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/bfd"
)

// sessions are the neighbors of a speaker and their sessions.
type sessions struct {
	*instance
	originated *originated
	// updates queues Update events.
	updates func([]Event)
	// retention processes the events of the BGP server before they are queued.
	retention *retention
	// bfd replaces GoBGP's BFD, which stops by itself when a neighbor is silent, and may reset
	// the session that follows.
	bfd *bfd.Detector

	neighbors map[string]*neighbor // by name, guarded by calls

	// mu guards what the callbacks of the BGP server read. It must not be held during a call of
	// the BGP server.
	mu     sync.Mutex
	byAddr map[netip.Addr]*neighbor
}

func newSessions(i *instance, o *originated, q *queue) *sessions {
	s := &sessions{
		instance: i, originated: o, updates: func(e []Event) { q.put(e...) }, retention: newRetention(func(e Event) { q.put(e) }),
		neighbors: map[string]*neighbor{}, byAddr: map[netip.Addr]*neighbor{},
	}
	s.bfd = bfd.New(i.log, (&failover{sessions: s}).bfdDown)
	return s
}

// AddNeighbor adds a neighbor and starts its session. It returns before the session is up.
func (s *sessions) AddNeighbor(ctx context.Context, conf Neighbor) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	if err := s.addNeighbor(ctx, conf); err != nil {
		return fmt.Errorf("add neighbor %q: %w", conf.Name, err)
	}
	return nil
}

func (s *sessions) addNeighbor(ctx context.Context, conf Neighbor) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := conf.check(s.opt.ASN); err != nil {
		return err
	}
	if conf.Import.WarnPrefixes > 0 && (s.opt.Report&ReportAdjIn == 0 || conf.ASN == s.opt.ASN) {
		return errors.New("warn prefixes need ReportAdjIn and a neighbor of another as")
	}
	if conf.Retain > 0 && s.opt.Report&ReportAdjIn != 0 {
		return errors.New("routes cannot be retained with ReportAdjIn")
	}
	if _, ok := s.neighbors[conf.Name]; ok {
		return errors.New("name is in use")
	}
	for _, other := range s.neighbors {
		// The zone is not compared: policies identify neighbors by address only.
		if other.Address == conf.Address {
			return fmt.Errorf("address %s is that of neighbor %q", conf.Address, other.Name)
		}
	}
	conf.Families = slices.Clone(conf.Families)
	// Unicast is first, so that next hops are received, and withdrawn, before the routes that
	// use them.
	slices.Sort(conf.Families)
	conf.Locators = slices.Clone(conf.Locators)
	conf.Import, conf.Export.Reject = conf.Import.clone(), slices.Clone(conf.Export.Reject)
	n := &neighbor{Neighbor: conf, key: conf.Address.WithZone(conf.Interface), adjIn: map[netip.Prefix]struct{}{},
		rules: policyEntry{Neighbor: conf, ownASN: s.opt.ASN}}
	s.neighbors[n.Name] = n
	s.mu.Lock()
	previous := s.byAddr[n.key]
	s.byAddr[n.key] = n
	s.mu.Unlock()
	s.endPrevious(previous)
	err := s.setPolicies(ctx)
	if err == nil {
		err = s.monitor(n)
	}
	if err == nil {
		err = s.addPeer(ctx, n)
	}
	if err != nil {
		s.cleanUp(n)
		delete(s.neighbors, n.Name)
		return errors.Join(err, s.setPolicies(ctx))
	}
	return nil
}

// DeleteNeighbor closes the session and deletes the neighbor. Its withdrawals and its Down are
// still reported; a neighbor of another name may use the address only after the Down.
func (s *sessions) DeleteNeighbor(ctx context.Context, name string) error {
	return s.change("delete", name, func(n *neighbor) error {
		s.cleanUp(n)
		if !n.disabled {
			if err := s.deletePeer(ctx, n, "deleted"); err != nil {
				return err
			}
		}
		// byAddr keeps the neighbor, since events of the end of the session may still
		// arrive.
		delete(s.neighbors, n.Name)
		return s.setPolicies(ctx)
	})
}

// SetExport replaces the export policy of a neighbor while the session stays up (soft reset out):
// routes that are now rejected are withdrawn, all others are advertised again. The policy applies
// when SetExport returns; the UPDATEs follow. Setting the same policy has no effect.
func (s *sessions) SetExport(ctx context.Context, name string, policy ExportPolicy) error {
	return s.change("set export policy of", name, func(n *neighbor) error {
		if err := checkRejected(policy.Reject); err != nil {
			return err
		}
		if n.Export.equal(policy) {
			return nil
		}
		old := n.Export
		n.Export = ExportPolicy{Reject: slices.Clone(policy.Reject), Shutdown: policy.Shutdown}
		if err := s.setPolicies(ctx); err != nil {
			n.Export = old
			return errors.Join(err, s.setPolicies(ctx))
		}
		if n.disabled {
			return nil // the next session starts with the new policy
		}
		return s.server.ResetPeer(ctx, &api.ResetPeerRequest{
			Address: n.key.String(), Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT,
		})
	})
}

// SetImport replaces the import policy of a neighbor while the session stays up (soft reset in):
// best paths are selected again, and an Update is reported for each route of the Adj-RIB-In whose
// acceptance changes. Setting the same policy has no effect.
func (s *sessions) SetImport(ctx context.Context, name string, policy ImportPolicy) error {
	return s.change("set import policy of", name, func(n *neighbor) error {
		if err := policy.check(); err != nil {
			return err
		}
		old := n.Import
		if old.equal(policy) {
			return nil
		}
		n.Import = policy.clone()
		if err := s.setPolicies(ctx); err != nil {
			n.Import = old
			return errors.Join(err, s.setPolicies(ctx))
		}
		s.mu.Lock()
		before := n.rules
		n.rules.Import = n.Import
		n.updated = map[netip.Prefix]struct{}{}
		s.mu.Unlock()
		err := s.reapply(ctx, n, before)
		s.mu.Lock()
		n.updated = nil
		s.mu.Unlock()
		return err
	})
}

// reapply applies a new import policy to the routes that a neighbor has advertised already.
func (s *sessions) reapply(ctx context.Context, n *neighbor, before policyEntry) error {
	if n.disabled {
		return nil // the next session starts with the new policy
	}
	err := s.server.ResetPeer(ctx, &api.ResetPeerRequest{
		Address: n.key.String(), Soft: true, Direction: api.ResetPeerRequest_DIRECTION_IN,
	})
	if err != nil || s.opt.Report&ReportAdjIn == 0 || n.ASN == s.opt.ASN {
		return err
	}
	var changed []Event
	err = s.server.ListPath(apiutil.ListPathRequest{
		TableType: api.TableType_TABLE_TYPE_ADJ_IN, Name: n.key.String(), Family: gobgp.RF_IPv6_UC,
	}, func(_ gobgp.NLRI, paths []*apiutil.Path) {
		for _, p := range paths {
			u, first, ok := readUpdate(p, n.Name, n.Interface)
			if !ok {
				continue
			}
			after := n.rules.admit(u, first)
			if (before.admit(u, first).Rejected == nil) != (after.Rejected == nil) {
				changed = append(changed, after)
			}
		}
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report(n, slices.DeleteFunc(changed, func(e Event) bool {
		_, superseded := n.updated[e.(Update).Prefix] // by a later UPDATE
		return superseded
	}))
	return nil
}

// report queues Updates of a neighbor and maintains the set of its accepted routes. Callers hold
// mu.
func (s *sessions) report(n *neighbor, updates []Event) {
	for _, e := range updates {
		if u := e.(Update); !u.Withdrawn && u.Rejected == nil {
			n.adjIn[u.Prefix] = struct{}{}
		} else {
			delete(n.adjIn, u.Prefix)
		}
	}
	s.updates(updates)
	limit := n.rules.Import.WarnPrefixes
	beyond := limit > 0 && len(n.adjIn) > limit
	if beyond && !n.warned {
		s.log.Warn("more prefixes than warn_prefixes", "neighbor", n.Name, "warn_prefixes", limit)
	}
	n.warned = beyond
}

// Reset closes the session, withdraws its routes before it returns, and restarts the session at
// once.
func (s *sessions) Reset(ctx context.Context, name string) error {
	return s.change("reset", name, func(n *neighbor) error {
		if n.disabled {
			return errors.New("it is disabled")
		}
		s.cleanUp(n)
		return errors.Join(s.restart(ctx, n, "reset"), s.monitor(n))
	})
}

// Disable closes the session, withdraws its routes before it returns, and keeps the session down
// until Enable (as `neighbor X shutdown` does). It has no effect on a disabled session.
func (s *sessions) Disable(ctx context.Context, name string) error {
	return s.change("disable", name, func(n *neighbor) error {
		if n.disabled {
			return nil
		}
		n.disabled = true
		s.cleanUp(n)
		return s.deletePeer(ctx, n, "disabled")
	})
}

// Enable reverts Disable. It has no effect on an enabled session.
func (s *sessions) Enable(ctx context.Context, name string) error {
	return s.change("enable", name, func(n *neighbor) error {
		if !n.disabled {
			return nil
		}
		if err := s.addPeer(ctx, n); err != nil {
			return err
		}
		n.disabled = false
		return s.monitor(n)
	})
}

func (s *sessions) change(verb, name string, f func(*neighbor) error) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	err := s.usable()
	if err == nil {
		if n, ok := s.neighbors[name]; ok {
			err = f(n)
		} else {
			err = errors.New("unknown neighbor")
		}
	}
	if err != nil {
		return fmt.Errorf("%s neighbor %q: %w", verb, name, err)
	}
	return nil
}

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
	Routes   int          // accepted IPv6 unicast routes; -1 without ReportAdjIn and for internal neighbors
	BFD      bool         // BFD is configured
	BFDUp    bool         // its BFD session is up
	Retained int          // stale best paths that are kept after the session ended
}

// Neighbors returns the state of all sessions, sorted by name.
func (s *sessions) Neighbors() []NeighborState {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]NeighborState, 0, len(s.neighbors))
	for _, n := range s.neighbors {
		st := NeighborState{Name: n.Name, Up: n.up, Disabled: n.disabled, Reason: n.reason, Routes: -1}
		if s.opt.Report&ReportAdjIn != 0 && n.ASN != s.opt.ASN {
			st.Routes = len(n.adjIn)
		}
		st.Down, st.Flaps, st.Sent, st.Received = n.downReason(), n.history.flaps, n.history.sent, n.history.received
		if n.up {
			st.Uptime = time.Since(n.history.changed)
		}
		st.BFD, st.BFDUp = n.BFD.Enabled(), s.bfd.Up(n.Name)
		st.Retained = s.retention.stale(n.Name)
		states = append(states, st)
	}
	slices.SortFunc(states, func(a, b NeighborState) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return states
}

// restart deletes the neighbor in GoBGP and adds it again. GoBGP's own restart refuses connections
// for five seconds after a loss, and its own reset affects the next session if none is established.
func (s *sessions) restart(ctx context.Context, n *neighbor, reason string) error {
	if err := s.deletePeer(ctx, n, reason); err != nil {
		return err
	}
	return s.addPeer(ctx, n)
}

// endPrevious reports the end of the session of a deleted neighbor with the same address: the BGP
// server's event may still be pending, and would be attributed to the new neighbor.
func (s *sessions) endPrevious(n *neighbor) {
	if n == nil {
		return
	}
	s.mu.Lock()
	up := n.up
	n.up = false
	s.mu.Unlock()
	if up {
		s.retention.event(Session{Neighbor: n.Name, Reason: n.reason})
	}
}

func (s *sessions) addPeer(ctx context.Context, n *neighbor) error {
	n.added = time.Now()
	s.mu.Lock()
	n.idle, n.deleting = false, false
	s.mu.Unlock()
	s.retention.add(n.Neighbor)
	return s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: n.config(s.opt.ASN, s.opt.RouterID)})
}

// cleanUp prepares the end of a session by configuration: it stops BFD and retention.
func (s *sessions) cleanUp(n *neighbor) {
	s.bfd.Remove(n.Name)
	s.retention.remove(n.Name)
}

// monitor starts BFD with a neighbor that is configured for it.
func (s *sessions) monitor(n *neighbor) error {
	local := n.LocalAddress
	if local.IsValid() {
		local = local.WithZone(n.Interface)
	}
	return s.bfd.Add(bfd.Neighbor{Name: n.Name, Local: local, Remote: n.key, Config: n.BFD})
}

// deletePeer closes a session in GoBGP, which withdraws its routes before it returns.
func (s *sessions) deletePeer(ctx context.Context, n *neighbor, reason string) error {
	s.mu.Lock()
	if n.up {
		n.reason = reason
	}
	n.deleting = true
	s.mu.Unlock()
	return s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: n.key.String()})
}

// restartPause is the minimum interval between restarts of one session.
const restartPause = time.Second

// restartIdle restarts a session that GoBGP put into the state Idle.
func (s *sessions) restartIdle(n *neighbor) {
	s.calls.Lock()
	wait := restartPause - time.Since(n.added)
	s.calls.Unlock()
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.done:
			return
		}
	}
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	idle := n.idle
	s.mu.Unlock()
	if s.usable() != nil || s.neighbors[n.Name] != n || n.disabled || !idle {
		return
	}
	if err := s.restart(context.Background(), n, ""); err != nil {
		s.log.Error("restart session", "neighbor", n.Name, "err", err)
	}
}

// setPolicies replaces GoBGP's policies by those of the neighbors. Callers hold calls. Routes
// already received or advertised are not affected, so a neighbor's policy must be set before its
// session starts.
func (s *sessions) setPolicies(ctx context.Context) error {
	neighbors := make([]*neighbor, 0, len(s.neighbors))
	for _, n := range s.neighbors {
		neighbors = append(neighbors, n)
	}
	slices.SortFunc(neighbors, func(a, b *neighbor) int { return cmp.Compare(a.Name, b.Name) })
	entries := make([]policyEntry, len(neighbors))
	for i, n := range neighbors {
		entries[i] = policyEntry{Neighbor: n.Neighbor, ownASN: s.opt.ASN}
	}
	return s.server.SetPolicies(ctx, policies(entries))
}
