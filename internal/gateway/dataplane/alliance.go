package dataplane

import (
	"fmt"
	"net/netip"
	"time"
)

// Role is what another gateway is to this one in an alliance (SHAKE, paper D section 2.1): hosts
// close to each other share their lines to a home agent.
type Role uint8

const (
	// NoRole: the gateways are in no alliance.
	NoRole Role = iota
	// HomeAgent: this gateway is a leader, and registers the paths to the peer with it.
	HomeAgent
	// Member: this gateway is a leader, and the peer relays its messages to the home agent.
	Member
	// Registrant: the peer is a leader, and registers its paths with this gateway, a home agent.
	Registrant
	// Leader: the peer is a leader that this gateway, a member, relays messages for.
	Leader
)

func (r Role) String() string {
	switch r {
	case NoRole:
		return "none"
	case HomeAgent:
		return "home agent"
	case Member:
		return "member"
	case Registrant, Leader:
		return "leader"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Alliance is what a peer is in an alliance, and what it may do there.
type Alliance struct {
	Role Role
	// Lifetime is how long a registration is asked for, of a HomeAgent or Member, or the longest
	// that is granted, to a Registrant or Leader.
	Lifetime time.Duration
	// CareOf is the number of paths that a Registrant may register.
	CareOf int
	// Path is the one over which messages of a Leader are relayed, at the rates Down to the leader
	// and Up from it in bit/s of whole IP packets.
	Path     string
	Down, Up Rate
	// HomeAgents are where messages of a Leader may be relayed to. None: to the unicast address
	// that it names.
	HomeAgents []netip.AddrPort
}

// Uses reports whether packets to a peer with this role, of this name, are sent over a path.
func (a Alliance) Uses(name string, p Path) bool {
	switch a.Role {
	case Member:
		return p.Member == name
	case HomeAgent:
		return !p.Short
	case Leader:
		return p.Short
	case NoRole, Registrant:
	}
	return !p.Short && p.Member == ""
}

// RelayStatus is what a member relays for a leader.
type RelayStatus struct {
	Leader string `json:"leader"`
	Path   string `json:"path"`
	// HomeAgent is where messages are relayed to, invalid if the leader has not registered.
	HomeAgent netip.AddrPort `json:"home_agent"`
	// Lifetime is how long the registration lasts, if it is not refreshed.
	Lifetime time.Duration `json:"lifetime_ns"`
	// Up are messages from the leader to the home agent, Down those to the leader.
	Up   Count `json:"up"`
	Down Count `json:"down"`
	// Dropped are messages beyond the rate, from other addresses, or that are none of the tunnel.
	Dropped uint64 `json:"dropped"`
}

// Add adds open messages.
func (s *RelayStatus) Add(r OpenRelayed) {
	for _, c := range []struct {
		to   *Count
		more Count
	}{{&s.Up, r.Up}, {&s.Down, r.Down}} {
		c.to.Packets += c.more.Packets
		c.to.Bytes += c.more.Bytes
	}
	s.Dropped += r.Dropped
}
