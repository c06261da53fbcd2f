package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/route"
)

// gather is how long changes of routes are collected before the tables are read.
const gather = 10 * time.Millisecond

// retryAfter is how long after a panic the tables are read again.
const retryAfter = time.Second

// tables reads the routes that other programs install in the tables of egress peers.
type tables struct {
	edge *Edge
	conn *route.Conn
	// used are the tables of the peers.
	used map[uint32]bool
	// installed are the routes as last read; used in the daemon's loop.
	installed map[peerPrefix]bool
}

func newTables(e *Edge) *tables {
	t := &tables{edge: e, used: map[uint32]bool{}, installed: map[peerPrefix]bool{}}
	for _, p := range e.config.Peers {
		t.used[p.Table] = true
	}
	return t
}

// run follows the tables until ctx ends.
func (t *tables) run(ctx context.Context) (err error) {
	w, err := route.Watch(ctx, route.Links, route.Routes, route.Nexthops)
	if err != nil {
		return fmt.Errorf("follow the tables of egress peers: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if t.conn, err = route.Dial(); err != nil {
		return fmt.Errorf("follow the tables of egress peers: %w", err)
	}
	defer func() { err = errors.Join(err, t.conn.Close()) }()
	due := time.NewTimer(0)
	defer due.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.Events():
			if !ok {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("follow the tables of egress peers: %w", w.Err())
			}
			if !waiting && t.concerns(event) {
				waiting = true
				due.Reset(gather)
			}
		case <-due.C:
			waiting = false
			var err error
			if contain.Do(contain.Reconcile, t.edge.log, nil, func() { err = t.read(ctx) }) != nil {
				waiting = true
				due.Reset(retryAfter)
			}
			if err != nil {
				return err
			}
		}
	}
}

// concerns reports whether the tables may have changed.
func (t *tables) concerns(event route.Event) bool {
	change, ok := event.(route.ObjectChange)
	if !ok {
		return true
	}
	object := change.Object
	if a, ok := object.(route.Altered); ok {
		object = a.Object
	}
	switch o := object.(type) {
	case route.Route:
		return t.used[o.Table]
	case route.Nexthop:
		return change.Deleted // with its routes
	}
	return false
}

// read reads the tables and reports what has changed to the path manager.
func (t *tables) read(ctx context.Context) error {
	e := t.edge
	routes, err := t.conn.Unicast(func(table uint32) bool { return t.used[table] })
	if err != nil {
		return fmt.Errorf("read the tables of egress peers: %w", err)
	}
	e.daemon.Change(ctx, func() {
		now := map[peerPrefix]bool{}
		for _, p := range e.egress.peers {
			for _, r := range routes {
				if r.Table == p.Table && r.Dst.Addr().Is4() == p.Address.Is4() {
					t.set(p, r.Dst, now)
				}
			}
			for at := range t.installed {
				if at.peer == p.index && !now[at] {
					p.count(pathmanager.RoutePresent, pathmanager.RouteAbsent)
					e.report(at, pathmanager.Route{State: pathmanager.RouteAbsent})
				}
			}
		}
		t.installed = now
	})
	return nil
}

func (t *tables) set(p *peer, dst netip.Prefix, now map[peerPrefix]bool) {
	at := peerPrefix{p.index, dst}
	if now[at] {
		return // with another metric
	}
	now[at] = true
	if !t.installed[at] {
		p.count(pathmanager.RouteAbsent, pathmanager.RoutePresent)
		t.edge.report(at, pathmanager.Route{State: pathmanager.RoutePresent})
	}
}
