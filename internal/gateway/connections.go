package gateway

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// Connections are the NAT sessions of a gateway.
type Connections struct {
	Connections int       `json:"connections"`
	Sessions    []Session `json:"sessions"`
}

// Session is a NAT session.
type Session struct {
	Peer string `json:"peer"`
	// Direction is that of the flow: sent to the peer, or received from it.
	Direction string `json:"direction"`
	Protocol  string `json:"protocol"`
	// Source and Destination are those of the hosts; of ICMP echo messages, the ports are the
	// identifier and the type.
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	State       string         `json:"state"`
	// Idle is how long ago the last packet was, to a second.
	Idle float64 `json:"idle_seconds"`
}

// Connections lists the NAT sessions whose last packets are most recent, at most limit.
func (g *Gateway) Connections(_ context.Context, limit int) (any, error) {
	c := Connections{Sessions: []Session{}}
	p, ok := g.plane.(interface {
		NATFlows(most int) ([]dataplane.NATFlow, int)
	})
	if !ok {
		return c, nil // no peer has been open since the start
	}
	list, n := p.NATFlows(limit)
	c.Connections = n
	for _, f := range list {
		direction := "sent"
		if f.Received {
			direction = "received"
		}
		c.Sessions = append(c.Sessions, Session{f.Peer, direction, protocolName(f.Flow.Protocol), f.Flow.Source, f.Flow.Destination, f.State, seconds(f.Idle)})
	}
	return c, nil
}

// protocolName returns the name of a protocol that NAT sessions can have.
func protocolName(p uint8) string {
	switch p {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmpv6"
	}
	return fmt.Sprintf("protocol %d", p)
}
