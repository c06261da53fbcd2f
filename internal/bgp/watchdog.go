package bgp

import (
	"context"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// GoBGP limits an attempt to open a session to four minutes, but not one with a connection
// collision: if both sides keep the connection that they opened themselves, neither attempt ever
// ends. The watchdog restarts such attempts much earlier.
const (
	// openTimeout is the time after which an attempt without progress is restarted. It doubles
	// with each timeout, up to maxOpenTimeout (RFC 4271 section 8.2.2), so that a slow neighbor
	// can establish a session.
	openTimeout    = 5 * time.Second
	maxOpenTimeout = 4 * time.Minute
	// openPoll is the interval of the watchdog.
	openPoll = time.Second
)

// openAttempt is the observable state of an attempt to open a session.
type openAttempt struct {
	state api.PeerState_SessionState
	// opensSent counts OPEN messages sent since the session was restarted, received all messages.
	opensSent, received uint64
}

// waiting reports whether the attempt waits for the neighbor. In state ACTIVE this is the case if
// we opened a connection: the state refers to the connection that the neighbor may open.
func (a openAttempt) waiting() bool {
	switch a.state {
	case api.PeerState_SESSION_STATE_OPENSENT, api.PeerState_SESSION_STATE_OPENCONFIRM:
		return true
	case api.PeerState_SESSION_STATE_ACTIVE:
		return a.opensSent > 0
	default:
		return false
	}
}

// watchdog detects attempts to open one session that make no progress. The zero value is ready.
type watchdog struct {
	last     openAttempt
	since    time.Time // unchanged since
	timeouts int       // since the session was last up
}

// observe reports whether the attempt timed out; the caller then restarts it.
func (w *watchdog) observe(now time.Time, a openAttempt) (timedOut bool) {
	if a != w.last || !a.waiting() {
		w.last, w.since = a, now
		return false
	}
	if now.Sub(w.since) < w.timeout() {
		return false
	}
	w.last, w.since = openAttempt{}, now
	w.timeouts++
	return true
}

func (w *watchdog) timeout() time.Duration {
	t := openTimeout
	for range w.timeouts {
		if t *= 2; t >= maxOpenTimeout {
			return maxOpenTimeout
		}
	}
	return t
}

// openWatch runs the watchdogs of all sessions that are not up, and records findings from counters.
type openWatch struct{ *sessions }

// run polls until Stop.
func (o *openWatch) run() {
	tick := time.NewTicker(openPoll)
	defer tick.Stop()
	dogs := map[*neighbor]*watchdog{}
	diagnosis := &diagnosis{o.sessions}
	dropped, err := readSignatureErrors()
	if err != nil {
		o.log.Warn("read tcp md5 counters", "err", err)
	}
	for {
		select {
		case <-tick.C:
		case <-o.done:
			return
		}
		down := o.notUp()
		for n := range dogs {
			if !down[n] {
				delete(dogs, n)
			}
		}
		before := dropped
		if len(down) > 0 {
			if now, err := readSignatureErrors(); err == nil {
				dropped = now
			}
		}
		for n := range down {
			if text := dropped.explain(before, n.Neighbor); text != "" {
				diagnosis.found(n, finding{rank: signature, text: text})
			}
			diagnosis.report(n)
			a, ok := o.attempt(n)
			if !ok {
				continue
			}
			if dogs[n] == nil {
				dogs[n] = &watchdog{}
			}
			if dogs[n].observe(time.Now(), a) {
				o.reopen(n)
			}
		}
	}
}

// notUp returns the enabled neighbors whose session is not up.
func (o *openWatch) notUp() map[*neighbor]bool {
	o.calls.Lock()
	defer o.calls.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	down := map[*neighbor]bool{}
	for _, n := range o.neighbors {
		if !n.up && !n.disabled {
			down[n] = true
		}
	}
	return down
}

// attempt reads the state of an attempt from GoBGP; ok is false if there is none.
func (o *openWatch) attempt(n *neighbor) (a openAttempt, ok bool) {
	// An error means that the server has stopped; run returns then.
	_ = o.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: n.key.String()}, func(p *api.Peer) {
		m := p.GetState().GetMessages()
		a, ok = openAttempt{p.GetState().GetSessionState(), m.GetSent().GetOpen(), m.GetReceived().GetTotal()}, true
	})
	return a, ok
}

// reopen restarts an attempt to open a session.
func (o *openWatch) reopen(n *neighbor) {
	o.calls.Lock()
	defer o.calls.Unlock()
	o.mu.Lock()
	up := n.up
	o.mu.Unlock()
	if o.usable() != nil || o.neighbors[n.Name] != n || n.disabled || up {
		return
	}
	o.log.Info("session does not open, restarting the attempt", "neighbor", n.Name)
	if err := o.restart(context.Background(), n, ""); err != nil {
		o.log.Error("restart session", "neighbor", n.Name, "err", err)
	}
}
