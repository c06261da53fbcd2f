package labrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/lab"
)

// stage is an observable step of a route change, in the order in which the change passes through
// the network.
type stage int

const (
	// asbrReceived is an UPDATE from the peer at the ASBR; asbrSet and asbrDeleted are the
	// resulting changes of the ASBR's own route; asbrSent is its UPDATE of the VPN route to a
	// reflector.
	asbrReceived stage = iota
	asbrSet
	asbrDeleted
	asbrSent
	// serverReceived is a reflector's UPDATE of a VPN route at the server.
	serverReceived
	// epeSet and epeDeleted are changes of the EPE Route, bestSet and bestDeleted of the best
	// path, both in the server's kernel.
	epeSet
	epeDeleted
	bestSet
	bestDeleted
)

// observation is a step and its time, on the clock of the kernel's packet timestamps.
type observation struct {
	stage
	at time.Time
}

// watch observes the effects of a route change in a network.
type watch struct {
	prefix netip.Prefix
	server edge.Peer
	border asbr.Peer
	// The reflectors of the ASBR and of the server.
	asbrReflectors, serverReflectors []netip.Addr

	mu    sync.Mutex
	since time.Time // older observations are ignored
	seen  []observation
	last  time.Time // of seen
	// ports has the client's ports seen on the subflow over the peer; old has those of earlier
	// connections, which the kernel may still retransmit on when a route returns.
	ports, old map[uint16]bool
	subflow    [2]time.Time // first and last packet after since
	lastEver   time.Time    // last packet of this connection on the subflow
	overrun    bool
}

// watchRoutes starts the observation. The returned function stops it and returns its errors.
func watchRoutes(ctx context.Context, l *lab.Lab) (*watch, func() error, error) {
	e := l.Spec().Experiment
	server, node, border, ok := l.Spec().EgressPeer()
	if !ok {
		return nil, nil, fmt.Errorf("BUG: no egress peer %q", e.Routes.Peer)
	}
	w := &watch{prefix: e.Routes.Prefix, server: server, border: border, ports: map[uint16]bool{}}
	for _, r := range l.Spec().Nodes[node].ASBR.Reflectors {
		w.asbrReflectors = append(w.asbrReflectors, r.Address)
	}
	for _, r := range l.Spec().Nodes[e.Server].Edge.Reflectors {
		w.serverReflectors = append(w.serverReflectors, r.Address)
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		watchers sync.WaitGroup
		mu       sync.Mutex
		errs     []error
	)
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	stop := func() error {
		cancel()
		watchers.Wait()
		return errors.Join(errs...)
	}
	for _, n := range []struct {
		node   string
		route  func(route.Route, route.ObjectChange)
		packet func(afpacket.Packet) error
	}{
		{node, w.borderRoute, w.borderPacket},
		{e.Server, w.serverRoute, w.serverPacket},
	} {
		watched, err := l.Node(n.node)
		if err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		var t *afpacket.Socket
		if err := watched.Do(func() error { t, err = afpacket.Open(bgpOrEncapsulated); return err }); err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		watchers.Go(func() { failed(errors.Join(t.Run(ctx, afpacket.Handler{Packet: n.packet}), t.Close())) })
		var routes *route.Watcher
		if err := watched.Do(func() error { routes, err = route.Watch(ctx, route.Routes); return err }); err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		watchers.Go(func() {
			for event := range routes.Events() {
				switch event := event.(type) {
				case route.ObjectChange:
					if r, ok := event.Object.(route.Route); ok {
						n.route(r, event)
					}
				case route.Overrun:
					w.lost()
				}
			}
			failed(routes.Err())
		})
	}
	return w, stop, nil
}

// begin discards the observations and returns the current time.
func (w *watch) begin() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.subflow, w.overrun = nil, [2]time.Time{}, false
	// Without the monotonic clock reading, which packet timestamps do not have.
	w.since = time.Now().Round(0)
	w.last = w.since
	return w.since
}

// follow selects the next connection as the one whose subflow is watched.
func (w *watch) follow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.old, w.lastEver = maps.Clone(w.ports), time.Time{}
}

func (w *watch) see(what stage, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at = at.Round(0); at.Before(w.since) {
		return
	}
	w.seen = append(w.seen, observation{what, at})
	if at.After(w.last) {
		w.last = at
	}
}

func (w *watch) lost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.overrun = true
}

func (w *watch) serverRoute(r route.Route, c route.ObjectChange) {
	switch {
	case r.Dst != w.prefix:
	case r.Table == w.server.Table && c.Deleted:
		w.see(epeDeleted, c.Time)
	case r.Table == w.server.Table:
		w.see(epeSet, c.Time)
	case r.Table == route.MainTable && c.Deleted:
		w.see(bestDeleted, c.Time)
	case r.Table == route.MainTable:
		w.see(bestSet, c.Time)
	}
}

func (w *watch) borderRoute(r route.Route, c route.ObjectChange) {
	switch {
	case r.Dst != w.prefix || r.Table != w.border.Table:
	case c.Deleted:
		w.see(asbrDeleted, c.Time)
	default:
		w.see(asbrSet, c.Time)
	}
}

func (w *watch) borderPacket(p afpacket.Packet) error {
	s, ok := parseSegment(p.Data)
	if !ok {
		return nil
	}
	unicast, vpn := changed(s.payload)
	switch {
	case !p.Sent && unicast && s.from == w.border.Address:
		w.see(asbrReceived, p.At)
	case p.Sent && vpn && slices.Contains(w.asbrReflectors, s.to):
		w.see(asbrSent, p.At)
	}
	return nil
}

func (w *watch) serverPacket(p afpacket.Packet) error {
	if c, ok := parseCarried(p.Data); ok {
		if p.Sent && c.from == w.server.Address {
			w.onSubflow(c.port, c.syn, p.At)
		}
		return nil
	}
	s, ok := parseSegment(p.Data)
	if !ok || p.Sent || !slices.Contains(w.serverReflectors, s.from) {
		return nil
	}
	if _, vpn := changed(s.payload); vpn {
		w.see(serverReceived, p.At)
	}
	return nil
}

// onSubflow records a packet that the server sends over the peer. A SYN starts a new subflow, even
// if an earlier connection had the same port: among some hundred connections, two usually share
// one.
func (w *watch) onSubflow(port uint16, syn bool, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ports[port] = true
	if syn {
		delete(w.old, port)
	}
	if w.old[port] {
		return
	}
	w.lastEver = at
	if at.Before(w.since) {
		return
	}
	if w.subflow[0].IsZero() {
		w.subflow[0] = at
	}
	w.subflow[1] = at
}

// lastPacket returns when the server last sent on the subflow.
func (w *watch) lastPacket() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastEver
}

// snapshot returns the observations since begin.
func (w *watch) snapshot() (seen []observation, last time.Time, subflow [2]time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.overrun {
		err = errors.New("the kernel's events were lost")
	}
	return slices.Clone(w.seen), w.last, w.subflow, err
}

// missing returns which required step of a change has not been observed yet, or an empty string.
func missing(change string, seen []observation) string {
	epe, best := false, false
	for _, s := range seen {
		switch s.stage {
		case epeSet:
			epe = change == scenario.ChangeAnnounce
		case epeDeleted:
			epe = change == scenario.ChangeWithdraw
		case bestSet:
			best = true
		case bestDeleted:
			best = false
		default: // steps on the ASBR
		}
	}
	switch {
	case !epe:
		return "the EPE Route has not changed on the server"
	case !best:
		return "there is no other best path on the server"
	}
	return ""
}

// measure converts the observations since t0 to metrics. Steps that were not observed have none,
// except that a subflow without a packet after t0 was closed at t0.
func measure(change string, t0 time.Time, seen []observation, subflow [2]time.Time) map[string]float64 {
	metrics := map[string]float64{}
	// The time of a part starts at the first observation that is not older than the step before
	// it.
	first := func(what stage, from time.Time) (time.Time, bool) {
		var found time.Time
		for _, s := range seen {
			if s.stage == what && !s.at.Before(from) && (found.IsZero() || s.at.Before(found)) {
				found = s.at
			}
		}
		return found, !found.IsZero()
	}
	put := func(metric string, from, to time.Time, ok bool) {
		if ok {
			metrics[metric] = to.Sub(from).Seconds()
		}
	}
	epe, border, packet := epeSet, asbrSet, subflow[0]
	if change == scenario.ChangeWithdraw {
		epe, border, packet = epeDeleted, asbrDeleted, subflow[1]
		if packet.IsZero() {
			packet = t0
		}
	}
	epeAt, epeOK := first(epe, t0)
	put(result.EPERoute, t0, epeAt, epeOK)
	var bestAt time.Time
	for _, s := range seen {
		if s.stage == bestSet && s.at.After(bestAt) {
			bestAt = s.at
		}
	}
	put(result.BestPath, t0, bestAt, !bestAt.IsZero())
	put(result.SubflowTime, t0, packet, !packet.IsZero())
	at, ok := first(border, t0)
	put(result.ASBRRoute, t0, at, ok)

	received, receivedOK := first(asbrReceived, t0)
	put(result.ASBRReceived, t0, received, receivedOK)
	sent, sentOK := first(asbrSent, received)
	sentOK = sentOK && receivedOK
	put(result.ASBRPart, received, sent, sentOK)
	arrived, arrivedOK := first(serverReceived, sent)
	arrivedOK = arrivedOK && sentOK
	put(result.ReflectorPart, sent, arrived, arrivedOK)
	// The route change may be observed before the packet: they arrive on different sockets.
	if arrivedOK && epeOK {
		edgePart := max(0, epeAt.Sub(arrived))
		put(result.EdgePart, arrived, arrived.Add(edgePart), true)
		put(result.OwnPart, received, sent.Add(edgePart), true)
	}
	return metrics
}
