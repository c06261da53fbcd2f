package bgp

import (
	"cmp"
	"context"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// received converts the events of the BGP server to those of the speaker. Its callbacks run one at
// a time in a goroutine of the BGP server.
type received struct {
	*sessions
	unwatch context.CancelFunc
}

// watch subscribes to the BGP server. One subscription for everything preserves the order of the
// events.
func (r *received) watch() error {
	ctx, cancel := context.WithCancel(context.Background())
	opts := []server.WatchOption{server.WatchPeer(), server.WatchEor(false), server.WatchAdjInWithdraw()}
	onUpdate := r.onUpdate
	if r.opt.Report&ReportAdjIn != 0 {
		// After the policy there would be an event for each route, each with a copy of
		// GoBGP's configuration of the neighbor; before the policy there is one event for
		// each UPDATE.
		opts = append(opts, server.WatchUpdate(false, "", ""))
	} else {
		onUpdate = r.onSessionEnding
	}
	if r.opt.Report&ReportBest != 0 {
		opts = append(opts, server.WatchBestPath(false))
	}
	err := r.server.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPeerUpdate: r.onPeer,
		OnPathUpdate: onUpdate,
		OnBestPath:   r.onBest,
		OnPathEor:    r.onEndOfRIB,
	}, opts...)
	r.unwatch = cancel
	return err
}

func (r *received) onPeer(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	r.mu.Lock()
	n := r.byAddr[e.Peer.State.NeighborAddress]
	if n == nil {
		r.mu.Unlock()
		return
	}
	state, reason := e.Peer.State.SessionState, e.Peer.State.DisconnectMessage
	// GoBGP reports no reason for the end of a session that was deleted.
	n.idle = state == gobgp.BGP_FSM_IDLE && reason != ""
	idle := n.idle
	var event Event
	switch up := state == gobgp.BGP_FSM_ESTABLISHED; {
	case up && !n.up:
		n.up = true
		n.history.changed, n.history.ending = time.Now(), ""
		n.history.opening, n.history.logged = finding{}, ""
		event = Session{Neighbor: n.Name, Up: true}
	case !up && n.up:
		n.up = false
		n.history.changed = time.Now()
		n.history.flaps++
		if reason != "" {
			n.reason = cmp.Or(n.history.ending, explain(reason))
		}
		event = Session{Neighbor: n.Name, Reason: n.reason}
	}
	r.mu.Unlock()
	if event != nil {
		r.retention.event(event)
		if kept := r.retention.stale(n.Name); kept > 0 && state != gobgp.BGP_FSM_ESTABLISHED {
			r.log.Warn("session down, stale routes retained", "neighbor", n.Name, "routes", kept, "time", n.Retain)
		}
	}
	if idle {
		go r.restartIdle(n)
	}
}

// explain replaces GoBGP's reasons for the end of a session by plain text.
func explain(reason string) string {
	switch reason {
	case "read-failed", "write-failed", "graceful-restart":
		return "connection lost"
	case "hold-timer-expired":
		return "hold timer expired"
	}
	return reason
}

// neighborOf returns the neighbor that a path was received from, nil for local paths.
func (r *received) neighborOf(p *apiutil.Path) *neighbor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byAddr[p.PeerAddress]
}

// onSessionEnding receives the routes that the BGP server drops because a session ends, before the
// best paths change.
func (r *received) onSessionEnding(paths []*apiutil.Path, _ time.Time) {
	if len(paths) > 0 {
		if n := r.neighborOf(paths[0]); n != nil {
			r.retention.sessionEnding(n.Name)
		}
	}
}

// onUpdate receives the routes of one UPDATE of a neighbor before the import policy, or the routes
// that the BGP server drops because the session ends.
func (r *received) onUpdate(paths []*apiutil.Path, _ time.Time) {
	if len(paths) == 0 {
		return
	}
	n := r.neighborOf(paths[0])
	if n == nil || n.ASN == r.opt.ASN {
		return
	}
	events := make([]Event, 0, len(paths))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range paths {
		u, first, ok := readUpdate(p, n.Name, n.Interface)
		if !ok {
			continue
		}
		if n.updated != nil {
			n.updated[u.Prefix] = struct{}{}
		}
		events = append(events, n.rules.admit(u, first))
	}
	r.report(n, events)
}

func (r *received) onBest(paths []*apiutil.Path, _ time.Time) {
	for _, p := range paths {
		if !r.reported(p.Family) {
			continue
		}
		var name, zone string
		if n := r.neighborOf(p); n != nil {
			name, zone = n.Name, n.Interface
		}
		if u, ok := readUnicast(p, zone); ok {
			u.Neighbor = name
			r.retention.event(u)
		} else if v, ok := readVPN(p); ok {
			v.Neighbor = name
			r.retention.event(v)
		}
	}
}

// bestVPN is Speaker.BestVPN.
func (r *received) bestVPN(f func(VPNPath)) error {
	return r.server.ListPath(apiutil.ListPathRequest{
		TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: gobgp.RF_IPv6_VPN,
	}, func(_ gobgp.NLRI, paths []*apiutil.Path) {
		for _, p := range paths {
			if !p.Best {
				continue
			}
			if v, ok := readVPN(p); ok {
				if n := r.neighborOf(p); n != nil {
					v.Neighbor = n.Name
				}
				f(v)
			}
		}
	})
}

// reported reports whether best paths of a family are selected by Options.Report.
func (r *received) reported(f gobgp.Family) bool {
	switch f {
	case gobgp.RF_IPv6_UC:
		return r.opt.Report&ReportUnicast != 0
	case gobgp.RF_IPv6_VPN:
		return r.opt.Report&ReportVPN != 0
	default:
		return false
	}
}

func (r *received) onEndOfRIB(p *apiutil.Path, _ time.Time) {
	if n := r.neighborOf(p); n != nil {
		switch p.Family {
		case gobgp.RF_IPv6_UC:
			r.retention.event(EndOfRIB{Neighbor: n.Name, Family: IPv6Unicast})
		case gobgp.RF_IPv6_VPN:
			r.retention.event(EndOfRIB{Neighbor: n.Name, Family: VPNv6})
		default: // not reported
		}
	}
}
