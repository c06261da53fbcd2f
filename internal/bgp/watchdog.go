package bgp

import (
	"context"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// GoBGP gives an attempt to open a session four minutes, and one whose two connections collided none at all: when both
// sides keep the connection that they opened themselves, each waits on its own for ever. A watchdog begins anew long before.
const (
	// openPatience is how long an attempt to open a session may stand still at first. It doubles with each attempt that did,
	// up to openPatienceMost (RFC 4271 section 8.2.2), so that a neighbor that is merely slow gets its session.
	openPatience     = 5 * time.Second
	openPatienceMost = 4 * time.Minute
	// openLook is how often sessions that are not up are looked at.
	openLook = time.Second
)

// opening is what can be seen of an attempt to open a session.
type opening struct {
	state api.PeerState_SessionState
	// opensSent counts the OPEN messages sent since the session was last begun anew, received all messages.
	opensSent, received uint64
}

// waiting tells whether it is the neighbor's turn. In the state ACTIVE that is so when we have opened a connection: the
// state is that of the connection which the neighbor may open.
func (o opening) waiting() bool {
	switch o.state {
	case api.PeerState_SESSION_STATE_OPENSENT, api.PeerState_SESSION_STATE_OPENCONFIRM:
		return true
	case api.PeerState_SESSION_STATE_ACTIVE:
		return o.opensSent > 0
	default:
		return false
	}
}

// watchdog notices attempts to open one session that stand still. The zero value is ready.
type watchdog struct {
	seen     opening
	since    time.Time // seen has been so
	attempts int       // given up since the session was up
}

// look reports whether to begin anew, which is then expected to be done.
func (w *watchdog) look(now time.Time, o opening) bool {
	if o != w.seen || !o.waiting() {
		w.seen, w.since = o, now
		return false
	}
	if now.Sub(w.since) < w.patience() {
		return false
	}
	w.seen, w.since = opening{}, now
	w.attempts++
	return true
}

func (w *watchdog) patience() time.Duration {
	p := openPatience
	for range w.attempts {
		if p *= 2; p >= openPatienceMost {
			return openPatienceMost
		}
	}
	return p
}

// watchOpening looks at the sessions that are not up until Stop.
func (s *Speaker) watchOpening() {
	tick := time.NewTicker(openLook)
	defer tick.Stop()
	dogs := map[*neighbor]*watchdog{}
	for {
		select {
		case <-tick.C:
		case <-s.done:
			return
		}
		down := s.notUp()
		for n := range dogs {
			if !down[n] {
				delete(dogs, n)
			}
		}
		for n := range down {
			o, ok := s.opening(n)
			if !ok {
				continue
			}
			if dogs[n] == nil {
				dogs[n] = &watchdog{}
			}
			if dogs[n].look(time.Now(), o) {
				s.openAnew(n)
			}
		}
	}
}

// notUp are the neighbors that should have a session and have none.
func (s *Speaker) notUp() map[*neighbor]bool {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	down := map[*neighbor]bool{}
	for _, n := range s.neighbors {
		if !n.up && !n.disabled {
			down[n] = true
		}
	}
	return down
}

// opening asks GoBGP how the attempt to open a session is; false when there is none.
func (s *Speaker) opening(n *neighbor) (o opening, ok bool) {
	// An error says that the server has stopped, and watchOpening ends then.
	_ = s.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: n.key.String()}, func(p *api.Peer) {
		m := p.GetState().GetMessages()
		o, ok = opening{p.GetState().GetSessionState(), m.GetSent().GetOpen(), m.GetReceived().GetTotal()}, true
	})
	return o, ok
}

// openAnew gives up an attempt to open a session and begins another.
func (s *Speaker) openAnew(n *neighbor) {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	up := n.up
	s.mu.Unlock()
	if s.usable() != nil || s.neighbors[n.Name] != n || n.disabled || up {
		return
	}
	s.log.Info("session does not open, beginning anew", "neighbor", n.Name)
	if err := s.restart(context.Background(), n, ""); err != nil {
		s.log.Error("cannot begin session anew", "neighbor", n.Name, "error", err)
	}
}
