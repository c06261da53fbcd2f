package proxy

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/proxy/relay"
)

// maxShown bounds the destinations of a status.
const maxShown = 100

// Status is what /status shows.
type Status struct {
	Role string `json:"role"`
	health.Status
	// Control is the path of the socket for commands.
	Control     string      `json:"control"`
	Connections Connections `json:"connections"`
	// Congestion is the congestion control of MPTCP connections; none without MPTCP.
	Congestion string `json:"congestion,omitempty"`
	// Transports count the connections to upstreams and destinations by what carries them; fallback
	// are those that were asked for MPTCP and are carried by TCP.
	Transports transports       `json:"transports"`
	Listeners  []ListenerStatus `json:"listeners"`
	Upstreams  []UpstreamStatus `json:"upstreams,omitempty"`
	// Fallbacks are the destinations that are connected by TCP for now, because they have no MPTCP.
	Fallbacks []Fallback `json:"fallbacks,omitempty"`
}

// Connections are those of all listeners.
type Connections struct {
	Open int `json:"open"`
	// Most is how many the limit of file descriptors permits.
	Most int `json:"most"`
	// Paused: there are so many that new ones wait.
	Paused bool `json:"paused"`
	Pipes  int  `json:"pipes"`
}

// ListenerStatus is the state of a listener.
type ListenerStatus struct {
	Name   string `json:"name"`
	Active int64  `json:"active"`
	// Accepted counts connections, and the others those among them that ended so.
	Accepted uint64 `json:"accepted"`
	// Denied: the client is not in a prefix of allow.
	Denied uint64 `json:"denied"`
	// Malformed: it sent no valid request or PROXY header.
	Malformed uint64 `json:"malformed"`
	// Refused: the destination is not allowed or has no address.
	Refused uint64 `json:"refused"`
	// Failed: no address of the destination answered.
	Failed uint64 `json:"failed"`
	// Idle: there was no data for too long. Reset: one side reset it.
	Idle  uint64 `json:"idle"`
	Reset uint64 `json:"reset"`
	// Stripped: a router began to remove MPTCP's options from it. It was reset, because the receiver
	// would have got bytes twice.
	Stripped uint64 `json:"stripped"`
	// ToTarget and ToClient are bytes.
	ToTarget uint64 `json:"bytes_to_target"`
	ToClient uint64 `json:"bytes_to_client"`
	// The bursts are what was sent at once, in segments.
	ToTargetBursts relay.BurstSummary `json:"bursts_to_target"`
	ToClientBursts relay.BurstSummary `json:"bursts_to_client"`
}

// UpstreamStatus is the state of an upstream.
type UpstreamStatus struct {
	Name        string `json:"name"`
	Up          bool   `json:"up"`
	Active      int    `json:"active"`
	Connections uint64 `json:"connections"`
	Failures    uint64 `json:"failures"`
	LastError   string `json:"last_error,omitempty"`
}

// Fallback is a destination without MPTCP.
type Fallback struct {
	Destination netip.AddrPort `json:"destination"`
	// Seconds is the time until it is asked for MPTCP again.
	Seconds int `json:"seconds"`
}

// lacks returns what the host lacks for MPTCP, if a listener or upstream has it.
func (c *Config) lacks() []health.Problem {
	multipath := slices.ContainsFunc(c.Listeners, func(l Listener) bool {
		return l.Listen.Kind == MPTCP || slices.ContainsFunc(l.all(), func(u Upstream) bool { return u.Multipath })
	})
	if !multipath {
		return nil
	}
	return condition.Examine([]condition.Condition{condition.Multipath()}).Problems
}

// Status returns the state of the proxy. It is degraded while an upstream is down, accepting pauses
// or the host lacks MPTCP, and not ready while all upstreams of a listener are down.
func (p *Proxy) Status() any {
	var report health.Report
	running := true
	if p.owner() {
		running = p.loop.Do(context.Background(), func() {
			report.Lack(p.loop.Problems()...)
		})
	}
	select {
	case <-p.ended:
		running = false
	default:
	}
	p.mu.Lock()
	list := slices.Clone(p.running)
	report.Lack(p.config.lacks()...)
	s := Status{Role: "proxy", Congestion: p.control, Control: control.Path(p.config.Control, "proxy")}
	p.mu.Unlock()
	s.Connections = Connections{Open: p.engine.Open(), Most: p.engine.Most(), Paused: p.engine.Paused(), Pipes: p.engine.Pipes()}
	if s.Connections.Paused {
		report.Degrade("accepting pauses at %d connections, of at most %d: raise the limit of file descriptors (LimitNOFILE=)", s.Connections.Open, s.Connections.Most)
	}
	used := map[int]bool{}
	for _, r := range list {
		c := &r.service.Counts
		s.Listeners = append(s.Listeners, ListenerStatus{
			Name: r.listener.Listen.String(), Active: c.Active.Load(), Accepted: c.Accepted.Load(), Denied: c.Denied.Load(),
			Malformed: c.Malformed.Load(), Refused: c.Refused.Load(), Failed: c.Failed.Load(), Idle: c.Idle.Load(), Reset: c.Reset.Load(), Stripped: c.Stripped.Load(),
			ToTarget: c.ToTarget.Load(), ToClient: c.ToClient.Load(),
			ToTargetBursts: c.ToTargetBursts.Summary(), ToClientBursts: c.ToClientBursts.Summary(),
		})
		for _, u := range r.served.upstreams {
			used[u] = true
		}
		p.router.health(r.listener.Listen.String(), r.served.upstreams, &report)
	}
	p.router.portlessness(&report)
	s.Transports, s.Upstreams, s.Fallbacks = p.router.status(used)
	s.Status = report.Status()
	if !running {
		s.Status = daemon.NotRunning
	}
	return s
}

// health reports the upstreams of a listener that are down.
func (r *router) health(listener string, upstreams []int, report *health.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	down := 0
	for _, i := range upstreams {
		if r.upstreams[i].state.Down() {
			down++
		}
	}
	switch {
	case down == 0:
	case down == len(upstreams):
		report.Fail("listener %q: no upstream answers: %s", listener, r.upstreams[upstreams[0]].lastError)
	default:
		report.Degrade("listener %q: %d of %d upstreams do not answer", listener, down, len(upstreams))
	}
}

// portlessness reports the destinations for which no local port was free.
func (r *router) portlessness(report *health.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var one netip.AddrPort
	n := 0
	r.portless.Each(r.now(), func(d netip.AddrPort, _ time.Duration) {
		one = d
		n++
	})
	if n > 0 {
		report.Degrade("connections to %d destinations, such as %v, failed: %v", n, one, relay.ErrNoPort)
	}
}

// status returns the state of the upstreams in use and of destinations without MPTCP.
func (r *router) status(used map[int]bool) (transports, []UpstreamStatus, []Fallback) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var upstreams []UpstreamStatus
	for i, u := range r.upstreams {
		if used[i] {
			upstreams = append(upstreams, UpstreamStatus{
				Name: u.at.String(), Up: !u.state.Down(), Active: u.state.Active, Connections: u.connections, Failures: u.failures, LastError: u.lastError,
			})
		}
	}
	var fallbacks []Fallback
	r.fallback.Each(r.now(), func(d netip.AddrPort, left time.Duration) {
		fallbacks = append(fallbacks, Fallback{d, int(left.Seconds())})
	})
	slices.SortFunc(fallbacks, func(a, b Fallback) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), a.Destination.Compare(b.Destination))
	})
	return r.counts, upstreams, fallbacks[:min(len(fallbacks), maxShown)]
}
