package dashboard

import (
	"fmt"
	"net/netip"
)

// level is how an event is shown.
type level string

const (
	good level = "good"
	fair level = "fair"
	bad  level = "bad"
)

// event is a change of a daemon's state.
type event struct {
	Time   int64  `json:"time"` // Unix time in milliseconds
	Daemon string `json:"daemon"`
	Level  level  `json:"level"`
	Text   string `json:"text"`
}

// status has the parts of all daemons' /status that the dashboard compares or names flows by.
type status struct {
	Role     string     `json:"role"`
	Ready    bool       `json:"ready"`
	Degraded bool       `json:"degraded"`
	Reason   string     `json:"reason"`
	Drain    string     `json:"drain"`
	Address  netip.Addr `json:"address"`
	Sessions []struct {
		Neighbor string `json:"neighbor"`
		Up       bool   `json:"up"`
		Reason   string `json:"reason"`
	} `json:"sessions"`
	Peers []struct {
		Name    string     `json:"name"`
		Address netip.Addr `json:"address"` // of a server's subflows
		SID     netip.Addr `json:"sid"`     // of a border router
		Routes  int        `json:"routes"`
	} `json:"peers"`
	// Delivery is that of a server.
	Delivery struct {
		Networks int `json:"networks"`
	} `json:"delivery"`
	gatewayStatus `json:"-"`
}

// gatewayStatus has the parts of a gateway's status. Paths of other daemons are something else.
type gatewayStatus struct {
	Paths []gatewayPath `json:"paths"`
	Lines []struct {
		Name  string `json:"name"`
		Quota string `json:"quota"`
	} `json:"lines"`
}

// paths returns the paths with the quotas of their lines.
func (s *gatewayStatus) paths() []gatewayPath {
	for i := range s.Paths {
		for _, l := range s.Lines {
			if p := &s.Paths[i]; p.Line == l.Name {
				p.Quota = l.Quota
			}
		}
	}
	return s.Paths
}

func (s *status) level() level {
	switch {
	case !s.Ready:
		return bad
	case s.Degraded:
		return fair
	}
	return good
}

// state describes the readiness.
func (s *status) state() string {
	switch s.level() {
	case bad:
		return "not ready: " + s.Reason
	case fair:
		return "degraded: " + s.Reason
	case good:
	}
	return "ready"
}

// change is an event without time and daemon.
type change struct {
	level level
	text  string
}

// compare returns the changes from one status to the next.
func compare(old, now status) (changes []change) {
	add := func(l level, format string, a ...any) {
		changes = append(changes, change{l, fmt.Sprintf(format, a...)})
	}
	up := map[string]bool{}
	for _, s := range old.Sessions {
		up[s.Neighbor] = s.Up
	}
	for _, s := range now.Sessions {
		switch was := up[s.Neighbor]; {
		case s.Up && !was:
			add(good, "session with %s up", s.Neighbor)
		case was && !s.Up:
			add(bad, "session with %s down (%s)", s.Neighbor, s.Reason)
		}
	}
	routes := map[string]int{}
	for _, p := range old.Peers {
		routes[p.Name] = p.Routes
	}
	for _, p := range now.Peers {
		switch was := routes[p.Name]; {
		case p.Routes > 0 && was == 0:
			add(good, "routes through %s (%d)", p.Name, p.Routes)
		case p.Routes == 0 && was > 0:
			add(bad, "no route through %s any more", p.Name)
		}
	}
	alive := map[lineKey]bool{}
	for _, p := range old.Paths {
		alive[lineKey{peer: p.Peer, path: p.Path}] = p.Up
	}
	for _, p := range now.Paths {
		switch was := alive[lineKey{peer: p.Peer, path: p.Path}]; {
		case p.Up && !was:
			add(good, "line %s to %s up", p.Path, p.Peer)
		case was && !p.Up:
			add(bad, "line %s to %s %s", p.Path, p.Peer, p.State)
		}
	}
	if old.Drain != now.Drain {
		if now.Drain == "" {
			add(good, "in service again")
		} else {
			add(fair, "drain: %s", now.Drain)
		}
	}
	if old.state() != now.state() {
		add(now.level(), "%s", now.state())
	}
	return changes
}
